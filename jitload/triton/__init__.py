"""Triton kernels: from what a user wrote to a cubin and the C++ text around it."""
