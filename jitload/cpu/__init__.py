"""Compiles CUDA source for the CPU. The code that runs it is in `runtime/cpu/`."""
