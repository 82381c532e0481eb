/* libcuda for the C++ launcher: its functions found at run time, primary contexts, and the words for its errors.
 *
 * The launcher is header-only, so that a build of a user's own needs an include path and nothing to link. Whatever
 * holds state is hidden by name, whatever flags the user compiles with: two libraries never share it.
 */
#ifndef JITLOAD_DRIVER_TABLE_H_
#define JITLOAD_DRIVER_TABLE_H_

#include <dlfcn.h>
#include <pthread.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

#include "cuda_types.h"
#include "driver.h"

#define JITLOAD_HIDDEN __attribute__((visibility("hidden")))
#define JITLOAD_COLD __attribute__((visibility("hidden"), noinline, cold))

namespace jitload {
inline namespace v1 {

/* Besides JITLOAD_DRIVER_FUNCTIONS. */
#define JITLOAD_LAUNCHER_FUNCTIONS(X)                                         \
  X(library_unload, "cuLibraryUnload", (jitload_cu_library))                  \
  X(push_context, "cuCtxPushCurrent_v2", (jitload_cu_context))                \
  X(pop_context, "cuCtxPopCurrent_v2", (jitload_cu_context*))                 \
  X(stream_context, "cuStreamGetCtx", (jitload_cu_stream, jitload_cu_context*)) \
  X(max_active_clusters, "cuOccupancyMaxActiveClusters", (int*, void*, const jitload_cu_config*))

/* NULL where the driver has not got them: cuFuncLoad and cuKernelGetParamInfo are of CUDA 12.4. */
#define JITLOAD_OPTIONAL_FUNCTIONS(X)                                               \
  X(load_function, "cuFuncLoad", (void*))                                           \
  X(param_info, "cuKernelGetParamInfo", (jitload_cu_kernel, size_t, size_t*, size_t*)) \
  X(pointer_attributes, "cuPointerGetAttributes", (unsigned, int*, void**, jitload_cu_address))

struct Driver {
#define JITLOAD_DECLARE_(field, symbol, parameters) jitload_cu_result(*field) parameters;
  JITLOAD_DRIVER_FUNCTIONS(JITLOAD_DECLARE_)
  JITLOAD_LAUNCHER_FUNCTIONS(JITLOAD_DECLARE_)
  JITLOAD_OPTIONAL_FUNCTIONS(JITLOAD_DECLARE_)
#undef JITLOAD_DECLARE_
  int devices; /* how many there are */
  pid_t process; /* that called cuInit; a fork of it cannot use CUDA */
};

/* The launch that the driver refused last in this thread: the codes that it returns have no room for words. */
struct Refusal {
  int code;
  char text[500];
};

JITLOAD_HIDDEN inline Driver driver_table = {};
JITLOAD_HIDDEN inline const Driver* driver_found = nullptr; /* once set, never changed */
JITLOAD_HIDDEN inline pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
JITLOAD_HIDDEN inline jitload_cu_context primary_contexts[64] = {};
JITLOAD_HIDDEN inline __thread Refusal last_refusal = {};

class Lock {
 public:
  Lock() { pthread_mutex_lock(&driver_lock); }
  ~Lock() { pthread_mutex_unlock(&driver_lock); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

[[noreturn]] JITLOAD_COLD inline void ThrowRuntimeError(const std::string& text) {
  TVM_FFI_THROW(RuntimeError) << text;
  __builtin_unreachable();
}
[[noreturn]] JITLOAD_COLD inline void ThrowValueError(const std::string& text) {
  TVM_FFI_THROW(ValueError) << text;
  __builtin_unreachable();
}

__attribute__((format(printf, 1, 2))) JITLOAD_COLD inline std::string Format(const char* format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

/* ---- errors ---------------------------------------------------------------------------------------------------- */

/* A function of the CUDA runtime, where a copy of it is loaded: it knows codes that the driver does not. */
JITLOAD_COLD inline const char* AskRuntime(const char* function, int code) {
  void* found = dlsym(RTLD_DEFAULT, function);
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"}) {
    void* library = found == nullptr ? dlopen(name, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    if (library != nullptr) found = dlsym(library, function);
  }
  return found != nullptr ? reinterpret_cast<const char* (*)(int)>(found)(code) : nullptr;
}

JITLOAD_COLD inline void DescribeCode(int code, const char** name, const char** text) {
  *name = *text = nullptr;
  const Driver* driver = __atomic_load_n(&driver_found, __ATOMIC_ACQUIRE);
  if (driver != nullptr) {
    driver->error_name(code, name);
    driver->error_string(code, text);
  }
  if (*name == nullptr) *name = AskRuntime("cudaGetErrorName", code);
  if (*text == nullptr) *text = AskRuntime("cudaGetErrorString", code);
  if (*name == nullptr) *name = "unknown";
  if (*text == nullptr) *text = "this driver does not know the error";
}

/* "<what>: CUDA_ERROR_NOT_FOUND (500): named symbol not found" */
JITLOAD_COLD inline std::string ErrorText(const char* what, int code) {
  const char *name, *text;
  DescribeCode(code, &name, &text);
  std::string message = Format("%s: %s (%d): %s", what, name, code, text);
  if (last_refusal.code == code) message += std::string("; last refused launch: ") + last_refusal.text;
  last_refusal.code = 0;
  return message;
}

JITLOAD_COLD inline void ThrowIfFailed(const char* what, int code) {
  if (code != JITLOAD_CUDA_SUCCESS) ThrowRuntimeError(ErrorText(what, code));
}

/* ---- the driver ------------------------------------------------------------------------------------------------ */

/* The caller holds the lock. */
JITLOAD_COLD inline void FindDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    ThrowRuntimeError(Format("launching needs an NVIDIA driver, and libcuda.so.1 was not found: %s", dlerror()));
  }
  Driver& driver = driver_table;
#define JITLOAD_FIND_(field, symbol, parameters) \
  driver.field = reinterpret_cast<decltype(driver.field)>(dlsym(library, symbol));
#define JITLOAD_REQUIRE_(field, symbol, parameters) \
  JITLOAD_FIND_(field, symbol, parameters)          \
  if (driver.field == nullptr) missing = symbol;
  const char* missing = nullptr;
  JITLOAD_DRIVER_FUNCTIONS(JITLOAD_REQUIRE_)
  JITLOAD_LAUNCHER_FUNCTIONS(JITLOAD_REQUIRE_)
  JITLOAD_OPTIONAL_FUNCTIONS(JITLOAD_FIND_)
#undef JITLOAD_REQUIRE_
#undef JITLOAD_FIND_
  if (missing != nullptr) {
    ThrowRuntimeError(Format("the CUDA driver has no %s: it must support CUDA 12.0 or newer", missing));
  }
  int code = driver.init(0);
  if (code == JITLOAD_CUDA_SUCCESS) code = driver.device_count(&driver.devices);
  if (code != JITLOAD_CUDA_SUCCESS) {
    const char *name = nullptr, *text = nullptr;
    driver.error_name(code, &name);
    driver.error_string(code, &text);
    ThrowRuntimeError(Format("the CUDA driver cannot start: %s (%d): %s", name ? name : "unknown", code, text ? text : ""));
  }
  driver.process = getpid();
  __atomic_store_n(&driver_found, &driver, __ATOMIC_RELEASE);
}

inline constexpr const char* kForked =
    "CUDA was used in this process before it forked, and cannot be used in the child; start workers with the 'spawn' or "
    "'forkserver' method";

/* Throws where there is no driver that can be used. */
JITLOAD_COLD inline const Driver& GetDriver() {
  const Driver* driver = __atomic_load_n(&driver_found, __ATOMIC_ACQUIRE);
  if (driver != nullptr) {
    if (driver->process != getpid()) ThrowRuntimeError(kForked);
    return *driver;
  }
  Lock lock;
  if (driver_found == nullptr) FindDriver();
  return *driver_found;
}

/* ---- contexts -------------------------------------------------------------------------------------------------- */

/* The device's primary context, retained once; one that somebody has reset in the meantime is retained anew. */
JITLOAD_HIDDEN inline int PrimaryContext(const Driver& driver, int device, jitload_cu_context* primary) {
  const int remembered = sizeof primary_contexts / sizeof *primary_contexts;
  if (device < 0 || device >= remembered) return driver.retain_primary(primary, device);
  unsigned flags = 0;
  int is_active = 0;
  *primary = __atomic_load_n(&primary_contexts[device], __ATOMIC_ACQUIRE);
  if (*primary != nullptr && driver.primary_state(device, &flags, &is_active) == JITLOAD_CUDA_SUCCESS && is_active) {
    return JITLOAD_CUDA_SUCCESS;
  }
  const int code = driver.retain_primary(primary, device);
  if (code == JITLOAD_CUDA_SUCCESS) __atomic_store_n(&primary_contexts[device], *primary, __ATOMIC_RELEASE);
  return code;
}

/* A thread without a context gets the primary one of device 0, as from the CUDA runtime; returns whether it did. */
JITLOAD_COLD inline bool AdoptContext(const Driver& driver) {
  jitload_cu_context current = nullptr, primary = nullptr;
  if (driver.get_context(&current) != JITLOAD_CUDA_SUCCESS || current != nullptr) return false;
  return PrimaryContext(driver, 0, &primary) == JITLOAD_CUDA_SUCCESS &&
         driver.set_context(primary) == JITLOAD_CUDA_SUCCESS;
}

/* While it lives, the driver takes calls that are unsafe during graph capture: we mean them. */
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { driver_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = JITLOAD_CAPTURE_RELAXED;
};

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_DRIVER_TABLE_H_ */
