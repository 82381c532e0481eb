/* A kernel of the launcher. It is prepared for a device at its first launch there. */
#pragma once

#include "launcher_image.h"

namespace jitload {
inline namespace v1 {

/* A kernel on one device. */
struct DeviceKernel {
  int64_t shared_limit; /* bytes of dynamic shared memory; -1 before the kernel is loaded on the device */
  bool allows_large_cluster;
};

struct KernelState {
  const Driver* driver;
  jitload_cu_kernel kernel;
  char* name;
  DeviceKernel* slots;  /* [device] */
  uint32_t* pointers; /* indices of parameters that may be pointers; needed only with several devices */
  uint32_t pointer_count;
  int capability;
  bool needs_max_shared; /* raise shared_limit at the first launch on a device */
};

JITLOAD_LAUNCHER jitload_cu_kernel GetKernelHandle(const KernelState* state) {
  return state != nullptr ? state->kernel : nullptr;
}

JITLOAD_LAUNCHER void FreeKernel(KernelState* state) {
  if (state == nullptr) return;
  free(state->name);
  free(state->slots);
  free(state->pointers);
  free(state);
}

/* Find the parameters of eight bytes, which may be pointers. Drivers before CUDA 12.4 cannot list parameters. */
JITLOAD_LAUNCHER void FindPointers(KernelState* state) {
  const Driver* driver = state->driver;
  size_t offset = 0, size = 0;
  if (driver->devices < 2 || driver->param_info == nullptr) return;
  for (uint32_t i = 0; driver->param_info(state->kernel, i, &offset, &size) == JITLOAD_CUDA_SUCCESS; ++i) {
    if (size != sizeof(void*)) continue;
    void* grown = realloc(state->pointers, (state->pointer_count + 1) * sizeof(uint32_t));
    if (grown == nullptr) return;
    state->pointers = static_cast<uint32_t*>(grown);
    state->pointers[state->pointer_count++] = i;
  }
}

/* Set the error for a missing kernel, with the names of those that there are if the driver can list them. */
JITLOAD_LAUNCHER int RaiseNoKernel(const Driver* driver, const Library* library, const char* name) {
  jitload_cu_kernel kernels[64] = {};
  unsigned count = 0;
  char names[1024] = "";
  if (driver->list_kernels != nullptr) driver->kernel_count(&count, library->handle);
  if (count > 64) count = 64;
  if (count != 0 && driver->list_kernels(kernels, count, library->handle) != JITLOAD_CUDA_SUCCESS) count = 0;
  for (unsigned i = 0; i < count; ++i) {
    const size_t used = strlen(names);
    const char* kernel = nullptr;
    if (driver->kernel_name(&kernel, kernels[i]) != JITLOAD_CUDA_SUCCESS) continue;
    snprintf(names + used, sizeof names - used, "%s%s", used != 0 ? ", " : "; it has: ", kernel);
  }
  return Raise("RuntimeError", "the %s has no kernel named '%s'%s", library->is_fatbin ? "fatbin" : "cubin", name, names);
}

JITLOAD_LAUNCHER KernelState* MakeKernel(const Library* library, const char* name) {
  jitload_cu_kernel kernel = nullptr;
  const Driver* driver = OpenDriver();
  if (driver == nullptr) return nullptr;
  if (library->handle == nullptr) {
    Raise("RuntimeError", "the module was moved to another object, and has no kernels left");
    return nullptr;
  }
  const int code =
      name != nullptr ? driver->library_kernel(&kernel, library->handle, name) : JITLOAD_CUDA_ERROR_INVALID_VALUE;
  if (code != JITLOAD_CUDA_SUCCESS) {
    const char* context = "cannot get a kernel from the cubin";
    if (library->is_fatbin) context = "the fatbin has no kernel for a device here";
    if (code == JITLOAD_CUDA_ERROR_NOT_FOUND)
      RaiseNoKernel(driver, library, name);
    else
      RaiseCode(context, code);
    return nullptr;
  }
  KernelState* state = static_cast<KernelState*>(calloc(1, sizeof *state));
  if (state != nullptr) {
    state->driver = driver;
    state->kernel = kernel;
    state->capability = library->capability;
    state->name = strdup(name);
    state->slots = static_cast<DeviceKernel*>(calloc(static_cast<size_t>(driver->devices), sizeof(DeviceKernel)));
  }
  if (state == nullptr || state->name == nullptr || state->slots == nullptr) {
    FreeKernel(state);
    Raise("MemoryError", "out of memory");
    return nullptr;
  }
  for (int device = 0; device < driver->devices; ++device) state->slots[device].shared_limit = -1;
  FindPointers(state);
  return state;
}

/* ---- preparing a kernel for a device --------------------------------------------------------------------------- */

JITLOAD_LAUNCHER int SetArchitectureError(const KernelState* state, int device) {
  int major = 0, minor = 0;
  state->driver->device_attribute(&major, JITLOAD_DEVICE_MAJOR, device);
  state->driver->device_attribute(&minor, JITLOAD_DEVICE_MINOR, device);
  if (state->capability == 0) {
    return SetLaunchError(JITLOAD_CUDA_ERROR_NO_BINARY_FOR_GPU,
                          "%s: the cubin or fatbin holds no code for cuda:%d, which is sm_%d%d",
                          state->name, device, major, minor);
  }
  return SetLaunchError(JITLOAD_CUDA_ERROR_NO_BINARY_FOR_GPU,
                        "%s: the cubin holds code for sm_%d, and cuda:%d is sm_%d%d",
                        state->name, state->capability, device, major, minor);
}

/* Raise the limit of dynamic shared memory to the device's maximum. A high limit costs nothing and is never lowered. */
JITLOAD_LAUNCHER int RaiseSharedLimit(KernelState* state, int device, int64_t bytes, int max_shared,
                                      int static_shared) {
  if (bytes > max_shared - static_shared) {
    return SetLaunchError(JITLOAD_CUDA_ERROR_INVALID_VALUE, "%s: " JITLOAD_TOO_MUCH_SHARED, state->name,
                          static_cast<long long>(bytes), device, max_shared, static_shared);
  }
  const int code =
      state->driver->set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, max_shared - static_shared,
                                          state->kernel,
                                          device);
  return code == 0 ? 0 : SetLaunchError(code, "%s: cannot raise the shared memory limit on cuda:%d", state->name,
                                        device);
}

/* Allow clusters of more than 8 blocks, the portable size. Done once for each device, because setting an attribute
 * takes one of the driver's locks. */
JITLOAD_LAUNCHER void AllowLargeCluster(KernelState* state, int device) {
  if (__atomic_load_n(&state->slots[device].allows_large_cluster, __ATOMIC_ACQUIRE)) return;
  const jitload_relaxed_capture relaxed(state->driver);
  state->driver->set_kernel_attribute(JITLOAD_FUNCTION_NON_PORTABLE_CLUSTER, 1, state->kernel, device);
  __atomic_store_n(&state->slots[device].allows_large_cluster, true, __ATOMIC_RELEASE);
}

/* The caller holds the lock, and the device's context is current. */
JITLOAD_LAUNCHER int PrepareLocked(KernelState* state, int device, int64_t bytes) {
  const jitload_relaxed_capture relaxed(state->driver);
  const Driver* driver = state->driver;
  DeviceKernel* slot = &state->slots[device];
  void* function = nullptr;
  int64_t cluster[3];
  int max_shared = 0, static_shared = 0, code = 0;
  if (slot->shared_limit < 0) {
    code = driver->kernel_function(&function, state->kernel);
    if (code == 0 && driver->load_function != nullptr) code = driver->load_function(function);
    if (code == JITLOAD_CUDA_ERROR_NO_BINARY_FOR_GPU) return SetArchitectureError(state, device);
    if (code == 0 && jitload_declared_cluster(driver, state->kernel, device, cluster) > JITLOAD_PORTABLE_CLUSTER) {
      AllowLargeCluster(state, device);
    }
  }
  if (code == 0) code = jitload_shared_limit(driver, state->kernel, device, &max_shared, &static_shared);
  if (code != 0) return SetLaunchError(code, "%s: cannot be loaded on cuda:%d", state->name, device);
  int64_t limit = slot->shared_limit < 0 ? JITLOAD_DEFAULT_SHARED - static_shared : slot->shared_limit;
  if (bytes > limit || (slot->shared_limit < 0 && state->needs_max_shared)) {
    code = RaiseSharedLimit(state, device, bytes, max_shared, static_shared);
    if (code != 0) return code;
    limit = max_shared - static_shared;
  }
  __atomic_store_n(&slot->shared_limit, limit, __ATOMIC_RELEASE);
  return 0;
}

/* Load the kernel on the current device, and allow it `bytes` of dynamic shared memory. Return the driver's code. */
JITLOAD_LAUNCHER int Prepare(KernelState* state, int device, int64_t bytes) {
  if (state->driver->process != getpid() || !Lock()) {
    return SetLaunchError(JITLOAD_CUDA_ERROR_NOT_INITIALIZED, "%s: %s", state->name, kForked);
  }
  AdoptContext(state->driver);
  const int code = PrepareLocked(state, device, bytes);
  Unlock();
  return code;
}

/* Implements GetKernelWithMaxDynamicSharedMemory. Devices in use get the limit now, for callers that launch by handle;
 * others at their first launch. An amount that no device can provide is an error. */
JITLOAD_LAUNCHER int AllowMaxShared(KernelState* state, int64_t static_bytes, int64_t dynamic_bytes) {
  const Driver* driver = state->driver;
  int64_t largest_limit = -1;
  if (dynamic_bytes < -1 || static_bytes < 0) {
    return Raise("ValueError",
                 "GetKernelWithMaxDynamicSharedMemory: '%s' cannot have %lld bytes of shared memory; -1 means "
                 "the maximum",
                 state->name, static_cast<long long>(dynamic_bytes < -1 ? dynamic_bytes : static_bytes));
  }
  state->needs_max_shared = true;
  for (int device = 0; device < driver->devices; ++device) {
    unsigned flags = 0;
    int is_active = 0, max_shared = 0, static_shared = 0;
    driver->primary_state(device, &flags, &is_active);
    if (is_active ? jitload_shared_limit(driver, state->kernel, device, &max_shared, &static_shared)
                  : driver->device_attribute(&max_shared, JITLOAD_DEVICE_MAX_SHARED_OPTIN, device)) {
      continue; /* the cubin need not run on every GPU */
    }
    const int64_t limit = max_shared - (static_shared > static_bytes ? static_shared : static_bytes);
    if (limit > largest_limit) largest_limit = limit;
    if (!is_active) continue;
    const jitload_relaxed_capture relaxed(driver);
    driver->set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, max_shared - static_shared, state->kernel,
                                 device);
  }
  if (largest_limit < 0 || dynamic_bytes <= largest_limit) return 0;
  return Raise("ValueError",
               "GetKernelWithMaxDynamicSharedMemory: %lld bytes of dynamic shared memory requested for '%s', but no "
               "device here gives it more than %lld",
               static_cast<long long>(dynamic_bytes), state->name, static_cast<long long>(largest_limit));
}

}  // namespace v1
}  // namespace jitload
