/* One unit of compilation of four files, for libraries of Triton kernels alone. */
#include "triton.cc"
#include "descriptor.cc"
#include "scratch.cc"
#include "tensor_object.cc"
