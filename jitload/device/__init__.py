"""Device code, PTX and cubins in; a cubin with typed kernels out."""
