/* Entry points of the stub libcuda.so.1 for memory in the order of a stream: host memory here. */
#include <stdlib.h>

#include "stub.h"

STUB_API CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, CUstream stream) {
  CUresult result = stub_begin("cuMemAllocAsync", NEEDS_CONTEXT);
  if (result == CUDA_SUCCESS && (address == NULL || size == 0)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    /* As the driver's pools align it. */
    *address = (CUdeviceptr)(uintptr_t)aligned_alloc(256, (size + 255) & ~(size_t)255);
    if (*address == 0) abort();
  }
  return stub_end(result, "address=%#llx size=%zu stream=%p device=%d",
                  result == CUDA_SUCCESS ? (unsigned long long)*address : 0ULL, size, stream, stub_device_of_current());
}

STUB_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  CUresult result = stub_begin("cuMemFreeAsync", NEEDS_CONTEXT);
  if (result == CUDA_SUCCESS && address == 0) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) free((void*)(uintptr_t)address);
  return stub_end(result, "address=%#llx stream=%p", (unsigned long long)address, stream);
}
