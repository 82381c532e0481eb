/* The implementation of the C++ launcher. Nothing here throws or needs more of tvm-ffi than its C API.
 *
 * The launcher is header-only by default, so that a user's own build only needs an include path. This costs a wrapper
 * 0.2 s of compile time. With JITLOAD_LAUNCHER_LINKED, the headers only have declarations, and launcher.cc must be
 * compiled and linked.
 * Functions and state always have hidden visibility, so that libraries never share them.
 */
#pragma once

#include <sys/types.h>
#include <tvm/ffi/c_api.h>

#include "driver.h"

#define JITLOAD_HIDDEN __attribute__((visibility("hidden")))
#ifdef JITLOAD_LAUNCHER_LINKED
#define JITLOAD_LAUNCHER JITLOAD_HIDDEN
#else
#define JITLOAD_LAUNCHER JITLOAD_HIDDEN inline
#endif

namespace jitload {
inline namespace v1 {

/* Functions of libcuda that the launcher needs in addition to JITLOAD_DRIVER_FUNCTIONS. */
#define JITLOAD_LAUNCHER_FUNCTIONS(X)                                           \
  X(library_unload, "cuLibraryUnload", (jitload_cu_library))                    \
  X(push_context, "cuCtxPushCurrent_v2", (jitload_cu_context))                  \
  X(pop_context, "cuCtxPopCurrent_v2", (jitload_cu_context*))                   \
  X(stream_context, "cuStreamGetCtx", (jitload_cu_stream, jitload_cu_context*))

/* Functions that are NULL if the driver does not have them: those about kernels are new in CUDA 12.3 or 12.4. */
#define JITLOAD_OPTIONAL_FUNCTIONS(X)                                                              \
  X(param_info, "cuKernelGetParamInfo", (jitload_cu_kernel, size_t, size_t*, size_t*))             \
  X(kernel_name, "cuKernelGetName", (const char**, jitload_cu_kernel))                             \
  X(kernel_count, "cuLibraryGetKernelCount", (unsigned*, jitload_cu_library))                      \
  X(list_kernels, "cuLibraryEnumerateKernels", (jitload_cu_kernel*, unsigned, jitload_cu_library)) \
  X(pointer_attributes, "cuPointerGetAttributes", (unsigned, int*, void**, jitload_cu_address))

struct Driver : jitload_driver {
#define JITLOAD_DECLARE_(field, symbol, parameters) jitload_cu_result(*field) parameters;
  JITLOAD_LAUNCHER_FUNCTIONS(JITLOAD_DECLARE_)
  JITLOAD_OPTIONAL_FUNCTIONS(JITLOAD_DECLARE_)
#undef JITLOAD_DECLARE_
  int devices;   /* the number of devices */
  pid_t process; /* the process that called cuInit; its forks cannot use CUDA */
};

/* The bytes of a cubin or a fatbin. */
struct Image {
  const unsigned char* data;
  size_t size; /* or kUnknownSize */
};
enum : size_t { kUnknownSize = ~size_t{0} };

/* A cubin or a fatbin that the driver has loaded. */
struct Library {
  jitload_cu_library handle;
  int capability; /* 90 for sm_90; 0 if unknown */
  bool is_fatbin;
};

struct KernelState;

/* Each of these returns 0, or sets tvm-ffi's error and returns -1 (NULL for a pointer). */
JITLOAD_LAUNCHER int Raise(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
/* The message is "<context>: CUDA_ERROR_NOT_FOUND (500): named symbol not found", for example, with the details of
 * this thread's last failed launch. */
JITLOAD_LAUNCHER int RaiseCode(const char* context, int code);
JITLOAD_LAUNCHER const Driver* OpenDriver();
JITLOAD_LAUNCHER int CheckDevice(const Driver* driver, const char* function, int device);
JITLOAD_LAUNCHER int EnterDevice(const Driver* driver, int device, jitload_cu_context* before);
JITLOAD_LAUNCHER int LoadImage(const Image* image, Library* library);
JITLOAD_LAUNCHER KernelState* MakeKernel(const Library* library, const char* name);
JITLOAD_LAUNCHER int AllowMaxShared(KernelState* kernel, int64_t static_bytes, int64_t dynamic_bytes);

/* Return the driver's code, and do not set tvm-ffi's error. A failed launch leaves details for RaiseCode. */
JITLOAD_LAUNCHER int LaunchKernel(KernelState* kernel, void** args, const jitload_cu_config* config);
JITLOAD_LAUNCHER int LoadBytes(const Driver* driver, const void* bytes, jitload_cu_library* library);
JITLOAD_LAUNCHER void Unload(Library* library);
JITLOAD_LAUNCHER jitload_cu_kernel GetKernelHandle(const KernelState* kernel);
JITLOAD_LAUNCHER void FreeKernel(KernelState* kernel);
JITLOAD_LAUNCHER void DescribeCode(int code, const char** name, const char** text);

}  // namespace v1
}  // namespace jitload

#ifndef JITLOAD_LAUNCHER_LINKED
#include "launcher_launch.h"
#endif
