/* The launcher's access to libcuda: functions looked up at run time, contexts, and error messages. */
#pragma once

#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launcher.h"

namespace jitload {
inline namespace v1 {

/* Details of the last failed launch of this thread, as a launch returns only a code. */
struct LaunchError {
  int code;
  char text[500];
};

JITLOAD_HIDDEN inline Driver driver_table = {};
JITLOAD_HIDDEN inline const Driver* loaded_driver = nullptr; /* NULL before the first use; never changes afterwards */
JITLOAD_HIDDEN inline pid_t launcher_lock = 0; /* the process that holds the lock, or 0 */
JITLOAD_HIDDEN inline jitload_cu_context primary_contexts[JITLOAD_MAX_RETAINED_CONTEXTS] = {};
JITLOAD_HIDDEN inline __thread LaunchError last_launch_error = {};

inline constexpr const char* kForked =
    "CUDA was used in this process before it forked, and cannot be used in the child; start workers with the 'spawn' "
    "or 'forkserver' method";

/* ---- the lock -------------------------------------------------------------------------------------------------- */

/* Take the lock. Return false if a thread of the parent process held it at the fork, and it is never released. A mutex
 * cannot detect this, and a fork handler could outlive the library that it belongs to. The lock is held while the
 * driver is initialised and while a kernel is prepared for a device. */
JITLOAD_LAUNCHER bool Lock() {
  const pid_t self = getpid();
  const timespec interval = {0, 50000};
  for (int tries = 0;; ++tries) {
    pid_t holder = 0;
    if (__atomic_compare_exchange_n(&launcher_lock, &holder, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      return true;
    }
    if (holder != self) return false;
    if (tries < 16) {
      sched_yield();
    } else {
      nanosleep(&interval, nullptr);
    }
  }
}

JITLOAD_LAUNCHER void Unlock() { __atomic_store_n(&launcher_lock, 0, __ATOMIC_RELEASE); }

/* ---- errors ---------------------------------------------------------------------------------------------------- */

JITLOAD_LAUNCHER int Raise(const char* kind, const char* format, ...) {
  char text[2048];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

/* Call a function of the CUDA runtime if it is loaded: it has names for codes that the driver does not know. */
JITLOAD_LAUNCHER const char* CallRuntime(const char* function, int code) {
  static const char* const names[] = {"libcudart.so.13", "libcudart.so.12"};
  void* address = dlsym(RTLD_DEFAULT, function);
  for (int i = 0; i < 2 && address == nullptr; ++i) {
    void* library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) address = dlsym(library, function);
  }
  return address != nullptr ? reinterpret_cast<const char* (*)(int)>(address)(code) : nullptr;
}

JITLOAD_LAUNCHER void DescribeCode(int code, const char** name, const char** text) {
  const Driver* driver = __atomic_load_n(&loaded_driver, __ATOMIC_ACQUIRE);
  *name = *text = nullptr;
  if (driver != nullptr) {
    driver->error_name(code, name);
    driver->error_string(code, text);
  }
  if (*name == nullptr) *name = CallRuntime("cudaGetErrorName", code);
  if (*text == nullptr) *text = CallRuntime("cudaGetErrorString", code);
  if (*name == nullptr) *name = "unknown";
  if (*text == nullptr) *text = "this driver does not know the error";
}

JITLOAD_LAUNCHER int RaiseCode(const char* context, int code) {
  const char *name, *text;
  DescribeCode(code, &name, &text);
  const bool has_details = last_launch_error.code == code;
  last_launch_error.code = 0;
  return Raise("RuntimeError", "%s: %s (%d): %s%s%s", context, name, code, text,
               has_details ? "; last refused launch: " : "", has_details ? last_launch_error.text : "");
}

/* Record the details of a failed launch, and return its code. */
__attribute__((format(printf, 2, 3))) JITLOAD_LAUNCHER int SetLaunchError(int code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_launch_error.text, sizeof last_launch_error.text, format, values);
  va_end(values);
  last_launch_error.code = code;
  return code;
}

/* ---- the driver ------------------------------------------------------------------------------------------------ */

JITLOAD_LAUNCHER const char* ResolveFunctions(void* library, Driver* driver) {
  const char* missing = nullptr;
#define JITLOAD_FIND_(field, symbol, parameters) \
  driver->field = reinterpret_cast<decltype(driver->field)>(dlsym(library, symbol));
#define JITLOAD_REQUIRE_(field, symbol, parameters) \
  JITLOAD_FIND_(field, symbol, parameters)          \
  if (driver->field == nullptr) missing = symbol;
  JITLOAD_DRIVER_FUNCTIONS(JITLOAD_REQUIRE_)
  JITLOAD_LAUNCHER_FUNCTIONS(JITLOAD_REQUIRE_)
  JITLOAD_OPTIONAL_FUNCTIONS(JITLOAD_FIND_)
  JITLOAD_FIND_(load_function, "cuFuncLoad", )
#undef JITLOAD_REQUIRE_
#undef JITLOAD_FIND_
  return missing;
}

/* The caller holds the lock. */
JITLOAD_LAUNCHER int StartDriver(Driver* driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return Raise("RuntimeError", "launching needs an NVIDIA driver, and libcuda.so.1 was not found: %s", dlerror());
  }
  if (const char* missing = ResolveFunctions(library, driver)) {
    return Raise("RuntimeError", "the CUDA driver has no %s: it must support CUDA 12.0 or newer", missing);
  }
  int code = driver->init(0);
  if (code == JITLOAD_CUDA_SUCCESS) code = driver->device_count(&driver->devices);
  if (code != JITLOAD_CUDA_SUCCESS) {
    const char *name = nullptr, *text = nullptr;
    driver->error_name(code, &name);
    driver->error_string(code, &text);
    return Raise("RuntimeError", "the CUDA driver cannot start: %s (%d): %s", name ? name : "", code, text ? text : "");
  }
  driver->process = getpid();
  __atomic_store_n(&loaded_driver, driver, __ATOMIC_RELEASE);
  return 0;
}

JITLOAD_LAUNCHER const Driver* OpenDriver() {
  const Driver* driver = __atomic_load_n(&loaded_driver, __ATOMIC_ACQUIRE);
  if (driver != nullptr && driver->process == getpid()) return driver;
  if (driver != nullptr || !Lock()) {
    Raise("RuntimeError", "%s", kForked);
    return nullptr;
  }
  if (loaded_driver == nullptr) StartDriver(&driver_table);
  driver = loaded_driver;
  Unlock();
  return driver;
}

JITLOAD_LAUNCHER int CheckDevice(const Driver* driver, const char* function, int device) {
  if (device >= 0 && device < driver->devices) return 0;
  return Raise("RuntimeError", "%s: there is no cuda:%d; this process sees %d device%s", function, device,
               driver->devices,
               driver->devices == 1 ? "" : "s");
}

/* ---- contexts -------------------------------------------------------------------------------------------------- */

JITLOAD_LAUNCHER int PrimaryContext(const Driver* driver, int device, jitload_cu_context* primary) {
  return jitload_retain_primary(driver, primary_contexts, device, primary);
}

/* Give a thread without a context the primary one of device 0, as the CUDA runtime does. Return whether that was
 * done. */
JITLOAD_LAUNCHER bool AdoptContext(const Driver* driver) {
  jitload_cu_context current = nullptr, primary = nullptr;
  if (driver->get_context(&current) != JITLOAD_CUDA_SUCCESS || current != nullptr) return false;
  return PrimaryContext(driver, 0, &primary) == JITLOAD_CUDA_SUCCESS &&
         driver->set_context(primary) == JITLOAD_CUDA_SUCCESS;
}

JITLOAD_LAUNCHER int EnterDevice(const Driver* driver, int device, jitload_cu_context* before) {
  if (CheckDevice(driver, "CUDADeviceGuard", device) != 0) return -1;
  jitload_cu_context primary = nullptr;
  driver->get_context(before);
  int code = PrimaryContext(driver, device, &primary);
  if (code == JITLOAD_CUDA_SUCCESS) code = driver->set_context(primary);
  return code == JITLOAD_CUDA_SUCCESS ? 0 : RaiseCode("CUDADeviceGuard: cannot use the device", code);
}

}  // namespace v1
}  // namespace jitload
