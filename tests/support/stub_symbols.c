/* Every entry point of the stub libcuda.so.1, with the CUDA version that brought it. */
#include "stub.h"

#define STUB_SYMBOLS(X)                                                                               \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                                                           \
  X(cuCtxGetDevice, cuCtxGetDevice, 2000)                                                             \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000)                                                        \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000)                                                      \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                           \
  X(cuDeviceGet, cuDeviceGet, 2000)                                                                   \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000)                                                 \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000)                                                         \
  X(cuDeviceGetName, cuDeviceGetName, 2000)                                                           \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000)                                     \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000)                                   \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                                         \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020)                                                     \
  X(cuFuncLoad, cuFuncLoad, 12040)                                                                    \
  X(cuGetErrorName, cuGetErrorName, 6000)                                                             \
  X(cuGetErrorString, cuGetErrorString, 6000)                                                         \
  X(cuGetExportTable, cuGetExportTable, 3000)                                                         \
  X(cuGetProcAddress, cuGetProcAddress_v2, 12000)                                                     \
  X(cuInit, cuInit, 2000)                                                                             \
  X(cuKernelGetAttribute, cuKernelGetAttribute, 12000)                                                \
  X(cuKernelGetFunction, cuKernelGetFunction, 12000)                                                  \
  X(cuKernelGetName, cuKernelGetName, 12030)                                                          \
  X(cuKernelGetParamInfo, cuKernelGetParamInfo, 12040)                                                \
  X(cuKernelSetAttribute, cuKernelSetAttribute, 12000)                                                \
  X(cuLaunchKernel, cuLaunchKernel, 4000)                                                             \
  X(cuLaunchKernelEx, cuLaunchKernelEx, 11060)                                                        \
  X(cuLibraryGetGlobal, cuLibraryGetGlobal, 12000)                                                    \
  X(cuLibraryEnumerateKernels, cuLibraryEnumerateKernels, 12040)                                      \
  X(cuLibraryGetKernel, cuLibraryGetKernel, 12000)                                                    \
  X(cuLibraryGetKernelCount, cuLibraryGetKernelCount, 12040)                                          \
  X(cuLibraryLoadData, cuLibraryLoadData, 12000)                                                      \
  X(cuLibraryUnload, cuLibraryUnload, 12000)                                                          \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020)                                                          \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020)                                                            \
  X(cuOccupancyMaxActiveClusters, cuOccupancyMaxActiveClusters, 11070)                                \
  X(cuStreamGetCtx, cuStreamGetCtx, 9020)                                                             \
  X(cuStreamIsCapturing, cuStreamIsCapturing, 10000)                                                  \
  X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled, 12000)                                            \
  X(cuTensorMapEncodeIm2col, cuTensorMapEncodeIm2col, 12000)                                          \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010)

/* Their addresses are all that is used here, so their types need not be told again. */
#define DECLARE(name, function, since) extern void function(void);
STUB_SYMBOLS(DECLARE)

#define ROW(name, function, since) {#name, since, (void*)function},
const stub_symbol stub_symbols[] = {STUB_SYMBOLS(ROW){0, 0, 0}};
