"""Measures the variants of kernels."""
