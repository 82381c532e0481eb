/* The part of the runtime for Triton kernels: four files that are compiled as one. */
#include "triton.cc"
#include "descriptor.cc"
#include "scratch.cc"
#include "tensor_object.cc"
