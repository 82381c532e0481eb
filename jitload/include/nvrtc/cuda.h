// The driver API's types for device code. NVIDIA's <cuda.h> declares host functions, which NVRTC refuses even as
// declarations (unless with -default-device), so it cannot be included; a kernel only needs its types.
#pragma once
#define __cuda_cuda_h__
#include <stdint.h>

#define CUDA_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUarray_st* CUarray;
typedef struct CUevent_st* CUevent;
typedef struct CUstream_st* CUstream;
typedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult;

// CUDA 13 doubled the alignment, which moves the parameters of a kernel.
#define CU_TENSOR_MAP_NUM_QWORDS 16
typedef struct CUtensorMap_st {
  alignas(__CUDACC_VER_MAJOR__ >= 13 ? 128 : 64) cuuint64_t opaque[CU_TENSOR_MAP_NUM_QWORDS];
} CUtensorMap;
