"""Runs CUDA source on the CPU."""
