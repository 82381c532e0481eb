// Stands in where no CUDA header is installed: the types of the driver API that a kernel can have as parameters.
#ifndef JITLOAD_NVRTC_FALLBACK_CUDA_H
#define JITLOAD_NVRTC_FALLBACK_CUDA_H
#include <stdint.h>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;
typedef struct CUtensorMap_st {
  alignas(64) cuuint64_t opaque[16];
} CUtensorMap;

#endif
