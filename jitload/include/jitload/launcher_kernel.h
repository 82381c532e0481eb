/* A kernel of the launcher on each of the devices, and the launch itself.
 *
 * Nothing is done for a device before the first launch there. A usual launch on a machine with one GPU is one
 * comparison and the driver's own call; with several it looks first where the launch belongs.
 */
#ifndef JITLOAD_LAUNCHER_KERNEL_H_
#define JITLOAD_LAUNCHER_KERNEL_H_

#include "launcher_image.h"

namespace jitload {
inline namespace v1 {

enum { kDefaultShared = 48 * 1024 };

/* A kernel on one device. */
struct KernelSlot {
  int64_t allowed;     /* dynamic shared memory that may be asked for right now; -1: not loaded there yet */
  uint32_t checked[7]; /* the cluster, block and shared memory that CheckCluster found possible last */
};

struct KernelState {
  const Driver* driver;
  jitload_cu_kernel kernel;
  char* name;
  KernelSlot* slots;  /* by device */
  uint32_t* pointers; /* numbers of the parameters that may be pointers; only with several devices */
  uint32_t pointer_count;
  int capability;
  bool wants_most_shared; /* raise the limit at the first launch on a device */
};

JITLOAD_LAUNCHER jitload_cu_kernel HandleOf(const KernelState* state) {
  return state != nullptr ? state->kernel : nullptr;
}

JITLOAD_LAUNCHER void FreeKernel(KernelState* state) {
  if (state == nullptr) return;
  free(state->name);
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
  const char* parts[] = {"the cubin has no kernel named '", name, "'", library->kernels ? "; it has: " : "",
                         library->kernels ? library->kernels : ""};
  TVMFFIErrorSetRaisedFromCStrParts("RuntimeError", parts, 5);
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
  const int code = name != nullptr ? driver->library_kernel(&kernel, library->handle, name) : kInvalidValue;
  if (code != JITLOAD_CUDA_SUCCESS) {
    if (code == JITLOAD_CUDA_ERROR_NOT_FOUND)
      RaiseNoKernel(library, name);
    else
      RaiseCode("cannot get a kernel from the cubin", code);
    return nullptr;
  }
  KernelState* state = static_cast<KernelState*>(calloc(1, sizeof *state));
  if (state != nullptr) {
    state->driver = driver;
    state->kernel = kernel;
    state->capability = library->capability;
    state->name = strdup(name);
    state->slots = static_cast<KernelSlot*>(calloc(static_cast<size_t>(driver->devices), sizeof(KernelSlot)));
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

JITLOAD_LAUNCHER int RefuseArchitecture(const KernelState* state, int device) {
  int major = 0, minor = 0;
  state->driver->device_attribute(&major, JITLOAD_DEVICE_MAJOR, device);
  state->driver->device_attribute(&minor, JITLOAD_DEVICE_MINOR, device);
  return Refuse(kNoBinary, "%s: the cubin holds code for sm_%d, and cuda:%d is sm_%d%d", state->name, state->capability,
                device, major, minor);
}

/* The most shared memory that a device gives a block, and the kernel's own static part of it. */
JITLOAD_LAUNCHER int ReadSharedLimit(const KernelState* state, int device, int* most, int* fixed) {
  const int code = state->driver->device_attribute(most, JITLOAD_DEVICE_MAX_SHARED_OPTIN, device);
  if (code != JITLOAD_CUDA_SUCCESS) return code;
  return state->driver->kernel_attribute(fixed, JITLOAD_FUNCTION_STATIC_SHARED, state->kernel, device);
}

/* Raise the limit to the most there is: it is only a ceiling, and is never lowered. */
JITLOAD_LAUNCHER int RaiseShared(KernelState* state, int device, int64_t wanted, int most, int fixed) {
  if (wanted > most - fixed) {
    return Refuse(
        kInvalidValue,
        "%s: %lld bytes of dynamic shared memory asked for, but cuda:%d gives a block at most %d bytes, and the "
        "kernel's own static shared memory takes %d of them",
        state->name, static_cast<long long>(wanted), device, most, fixed);
  }
  const int code =
      state->driver->set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, most - fixed, state->kernel, device);
  return code == 0 ? 0 : Refuse(code, "%s: cannot raise the shared memory limit on cuda:%d", state->name, device);
}

/* The caller holds the lock, and has the device's context and relaxed capture. */
JITLOAD_LAUNCHER int PrepareLocked(KernelState* state, int device, int64_t wanted) {
  const Driver* driver = state->driver;
  KernelSlot* slot = &state->slots[device];
  void* function = nullptr;
  int most = 0, fixed = 0, code = 0;
  if (slot->allowed < 0) {
    code = driver->kernel_function(&function, state->kernel);
    if (code == 0 && driver->load_function != nullptr) code = driver->load_function(function);
    if (code == kNoBinary && state->capability != 0) return RefuseArchitecture(state, device);
  }
  if (code == 0) code = ReadSharedLimit(state, device, &most, &fixed);
  if (code != 0) return Refuse(code, "%s: cannot be loaded on cuda:%d", state->name, device);
  int64_t allowed = slot->allowed < 0 ? kDefaultShared - fixed : slot->allowed;
  if (wanted > allowed || (slot->allowed < 0 && state->wants_most_shared)) {
    code = RaiseShared(state, device, wanted, most, fixed);
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
  if (driver->process != getpid()) return Refuse(JITLOAD_CUDA_ERROR_NOT_INITIALIZED, "%s: %s", state->name, kForked);
  AdoptContext(driver);
  pthread_mutex_lock(&launcher_lock);
  driver->exchange_capture_mode(&mode);
  const int code = PrepareLocked(state, device, wanted);
  driver->exchange_capture_mode(&mode);
  pthread_mutex_unlock(&launcher_lock);
  return code;
}

/* GetKernelWithMaxDynamicSharedMemory: at once on the devices in use, for who launches by the handle; on others at
 * their first launch. An amount that no device here can give is an error now. */
JITLOAD_LAUNCHER int AllowMostShared(KernelState* state, int64_t static_bytes, int64_t wanted) {
  const Driver* driver = state->driver;
  int64_t best = -1;
  if (wanted < -1 || static_bytes < 0) {
    return Raise("ValueError",
                 "GetKernelWithMaxDynamicSharedMemory: '%s' cannot have %lld bytes of shared memory; -1 means "
                 "the most there is",
                 state->name, static_cast<long long>(wanted < -1 ? wanted : static_bytes));
  }
  state->wants_most_shared = true;
  for (int device = 0; device < driver->devices; ++device) {
    unsigned flags = 0;
    int is_active = 0, most = 0, fixed = 0, mode = JITLOAD_CAPTURE_RELAXED;
    driver->primary_state(device, &flags, &is_active);
    if (is_active ? ReadSharedLimit(state, device, &most, &fixed)
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
               "GetKernelWithMaxDynamicSharedMemory: %lld bytes of dynamic shared memory asked for '%s', but no "
               "device here gives it more than %lld",
               static_cast<long long>(wanted), state->name, static_cast<long long>(best));
}

/* ---- where a launch belongs ------------------------------------------------------------------------------------ */

/* Without a stream the pointers tell: the current device if one of them is there, else the first one's. */
JITLOAD_LAUNCHER int DeviceOfPointers(const KernelState* state, void** args, int current) {
  enum { DEVICE_MEMORY = 2, MEMORY_TYPE = 2, ORDINAL = 9 };
  const Driver* driver = state->driver;
  int found = current;
  if (args == nullptr || driver->pointer_attributes == nullptr) return current;
  for (uint32_t i = 0; i < state->pointer_count; ++i) {
    jitload_cu_address address = 0;
    unsigned type = 0;
    int ordinal = -1, wanted[] = {MEMORY_TYPE, ORDINAL};
    void* values[] = {&type, &ordinal};
    if (args[state->pointers[i]] != nullptr) memcpy(&address, args[state->pointers[i]], sizeof address);
    if (address == 0 || driver->pointer_attributes(2, wanted, values, address) != JITLOAD_CUDA_SUCCESS) continue;
    if (type != DEVICE_MEMORY || ordinal < 0 || ordinal >= driver->devices) continue;
    if (ordinal == current) return current;
    if (found == current) found = ordinal;
  }
  return found;
}

/* With several devices: make the context current in which the launch belongs, where it is not. Returns whether that
 * has to be undone. */
JITLOAD_LAUNCHER bool EnterPlace(const KernelState* state, void** args, jitload_cu_stream stream, int* device) {
  const Driver* driver = state->driver;
  jitload_cu_context current = nullptr, target = nullptr;
  if (driver->get_context(&current) == JITLOAD_CUDA_SUCCESS && current == nullptr && AdoptContext(driver)) {
    driver->get_context(&current);
  }
  driver->context_device(device);
  if (reinterpret_cast<uintptr_t>(stream) > 2) { /* 0, 1 and 2 are the default streams of any device */
    if (driver->stream_context(stream, &target) != JITLOAD_CUDA_SUCCESS) return false;
  } else {
    const int owner = DeviceOfPointers(state, args, *device);
    if (owner == *device || PrimaryContext(driver, owner, &target) != JITLOAD_CUDA_SUCCESS) return false;
  }
  if (target == nullptr || target == current || driver->push_context(target) != JITLOAD_CUDA_SUCCESS) return false;
  driver->context_device(device);
  return true;
}

JITLOAD_LAUNCHER void LeavePlace(const KernelState* state, bool is_entered) {
  jitload_cu_context entered = nullptr;
  if (is_entered) state->driver->pop_context(&entered);
}

/* ---- the launch ------------------------------------------------------------------------------------------------ */

JITLOAD_LAUNCHER int CallDriver(const KernelState* state, void** args, const jitload_cu_config* config) {
  if (config->attribute_count != 0) return state->driver->launch_ex(config, state->kernel, args, nullptr);
  return state->driver->launch(state->kernel, config->grid[0], config->grid[1], config->grid[2], config->block[0],
                               config->block[1], config->block[2], config->shared_bytes, config->stream, args, nullptr);
}

JITLOAD_LAUNCHER int RefuseLaunch(const KernelState* state, const jitload_cu_config* config, int device, int code) {
  if (code == JITLOAD_CUDA_ERROR_NOT_INITIALIZED && state->driver->process != getpid()) {
    return Refuse(code, "%s: %s", state->name, kForked);
  }
  const uint32_t *grid = config->grid, *block = config->block;
  return Refuse(code, "%s on cuda:%d, grid (%u, %u, %u), block (%u, %u, %u), %u bytes of dynamic shared memory",
                state->name, device, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared_bytes);
}

JITLOAD_LAUNCHER int LaunchHere(KernelState* state, void** args, const jitload_cu_config* config, int device) {
  int code = 0;
  const int64_t allowed = __atomic_load_n(&state->slots[device].allowed, __ATOMIC_ACQUIRE);
  if (__builtin_expect(config->shared_bytes > allowed, 0)) code = Prepare(state, device, config->shared_bytes);
  if (__builtin_expect(code != 0, 0)) return code;
  code = CallDriver(state, args, config);
  if (__builtin_expect(code == kInvalidContext, 0) && AdoptContext(state->driver))
    code = CallDriver(state, args, config);
  return __builtin_expect(code == 0, 1) ? 0 : RefuseLaunch(state, config, device, code);
}

JITLOAD_LAUNCHER int LaunchKernel(KernelState* state, void** args, const jitload_cu_config* config) {
  if (__builtin_expect(state == nullptr, 0)) return Refuse(kInvalidHandle, "the kernel was moved to another object");
  if (state->driver->devices == 1) return LaunchHere(state, args, config, 0);
  int device = 0;
  const bool is_entered = EnterPlace(state, args, config->stream, &device);
  const int code = LaunchHere(state, args, config, device);
  LeavePlace(state, is_entered);
  return code;
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCHER_KERNEL_H_ */
