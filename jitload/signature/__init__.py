"""What a kernel takes: parameter types from the compiler's symbols, and the names under which kernels are exported."""
