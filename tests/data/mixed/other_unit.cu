// The second unit of the module: a kernel with the name of one in the first, which must stay apart.
#include "export.h"
#ifdef __CUDA_ARCH__
#include "only_device.h"
#else
#define STEP 0
#endif

namespace {
__global__ void hidden(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += STEP;
}
}  // namespace

void launch_elsewhere(float* x, int n) { hidden<<<(n + 255) / 256, 256>>>(x, n); }
