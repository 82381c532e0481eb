"""Launch expressions: parsing, checking, and translation to C++."""
