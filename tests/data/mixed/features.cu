// What host code does with its own kernels, without CUDA's larger headers.
#include <cuda.h>

#include "export.h"

__constant__ float factors[4];
__device__ float total;

namespace {
__global__ void hidden(float* x, int n) {  // another unit has a kernel of this name, too
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1;
}
}  // namespace

__global__ void multiply(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factors[i % 4];
}

__global__ void reverse(float* x, int n) {
  extern __shared__ float row[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) row[n - 1 - i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = row[i];
}

template <class F>
__global__ void apply(float* x, int n, F f) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = f(x[i]);
}

template <class T, int N>
void launch_twice(T* x, int n) {
  auto launch = [=](T* begin) { apply<<<(n + N - 1) / N, N>>>(begin, n, [] __device__(T value) { return value + N; }); };
  launch(x);
  launch(x);
}

__global__ void look_up(cudaTextureObject_t texture, float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = tex2D<float>(texture, n - 1 - i, 0);
}

__global__ void add_up(const float* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&total, x[i]);
}

void launch_elsewhere(float* x, int n);

long symbols(float* x, int n) {
  float values[4] = {1, 2, 3, 4}, *address = nullptr, sum = 0;
  TRY(cudaMemcpyToSymbol(factors, values, sizeof values));
  multiply<<<(n + 255) / 256, 256>>>(x, n);
  TRY(cudaGetSymbolAddress(reinterpret_cast<void**>(&address), total));
  TRY(cudaMemset(address, 0, sizeof total));
  add_up<<<1, 256>>>(x, n);
  TRY(cudaMemcpyFromSymbol(&sum, total, sizeof sum));
  return cudaMemcpy(x, &sum, sizeof sum, cudaMemcpyHostToDevice);
}
EXPORT(symbols)

long attributes(float* x, int n) {
  int bytes = n * int(sizeof(float)), blocks = 0, size = 0, least = 0;
  TRY(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reverse, 256, bytes));
  TRY(cudaOccupancyMaxPotentialBlockSize(&least, &size, multiply));
  cudaFuncAttributes facts;
  TRY(cudaFuncGetAttributes(&facts, multiply));
  if (blocks < 1 || least < 1 || size < 32 || facts.maxThreadsPerBlock < size) return -1;
  reverse<<<1, 256, bytes>>>(x, n);
  return cudaGetLastError();
}
EXPORT(attributes)

long lambdas(float* x, int n) {
  launch_twice<float, 128>(x, n);
  return cudaGetLastError();
}
EXPORT(lambdas)

long cooperative(float* x, int n) {
  void* arguments[] = {&x, &n};
  const void* kernel = reinterpret_cast<const void*>(static_cast<void (*)(float*, int)>(hidden));
  TRY(cudaLaunchCooperativeKernel(kernel, dim3((n + 255) / 256), dim3(256), arguments, 0, nullptr));
  return cudaLaunchKernel(kernel, dim3((n + 255) / 256), dim3(256), arguments, 0, nullptr);
}
EXPORT(cooperative)

long textures(float* x, int n) {
  cudaArray_t array = nullptr;
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  TRY(cudaMallocArray(&array, &format, n, 1));
  TRY(cudaMemcpy2DToArray(array, 0, 0, x, n * sizeof(float), n * sizeof(float), 1, cudaMemcpyDeviceToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray, resource.res.array.array = array;
  cudaTextureDesc description = {};
  cudaTextureObject_t texture = 0;
  TRY(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  look_up<<<(n + 255) / 256, 256>>>(texture, x, n);
  TRY(cudaDeviceSynchronize());
  TRY(cudaDestroyTextureObject(texture));
  return cudaFreeArray(array);
}
EXPORT(textures)

long graphs(float* x, int n) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  TRY(cudaDeviceSynchronize());
  TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  hidden<<<(n + 255) / 256, 256, 0, stream>>>(x, n);
  hidden<<<(n + 255) / 256, 256, 0, stream>>>(x, n);
  TRY(cudaStreamEndCapture(stream, &graph));
  TRY(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) TRY(cudaGraphLaunch(executable, stream));
  TRY(cudaStreamSynchronize(stream));
  TRY(cudaGraphExecDestroy(executable));
  TRY(cudaGraphDestroy(graph));
  return cudaStreamDestroy(stream);
}
EXPORT(graphs)

long units(float* x, int n) {
  launch_elsewhere(x, n);
  hidden<<<(n + 255) / 256, 256>>>(x, n);
  return cudaGetLastError();
}
EXPORT(units)

long driver(float* x, int) {
  CUdeviceptr begin = 0;
  size_t size = 0;
  return cuMemGetAddressRange(&begin, &size, reinterpret_cast<CUdeviceptr>(x));
}
EXPORT(driver)
