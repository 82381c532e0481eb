/* A kernel of the launcher, and what it needs once on each of the devices: nothing before the first launch there. */
#ifndef JITLOAD_LAUNCHER_KERNEL_H_
#define JITLOAD_LAUNCHER_KERNEL_H_

#include "launcher_image.h"

namespace jitload {
inline namespace v1 {

/* A kernel on one device. */
struct DeviceKernel {
  int64_t allowed;     /* dynamic shared memory that may be asked for right now; -1: not loaded there yet */
  uint32_t checked[7]; /* the cluster, block and shared memory that CheckCluster found possible last */
  bool allows_large_cluster;
};

struct KernelState {
  const Driver* driver;
  jitload_cu_kernel kernel;
  char* name;
  DeviceKernel* slots;  /* by device */
  uint32_t* pointers; /* numbers of the parameters that may be pointers; only with several devices */
  uint32_t pointer_count;
  int capability;
  char* images;           /* of a fatbin */
  bool needs_max_shared; /* raise the limit at the first launch on a device */
};

JITLOAD_LAUNCHER jitload_cu_kernel GetKernelHandle(const KernelState* state) {
  return state != nullptr ? state->kernel : nullptr;
}

JITLOAD_LAUNCHER void FreeKernel(KernelState* state) {
  if (state == nullptr) return;
  free(state->name);
  free(state->images);
  free(state->slots);
  free(state->pointers);
  free(state);
}

/* Parameters of eight bytes; a driver before 12.4 does not tell. */
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

JITLOAD_LAUNCHER int RaiseNoKernel(const Library* library, const char* name) {
  const bool is_fatbin = library->images != nullptr; /* it may have the kernel, and for no device here */
  const char* parts[] = {is_fatbin ? "the fatbin with code for " : "the cubin", is_fatbin ? library->images : "",
                         " has no kernel named '", name, "'", library->kernels ? "; it has: " : "",
                         library->kernels ? library->kernels : ""};
  TVMFFIErrorSetRaisedFromCStrParts("RuntimeError", parts, 7);
  return -1;
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
    const char* what = "cannot get a kernel from the cubin";
    if (library->images != nullptr) what = "the fatbin has no kernel for a device here";
    if (code == JITLOAD_CUDA_ERROR_NOT_FOUND)
      RaiseNoKernel(library, name);
    else
      RaiseCode(what, code);
    return nullptr;
  }
  KernelState* state = static_cast<KernelState*>(calloc(1, sizeof *state));
  if (state != nullptr) {
    state->driver = driver;
    state->kernel = kernel;
    state->capability = library->capability;
    state->images = library->images != nullptr ? strdup(library->images) : nullptr;
    state->name = strdup(name);
    state->slots = static_cast<DeviceKernel*>(calloc(static_cast<size_t>(driver->devices), sizeof(DeviceKernel)));
  }
  if (state == nullptr || state->name == nullptr || state->slots == nullptr) {
    FreeKernel(state);
    Raise("MemoryError", "out of memory");
    return nullptr;
  }
  for (int device = 0; device < driver->devices; ++device) state->slots[device].allowed = -1;
  FindPointers(state);
  return state;
}

/* ---- what a launch needs once on a device ---------------------------------------------------------------------- */

JITLOAD_LAUNCHER int SetArchitectureError(const KernelState* state, int device) {
  int major = 0, minor = 0;
  state->driver->device_attribute(&major, JITLOAD_DEVICE_MAJOR, device);
  state->driver->device_attribute(&minor, JITLOAD_DEVICE_MINOR, device);
  if (state->images != nullptr) {
    return SetLaunchError(JITLOAD_CUDA_ERROR_NO_BINARY_FOR_GPU, "%s: the fatbin holds code for %s, and cuda:%d is sm_%d%d",
                  state->name, state->images, device, major, minor);
  }
  return SetLaunchError(JITLOAD_CUDA_ERROR_NO_BINARY_FOR_GPU, "%s: the cubin holds code for sm_%d, and cuda:%d is sm_%d%d",
                state->name, state->capability, device, major, minor);
}

/* Raise the limit to the most there is: it is only a ceiling, and is never lowered. */
JITLOAD_LAUNCHER int RaiseSharedLimit(KernelState* state, int device, int64_t wanted, int most, int fixed) {
  if (wanted > most - fixed) {
    return SetLaunchError(JITLOAD_CUDA_ERROR_INVALID_VALUE, "%s: " JITLOAD_TOO_MUCH_SHARED, state->name,
                  static_cast<long long>(wanted), device, most, fixed);
  }
  const int code =
      state->driver->set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, most - fixed, state->kernel, device);
  return code == 0 ? 0 : SetLaunchError(code, "%s: cannot raise the shared memory limit on cuda:%d", state->name, device);
}

/* Allow clusters over the portable size of 8 blocks, which the driver refuses otherwise. Once for a device: setting an
 * attribute takes a lock of the driver's. */
JITLOAD_LAUNCHER void AllowLargeCluster(KernelState* state, int device) {
  int mode = JITLOAD_CAPTURE_RELAXED;
  if (__atomic_load_n(&state->slots[device].allows_large_cluster, __ATOMIC_ACQUIRE)) return;
  state->driver->exchange_capture_mode(&mode);
  state->driver->set_kernel_attribute(JITLOAD_FUNCTION_NON_PORTABLE_CLUSTER, 1, state->kernel, device);
  state->driver->exchange_capture_mode(&mode);
  __atomic_store_n(&state->slots[device].allows_large_cluster, true, __ATOMIC_RELEASE);
}

/* A kernel that was compiled for a cluster, `__cluster_dims__`. */
JITLOAD_LAUNCHER void AllowDeclaredCluster(KernelState* state, int device) {
  const int64_t blocks = jitload_declared_cluster_size(state->driver, state->kernel, device);
  if (blocks > JITLOAD_PORTABLE_CLUSTER) AllowLargeCluster(state, device);
}

/* The caller holds the lock, and has the device's context and relaxed capture. */
JITLOAD_LAUNCHER int PrepareLocked(KernelState* state, int device, int64_t wanted) {
  const Driver* driver = state->driver;
  DeviceKernel* slot = &state->slots[device];
  void* function = nullptr;
  int most = 0, fixed = 0, code = 0;
  if (slot->allowed < 0) {
    code = driver->kernel_function(&function, state->kernel);
    if (code == 0 && driver->load_function != nullptr) code = driver->load_function(function);
    if (code == JITLOAD_CUDA_ERROR_NO_BINARY_FOR_GPU && (state->capability != 0 || state->images)) {
      return SetArchitectureError(state, device);
    }
    if (code == 0) AllowDeclaredCluster(state, device);
  }
  if (code == 0) code = jitload_shared_limit(driver, state->kernel, device, &most, &fixed);
  if (code != 0) return SetLaunchError(code, "%s: cannot be loaded on cuda:%d", state->name, device);
  int64_t allowed = slot->allowed < 0 ? JITLOAD_DEFAULT_SHARED - fixed : slot->allowed;
  if (wanted > allowed || (slot->allowed < 0 && state->needs_max_shared)) {
    code = RaiseSharedLimit(state, device, wanted, most, fixed);
    if (code != 0) return code;
    allowed = most - fixed;
  }
  __atomic_store_n(&slot->allowed, allowed, __ATOMIC_RELEASE);
  return 0;
}

/* Load the kernel on the current device, and allow it so much dynamic shared memory. Returns the driver's code. */
JITLOAD_LAUNCHER int Prepare(KernelState* state, int device, int64_t wanted) {
  const Driver* driver = state->driver;
  int mode = JITLOAD_CAPTURE_RELAXED;
  if (driver->process != getpid() || !Lock()) {
    return SetLaunchError(JITLOAD_CUDA_ERROR_NOT_INITIALIZED, "%s: %s", state->name, kForked);
  }
  AdoptContext(driver);
  driver->exchange_capture_mode(&mode);
  const int code = PrepareLocked(state, device, wanted);
  driver->exchange_capture_mode(&mode);
  Unlock();
  return code;
}

/* GetKernelWithMaxDynamicSharedMemory: at once on the devices in use, for who launches by the handle; on others at
 * their first launch. An amount that no device here can give is an error now. */
JITLOAD_LAUNCHER int AllowMaxShared(KernelState* state, int64_t static_bytes, int64_t wanted) {
  const Driver* driver = state->driver;
  int64_t best = -1;
  if (wanted < -1 || static_bytes < 0) {
    return Raise("ValueError",
                 "GetKernelWithMaxDynamicSharedMemory: '%s' cannot have %lld bytes of shared memory; -1 means "
                 "the maximum",
                 state->name, static_cast<long long>(wanted < -1 ? wanted : static_bytes));
  }
  state->needs_max_shared = true;
  for (int device = 0; device < driver->devices; ++device) {
    unsigned flags = 0;
    int is_active = 0, most = 0, fixed = 0, mode = JITLOAD_CAPTURE_RELAXED;
    driver->primary_state(device, &flags, &is_active);
    if (is_active ? jitload_shared_limit(driver, state->kernel, device, &most, &fixed)
                  : driver->device_attribute(&most, JITLOAD_DEVICE_MAX_SHARED_OPTIN, device)) {
      continue; /* not every GPU here need suit the cubin */
    }
    const int64_t dynamic = most - (fixed > static_bytes ? fixed : static_bytes);
    if (dynamic > best) best = dynamic;
    if (!is_active) continue;
    driver->exchange_capture_mode(&mode);
    driver->set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, most - fixed, state->kernel, device);
    driver->exchange_capture_mode(&mode);
  }
  if (best < 0 || wanted <= best) return 0;
  return Raise("ValueError",
               "GetKernelWithMaxDynamicSharedMemory: %lld bytes of dynamic shared memory requested for '%s', but no "
               "device here gives it more than %lld",
               static_cast<long long>(wanted), state->name, static_cast<long long>(best));
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCHER_KERNEL_H_ */
