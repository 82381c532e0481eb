// A program with a kernel, a function that launches it, and main(): program.py uses all three.
#include <cstdio>
#include <cstdlib>

__global__ void saxpy(int n, float a, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

// Add a x to y.
void run(int n, float a, const float* x, float* y, cudaStream_t stream) {
  saxpy<<<(n + 255) / 256, 256, 0, stream>>>(n, a, x, y);
}

int main(int argc, char** argv) {
  int n = argc > 1 ? std::atoi(argv[1]) : 1000, wrong = 0;
  float *x, *y;
  if (cudaMallocManaged(&x, n * sizeof(float)) != cudaSuccess) return std::puts("there is no GPU") < 0;
  cudaMallocManaged(&y, n * sizeof(float));
  for (int i = 0; i < n; ++i) x[i] = i, y[i] = 1;
  run(n, 2, x, y, nullptr);
  cudaDeviceSynchronize();
  for (int i = 0; i < n; ++i) wrong += y[i] != 2.0f * i + 1;
  std::printf("%d of %d elements are wrong\n", wrong, n);
  return wrong != 0;
}
