"""Kernels as functions of JAX, and as operators of torch, which torch can compile, export and differentiate."""
