"""Kernels as functions of JAX, and as PyTorch operators, which torch can compile, export and differentiate."""
