"""The parameters of kernels, read from the compiler's symbols, and the names under which kernels are exported."""
