"""The C++ wrapper around compiled kernels, rendered from the templates."""
