// <iso646.h> says which library this is and what it has; CCCL looks for one that it knows, and finds none here.
