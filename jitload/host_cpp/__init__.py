"""Libraries and object files of hand-written C++, with or without kernels in it."""
