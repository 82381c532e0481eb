"""The C++ text of wrappers, which check arguments and launch kernels, rendered from templates."""
