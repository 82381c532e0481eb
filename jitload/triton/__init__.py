"""Compiles Triton kernels, checks what Triton made, and builds libraries that need no Triton."""
