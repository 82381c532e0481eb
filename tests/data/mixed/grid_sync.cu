// A cooperative launch that synchronizes the grid.
#include <cooperative_groups.h>
#include <cub/version.cuh>
#include <thrust/version.h>

#include "export.h"

__global__ void neighbours(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float next = i < n ? x[(i + 1) % n] : 0;
  cooperative_groups::this_grid().sync();
  if (i < n) x[i] = next;
}

long grid_sync(float* x, int n) {
  void* arguments[] = {&x, &n};
  return cudaLaunchCooperativeKernel(neighbours, dim3((n + 255) / 256), dim3(256), arguments);
}
EXPORT(grid_sync)
