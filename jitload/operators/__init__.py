"""Kernels as operators of torch, which are compiled, exported and differentiated, and as functions of JAX."""
