/* The work behind the C++ launcher, without C++ in it: nothing here throws or needs more of tvm-ffi than its C API.
 *
 * Header-only by default, so that a build of a user's own needs an include path and nothing to link. It costs a
 * wrapper 0.2 s of compile time; with JITLOAD_LAUNCHER_LINKED these are declarations, and launcher.cc, compiled once,
 * is linked instead. Functions and state are hidden by name, whatever flags the user compiles with: two libraries
 * never share them.
 */
#ifndef JITLOAD_LAUNCHER_H_
#define JITLOAD_LAUNCHER_H_

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

/* Besides JITLOAD_DRIVER_FUNCTIONS. */
#define JITLOAD_LAUNCHER_FUNCTIONS(X)                                           \
  X(library_unload, "cuLibraryUnload", (jitload_cu_library))                    \
  X(push_context, "cuCtxPushCurrent_v2", (jitload_cu_context))                  \
  X(pop_context, "cuCtxPopCurrent_v2", (jitload_cu_context*))                   \
  X(stream_context, "cuStreamGetCtx", (jitload_cu_stream, jitload_cu_context*)) \
  X(max_active_clusters, "cuOccupancyMaxActiveClusters", (int*, void*, const jitload_cu_config*))

/* NULL where the driver has not got them: cuKernelGetParamInfo is of CUDA 12.4, as cuFuncLoad. */
#define JITLOAD_OPTIONAL_FUNCTIONS(X)                                                  \
  X(param_info, "cuKernelGetParamInfo", (jitload_cu_kernel, size_t, size_t*, size_t*)) \
  X(pointer_attributes, "cuPointerGetAttributes", (unsigned, int*, void**, jitload_cu_address))

struct Driver : jitload_driver {
#define JITLOAD_DECLARE_(field, symbol, parameters) jitload_cu_result(*field) parameters;
  JITLOAD_LAUNCHER_FUNCTIONS(JITLOAD_DECLARE_)
  JITLOAD_OPTIONAL_FUNCTIONS(JITLOAD_DECLARE_)
#undef JITLOAD_DECLARE_
  int devices;   /* how many there are */
  pid_t process; /* that called cuInit; a fork of it cannot use CUDA */
};

/* What a caller knows of a cubin's bytes. */
struct Image {
  const unsigned char* data;
  size_t size; /* kUnknownSize where there is only an address */
};
enum : size_t { kUnknownSize = ~size_t{0} };

/* A cubin in the driver, or a fatbin. */
struct Library {
  jitload_cu_library handle;
  int capability; /* 90 for sm_90; 0 where that is not known */
  char* kernels;  /* "add_one, scale"; from malloc */
  char* images;   /* of a fatbin: "sm_80, compute_90"; from malloc */
};

struct KernelState;

/* Each returns 0, or sets tvm-ffi's error and returns -1 (NULL for a pointer). */
JITLOAD_LAUNCHER int Raise(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
/* "<what>: CUDA_ERROR_NOT_FOUND (500): named symbol not found", and what is known of the launch refused last. */
JITLOAD_LAUNCHER int RaiseCode(const char* what, int code);
JITLOAD_LAUNCHER const Driver* OpenDriver();
JITLOAD_LAUNCHER int CheckDevice(const Driver* driver, const char* who, int device);
JITLOAD_LAUNCHER int EnterDevice(const Driver* driver, int device, jitload_cu_context* before);
JITLOAD_LAUNCHER int LoadImage(const Image* image, Library* library);
JITLOAD_LAUNCHER KernelState* MakeKernel(const Library* library, const char* name);
JITLOAD_LAUNCHER int AllowMaxShared(KernelState* kernel, int64_t static_bytes, int64_t wanted);
/* Load the kernel where the launch will go, let it have clusters of any size, and see whether this one is possible. */
JITLOAD_LAUNCHER int CheckCluster(KernelState* kernel, void** args, const jitload_cu_config* config,
                                  const uint32_t* cluster);

/* Launch, and return the driver's code. The driver keeps nothing of a launch that it refused. */
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

#endif /* JITLOAD_LAUNCHER_H_ */
