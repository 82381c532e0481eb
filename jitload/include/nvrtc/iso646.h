// <iso646.h> spells operators as words, `and` for &&, which C++ knows by itself.
