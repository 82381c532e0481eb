"""The same CUDA source on the CPU."""
