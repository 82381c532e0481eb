"""Compiles the kernels of a request: reads the source once, lets NVRTC compile it, and finds out the kernels' types."""
