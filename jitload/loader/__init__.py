"""Load a built library and return its kernels as typed functions."""
