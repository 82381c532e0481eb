/* The part of the CUDA driver API that launches need, without CUDA's headers: libcuda is loaded at run time.
 *
 * Records and constants are those of cuda.h, where CUlaunchConfig has 56 bytes and CUlaunchAttribute has 72.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int jitload_cu_result;
typedef int jitload_cu_device;
typedef void* jitload_cu_context;
typedef void* jitload_cu_library;
typedef void* jitload_cu_kernel; /* a CUkernel, which the driver also accepts as a CUfunction */
typedef void* jitload_cu_stream;
typedef uint64_t jitload_cu_address;

/* X(name, code): the errors of the driver that jitload names. Those from 714 to 719 are errors of a running kernel. */
#define JITLOAD_CUDA_ERRORS(X)         \
  X(INVALID_VALUE, 1)                  \
  X(OUT_OF_MEMORY, 2)                  \
  X(NOT_INITIALIZED, 3)                \
  X(DEINITIALIZED, 4)                  \
  X(NO_DEVICE, 100)                    \
  X(INVALID_DEVICE, 101)               \
  X(INVALID_IMAGE, 200)                \
  X(INVALID_CONTEXT, 201)              \
  X(NO_BINARY_FOR_GPU, 209)            \
  X(INVALID_PTX, 218)                  \
  X(UNSUPPORTED_PTX_VERSION, 222)      \
  X(INVALID_HANDLE, 400)               \
  X(NOT_FOUND, 500)                    \
  X(NOT_READY, 600)                    \
  X(ILLEGAL_ADDRESS, 700)              \
  X(LAUNCH_OUT_OF_RESOURCES, 701)      \
  X(LAUNCH_TIMEOUT, 702)               \
  X(CONTEXT_IS_DESTROYED, 709)         \
  X(ASSERT, 710)                       \
  X(HARDWARE_STACK_ERROR, 714)         \
  X(ILLEGAL_INSTRUCTION, 715)          \
  X(MISALIGNED_ADDRESS, 716)           \
  X(LAUNCH_FAILED, 719)                \
  X(COOPERATIVE_LAUNCH_TOO_LARGE, 720) \
  X(TENSOR_MEMORY_LEAK, 721)           \
  X(NOT_PERMITTED, 800)                \
  X(NOT_SUPPORTED, 801)                \
  X(SYSTEM_DRIVER_MISMATCH, 803)       \
  X(STREAM_CAPTURE_UNSUPPORTED, 900)   \
  X(INVALID_CLUSTER_SIZE, 912)         \
  X(UNKNOWN, 999)

#define JITLOAD_CUDA_ERROR_(name, code) JITLOAD_CUDA_ERROR_##name = code,
enum { JITLOAD_CUDA_SUCCESS = 0, JITLOAD_CUDA_ERRORS(JITLOAD_CUDA_ERROR_) };
#undef JITLOAD_CUDA_ERROR_

enum {
  JITLOAD_DEVICE_MAX_SHARED_OPTIN = 97,
  JITLOAD_DEVICE_MAJOR = 75,
  JITLOAD_DEVICE_MINOR = 76,
};

enum {
  JITLOAD_FUNCTION_MAX_THREADS = 0,
  JITLOAD_FUNCTION_STATIC_SHARED = 1,
  JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED = 8,
  JITLOAD_FUNCTION_CLUSTER_WIDTH = 11, /* of __cluster_dims__; 12 is its height, and 13 its depth */
  JITLOAD_FUNCTION_NON_PORTABLE_CLUSTER = 14,
};

/* The launch attributes that the runtime treats specially; codegen/kernel.py has the others. */
enum { JITLOAD_LAUNCH_COOPERATIVE = 2, JITLOAD_LAUNCH_CLUSTER = 4 };

enum { JITLOAD_CAPTURE_RELAXED = 2 };

typedef struct jitload_cu_attribute {
  int32_t id;
  int32_t padding;
  union {
    int32_t number;
    uint32_t extent[3];
    char bytes[64];
  } value;
} jitload_cu_attribute;

typedef struct jitload_cu_config {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  jitload_cu_stream stream;
  jitload_cu_attribute* attributes;
  uint32_t attribute_count;
} jitload_cu_config;

/* X(field, symbol, parameters): functions that libcuda 12.0 has. */
#define JITLOAD_DRIVER_FUNCTIONS(X)                                                                       \
  X(init, "cuInit", (unsigned))                                                                           \
  X(error_name, "cuGetErrorName", (jitload_cu_result, const char**))                                      \
  X(error_string, "cuGetErrorString", (jitload_cu_result, const char**))                                  \
  X(device_count, "cuDeviceGetCount", (int*))                                                             \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, jitload_cu_device))                             \
  X(device_name, "cuDeviceGetName", (char*, int, jitload_cu_device))                                      \
  X(context_device, "cuCtxGetDevice", (jitload_cu_device*))                                               \
  X(get_context, "cuCtxGetCurrent", (jitload_cu_context*))                                                \
  X(set_context, "cuCtxSetCurrent", (jitload_cu_context))                                                 \
  X(retain_primary, "cuDevicePrimaryCtxRetain", (jitload_cu_context*, jitload_cu_device))                 \
  X(primary_state, "cuDevicePrimaryCtxGetState", (jitload_cu_device, unsigned*, int*))                    \
  X(library_load, "cuLibraryLoadData",                                                                    \
    (jitload_cu_library*, const void*, int*, void**, unsigned, int*, void**, unsigned))                   \
  X(library_kernel, "cuLibraryGetKernel", (jitload_cu_kernel*, jitload_cu_library, const char*))          \
  X(library_global, "cuLibraryGetGlobal", (jitload_cu_address*, size_t*, jitload_cu_library, const char*)) \
  X(kernel_function, "cuKernelGetFunction", (void**, jitload_cu_kernel))                                  \
  X(kernel_attribute, "cuKernelGetAttribute", (int*, int, jitload_cu_kernel, jitload_cu_device))          \
  X(set_kernel_attribute, "cuKernelSetAttribute", (int, int, jitload_cu_kernel, jitload_cu_device))       \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                                   \
  X(launch, "cuLaunchKernel",                                                                             \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, jitload_cu_stream,      \
     void**, void**))                                                                                     \
  X(launch_ex, "cuLaunchKernelEx", (const jitload_cu_config*, void*, void**, void**))                     \
  X(allocate_async, "cuMemAllocAsync", (jitload_cu_address*, size_t, jitload_cu_stream))                  \
  X(free_async, "cuMemFreeAsync", (jitload_cu_address, jitload_cu_stream))                                \
  X(max_active_clusters, "cuOccupancyMaxActiveClusters", (int*, void*, const jitload_cu_config*))         \
  X(encode_tiled, "cuTensorMapEncodeTiled",                                                               \
    (void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*,     \
     int, int, int, int))                                                                                 \
  X(encode_im2col, "cuTensorMapEncodeIm2col",                                                             \
    (void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const int*, const int*, uint32_t,     \
     uint32_t, const uint32_t*, int, int, int, int))

#define JITLOAD_DECLARE_(field, symbol, parameters) jitload_cu_result(*field) parameters;
typedef struct jitload_driver {
  JITLOAD_DRIVER_FUNCTIONS(JITLOAD_DECLARE_)
  jitload_cu_result (*load_function)(void*); /* cuFuncLoad; NULL before CUDA 12.4 */
} jitload_driver;
#undef JITLOAD_DECLARE_

/* ---- steps that the runtime and the C++ launcher share --------------------------------------------------------- */

#define JITLOAD_INLINE static inline __attribute__((unused))

enum {
  JITLOAD_DEFAULT_SHARED = 48 * 1024, /* a block may use this much without opting in */
  JITLOAD_PORTABLE_CLUSTER = 8,       /* blocks that a cluster may have without opting in */
  /* The driver of an H200 reports that clusters of 18 blocks can be active, but refuses to launch more than 16. */
  JITLOAD_MAX_CLUSTER = 16,
  JITLOAD_MAX_RETAINED_CONTEXTS = 64,
};

/* A format of four values: the requested bytes (long long), the device, a block's limit, the kernel's static bytes. */
#define JITLOAD_TOO_MUCH_SHARED                                                                           \
  "%lld bytes of dynamic shared memory requested, but cuda:%d gives a block at most %d bytes, and the "   \
  "kernel's own static shared memory takes %d of them"

/* Relaxes the capture mode of this thread, in which a graph capture allows what the driver otherwise rejects: loading code
 * and changing attributes. */
struct jitload_relaxed_capture {
  const jitload_driver* driver;
  int mode;
  explicit jitload_relaxed_capture(const jitload_driver* relaxed) : driver(relaxed), mode(JITLOAD_CAPTURE_RELAXED) {
    driver->exchange_capture_mode(&mode);
  }
  ~jitload_relaxed_capture() { driver->exchange_capture_mode(&mode); }
};

/* Retain the device's primary context once and keep it in `retained`, as libraries are never unloaded. A context
 * that was reset in the meantime is retained again. */
JITLOAD_INLINE jitload_cu_result jitload_retain_primary(const jitload_driver* driver, jitload_cu_context* retained,
                                                        jitload_cu_device device, jitload_cu_context* primary) {
  unsigned flags = 0;
  int is_active = 0;
  if (device < 0 || device >= JITLOAD_MAX_RETAINED_CONTEXTS) return driver->retain_primary(primary, device);
  *primary = __atomic_load_n(&retained[device], __ATOMIC_ACQUIRE);
  if (*primary != NULL && driver->primary_state(device, &flags, &is_active) == JITLOAD_CUDA_SUCCESS && is_active) {
    return JITLOAD_CUDA_SUCCESS;
  }
  const jitload_cu_result code = driver->retain_primary(primary, device);
  if (code == JITLOAD_CUDA_SUCCESS) __atomic_store_n(&retained[device], *primary, __ATOMIC_RELEASE);
  return code;
}

/* Read the extents of the cluster that a kernel was compiled for, `__cluster_dims__`, by default 1. Return the number of
 * its blocks. */
JITLOAD_INLINE int64_t jitload_declared_cluster(const jitload_driver* driver, jitload_cu_kernel kernel,
                                                jitload_cu_device device, int64_t* extents) {
  for (int axis = 0; axis < 3; ++axis) {
    int extent = 0;
    driver->kernel_attribute(&extent, JITLOAD_FUNCTION_CLUSTER_WIDTH + axis, kernel, device);
    extents[axis] = extent > 1 ? extent : 1;
  }
  return extents[0] * extents[1] * extents[2];
}

/* Return the size of the largest cluster (n, 1, 1) of at most `blocks` blocks that the device can hold for a launch,
 * or 0 if the driver cannot tell. */
JITLOAD_INLINE uint32_t jitload_largest_cluster(const jitload_driver* driver, jitload_cu_kernel kernel,
                                                const jitload_cu_config* launch, uint64_t blocks) {
  jitload_cu_attribute cluster = {JITLOAD_LAUNCH_CLUSTER, 0, {0}};
  jitload_cu_config probe = *launch;
  probe.attributes = &cluster;
  probe.attribute_count = 1;
  uint32_t size = blocks < JITLOAD_MAX_CLUSTER ? (uint32_t)blocks : (uint32_t)JITLOAD_MAX_CLUSTER;
  for (; size > 0; --size) {
    int active = 0;
    cluster.value.extent[0] = probe.grid[0] = size;
    cluster.value.extent[1] = cluster.value.extent[2] = probe.grid[1] = probe.grid[2] = 1;
    if (driver->max_active_clusters(&active, kernel, &probe) == JITLOAD_CUDA_SUCCESS && active > 0) break;
  }
  return size;
}

/* Read the most shared memory that a block may have on a device, and how much of it the kernel uses statically. */
JITLOAD_INLINE jitload_cu_result jitload_shared_limit(const jitload_driver* driver, jitload_cu_kernel kernel,
                                                      jitload_cu_device device, int* max_shared,
                                                      int* static_shared) {
  const jitload_cu_result code = driver->device_attribute(max_shared, JITLOAD_DEVICE_MAX_SHARED_OPTIN, device);
  return code != JITLOAD_CUDA_SUCCESS ? code
                                      : driver->kernel_attribute(static_shared, JITLOAD_FUNCTION_STATIC_SHARED, kernel,
                                                                 device);
}
