/* A kernel of the C++ launcher on each of the devices, and the launch itself.
 *
 * Nothing is done for a device before the first launch there. A usual launch on a machine with one GPU is one
 * comparison and the driver's own call; with several it looks first where the launch belongs.
 */
#ifndef JITLOAD_KERNEL_STATE_H_
#define JITLOAD_KERNEL_STATE_H_

#include <memory>
#include <vector>

#include "driver_table.h"

namespace jitload {
inline namespace v1 {

/* A kernel on one device. */
struct KernelSlot {
  int64_t allowed = -1; /* dynamic shared memory that may be asked for right now; -1: not loaded there yet */
  uint32_t checked_cluster[7] = {}; /* what CheckCluster found possible last */
};

struct KernelState {
  const Driver* driver = nullptr;
  jitload_cu_kernel kernel = nullptr;
  std::string name;
  int capability = 0;             /* of the cubin, 90 for sm_90; 0 where that is not known */
  bool wants_most_shared = false; /* raise the limit at the first launch on a device */
  std::vector<uint32_t> pointers; /* parameters that may be pointers; only with several devices */
  std::unique_ptr<KernelSlot[]> slots;
};

/* Parameters of eight bytes; a driver before 12.4 does not tell. */
JITLOAD_COLD inline void FindPointers(KernelState* state) {
  const Driver& driver = *state->driver;
  size_t offset = 0, size = 0;
  if (driver.devices < 2 || driver.param_info == nullptr) return;
  for (uint32_t i = 0; driver.param_info(state->kernel, i, &offset, &size) == JITLOAD_CUDA_SUCCESS; ++i) {
    if (size == sizeof(void*)) state->pointers.push_back(i);
  }
}

JITLOAD_COLD inline std::unique_ptr<KernelState> MakeKernelState(jitload_cu_library library, const char* name,
                                                                 int capability, const char* known) {
  if (name == nullptr) ThrowRuntimeError("the name of the kernel is a null pointer");
  const Driver& driver = GetDriver();
  auto state = std::make_unique<KernelState>();
  state->driver = &driver;
  state->name = name;
  state->capability = capability;
  state->slots = std::make_unique<KernelSlot[]>(static_cast<size_t>(driver.devices));
  RelaxedCapture relaxed(driver);
  const int code = driver.library_kernel(&state->kernel, library, name);
  if (code == JITLOAD_CUDA_ERROR_NOT_FOUND) {
    const std::string has = known != nullptr && *known != 0 ? std::string("; it has: ") + known : "";
    ThrowRuntimeError(std::string("the cubin has no kernel named '") + name + "'" + has);
  }
  ThrowIfFailed((std::string("cannot get kernel '") + name + "'").c_str(), code);
  FindPointers(state.get());
  return state;
}

/* ---- what a launch needs once on a device ---------------------------------------------------------------------- */

enum { kDefaultShared = 48 * 1024, kInvalidValue = 1, kInvalidContext = 201, kNoBinary = 209, kInvalidHandle = 400 };

/* Keep the words for a launch that is refused, and return its code. */
__attribute__((format(printf, 2, 3))) JITLOAD_COLD inline int Refuse(int code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_refusal.text, sizeof last_refusal.text, format, values);
  va_end(values);
  last_refusal.code = code;
  return code;
}

JITLOAD_COLD inline int RefuseArchitecture(const KernelState& state, int device) {
  int major = 0, minor = 0;
  state.driver->device_attribute(&major, JITLOAD_DEVICE_MAJOR, device);
  state.driver->device_attribute(&minor, JITLOAD_DEVICE_MINOR, device);
  return Refuse(kNoBinary, "%s: the cubin holds code for sm_%d, and cuda:%d is sm_%d%d", state.name.c_str(),
                state.capability, device, major, minor);
}

/* The most dynamic shared memory that a block of the kernel can have on a device. */
JITLOAD_COLD inline int ReadSharedLimit(const KernelState& state, int device, int* most, int* fixed) {
  const Driver& driver = *state.driver;
  const int code = driver.device_attribute(most, JITLOAD_DEVICE_MAX_SHARED_OPTIN, device);
  if (code != JITLOAD_CUDA_SUCCESS) return code;
  return driver.kernel_attribute(fixed, JITLOAD_FUNCTION_STATIC_SHARED, state.kernel, device);
}

/* Load the kernel on the current device, and raise its limit of shared memory where that is asked for. Returns the
 * driver's code. The limit goes to the most there is: it is only a ceiling, and is never lowered. */
JITLOAD_COLD inline int Prepare(KernelState* state, int device, int64_t wanted) {
  const Driver& driver = *state->driver;
  if (driver.process != getpid()) return Refuse(JITLOAD_CUDA_ERROR_NOT_INITIALIZED, "%s: %s", state->name.c_str(), kForked);
  AdoptContext(driver);
  Lock lock;
  RelaxedCapture relaxed(driver);
  KernelSlot& slot = state->slots[device];
  void* function = nullptr;
  int most = 0, fixed = 0;
  int code = slot.allowed < 0 ? driver.kernel_function(&function, state->kernel) : 0;
  if (code == 0 && slot.allowed < 0 && driver.load_function != nullptr) code = driver.load_function(function);
  if (code == kNoBinary && state->capability != 0) return RefuseArchitecture(*state, device);
  if (code == 0) code = ReadSharedLimit(*state, device, &most, &fixed);
  if (code != 0) return Refuse(code, "%s: cannot be loaded on cuda:%d", state->name.c_str(), device);
  int64_t allowed = slot.allowed < 0 ? kDefaultShared - fixed : slot.allowed;
  if (wanted > allowed || state->wants_most_shared) {
    if (wanted > most - fixed) {
      return Refuse(kInvalidValue,
                    "%s: %lld bytes of dynamic shared memory asked for, but cuda:%d gives a block at most %d bytes, and "
                    "the kernel's own static shared memory takes %d of them",
                    state->name.c_str(), static_cast<long long>(wanted), device, most, fixed);
    }
    code = driver.set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, most - fixed, state->kernel, device);
    if (code != 0) return Refuse(code, "%s: cannot raise the shared memory limit on cuda:%d", state->name.c_str(), device);
    allowed = most - fixed;
  }
  __atomic_store_n(&slot.allowed, allowed, __ATOMIC_RELEASE);
  return JITLOAD_CUDA_SUCCESS;
}

/* GetKernelWithMaxDynamicSharedMemory: at once on the devices in use, for who launches by the handle; on others at
 * their first launch. An amount that no device here can give is an error now. */
JITLOAD_COLD inline void AllowMostShared(KernelState* state, int64_t static_bytes, int64_t wanted) {
  const Driver& driver = *state->driver;
  if (wanted < -1 || static_bytes < 0) {
    ThrowValueError(Format("GetKernelWithMaxDynamicSharedMemory: bytes of shared memory must not be negative (-1 means "
                           "the most there is), got %lld", static_cast<long long>(wanted < -1 ? wanted : static_bytes)));
  }
  state->wants_most_shared = true;
  int64_t best = -1;
  for (int device = 0; device < driver.devices; ++device) {
    unsigned flags = 0;
    int is_active = 0, most = 0, fixed = 0;
    driver.primary_state(device, &flags, &is_active);
    const int code = is_active ? ReadSharedLimit(*state, device, &most, &fixed)
                               : driver.device_attribute(&most, JITLOAD_DEVICE_MAX_SHARED_OPTIN, device);
    if (code != JITLOAD_CUDA_SUCCESS) continue; /* not every GPU here need suit the cubin */
    const int64_t dynamic = most - (fixed > static_bytes ? fixed : static_bytes);
    if (dynamic > best) best = dynamic;
    if (!is_active) continue;
    RelaxedCapture relaxed(driver);
    driver.set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, most - fixed, state->kernel, device);
  }
  if (best >= 0 && wanted > best) {
    ThrowValueError(Format("GetKernelWithMaxDynamicSharedMemory: %lld bytes of dynamic shared memory asked for '%s', but no "
                           "device here gives it more than %lld", static_cast<long long>(wanted), state->name.c_str(),
                           static_cast<long long>(best)));
  }
}

/* ---- where a launch belongs ------------------------------------------------------------------------------------ */

/* Without a stream the pointers tell: the current device if one of them is there, else the first one's. */
JITLOAD_HIDDEN inline int DeviceOfPointers(const KernelState& state, void** args, int current) {
  enum { DEVICE_MEMORY = 2, MEMORY_TYPE = 2, ORDINAL = 9 };
  int found = current;
  if (args == nullptr || state.driver->pointer_attributes == nullptr) return current;
  for (uint32_t i : state.pointers) {
    jitload_cu_address address = 0;
    unsigned type = 0;
    int ordinal = -1, wanted[] = {MEMORY_TYPE, ORDINAL};
    void* values[] = {&type, &ordinal};
    if (args[i] != nullptr) memcpy(&address, args[i], sizeof address);
    if (address == 0 || state.driver->pointer_attributes(2, wanted, values, address) != JITLOAD_CUDA_SUCCESS) continue;
    if (type != DEVICE_MEMORY || ordinal < 0 || ordinal >= state.driver->devices) continue;
    if (ordinal == current) return current;
    if (found == current) found = ordinal;
  }
  return found;
}

/* Makes the context current in which the launch belongs, where it is not; the destructor takes it away again. */
class LaunchPlace {
 public:
  LaunchPlace(const KernelState& state, void** args, jitload_cu_stream stream) : driver_(*state.driver) {
    jitload_cu_context current = nullptr, target = nullptr;
    if (driver_.devices < 2) return;
    AdoptContextIfNone(&current);
    driver_.context_device(&device_);
    if (reinterpret_cast<uintptr_t>(stream) > 2) { /* 0, 1 and 2 are the default streams of any device */
      if (driver_.stream_context(stream, &target) != JITLOAD_CUDA_SUCCESS) target = nullptr;
    } else if (const int owner = DeviceOfPointers(state, args, device_); owner != device_) {
      if (PrimaryContext(driver_, owner, &target) != JITLOAD_CUDA_SUCCESS) target = nullptr;
    }
    if (target == nullptr || target == current) return;
    is_entered_ = driver_.push_context(target) == JITLOAD_CUDA_SUCCESS;
    if (is_entered_) driver_.context_device(&device_);
  }
  ~LaunchPlace() {
    jitload_cu_context entered = nullptr;
    if (is_entered_) driver_.pop_context(&entered);
  }
  LaunchPlace(const LaunchPlace&) = delete;
  LaunchPlace& operator=(const LaunchPlace&) = delete;
  int device() const { return device_; }

 private:
  void AdoptContextIfNone(jitload_cu_context* current) {
    driver_.get_context(current);
    if (*current == nullptr && AdoptContext(driver_)) driver_.get_context(current);
  }
  const Driver& driver_;
  int device_ = 0;
  bool is_entered_ = false;
};

JITLOAD_HIDDEN inline int CallDriver(const KernelState& state, void** args, const jitload_cu_config& config) {
  if (config.attribute_count != 0) return state.driver->launch_ex(&config, state.kernel, args, nullptr);
  return state.driver->launch(state.kernel, config.grid[0], config.grid[1], config.grid[2], config.block[0],
                              config.block[1], config.block[2], config.shared_bytes, config.stream, args, nullptr);
}

JITLOAD_COLD inline int RefuseLaunch(const KernelState& state, const jitload_cu_config& config, int device, int code) {
  if (code == JITLOAD_CUDA_ERROR_NOT_INITIALIZED && state.driver->process != getpid()) {
    return Refuse(code, "%s: %s", state.name.c_str(), kForked);
  }
  const uint32_t *grid = config.grid, *block = config.block;
  return Refuse(code, "%s on cuda:%d, grid (%u, %u, %u), block (%u, %u, %u), %u bytes of dynamic shared memory",
                state.name.c_str(), device, grid[0], grid[1], grid[2], block[0], block[1], block[2], config.shared_bytes);
}

/* Launch, and return the driver's code. The driver keeps nothing of a launch that it refused. */
JITLOAD_HIDDEN inline int LaunchKernel(KernelState* state, void** args, const jitload_cu_config& config) {
  if (__builtin_expect(state == nullptr, 0)) return Refuse(kInvalidHandle, "%s", "the kernel was moved to another one");
  const LaunchPlace place(*state, args, config.stream);
  const int device = place.device();
  if (__builtin_expect(config.shared_bytes > __atomic_load_n(&state->slots[device].allowed, __ATOMIC_ACQUIRE), 0)) {
    const int code = Prepare(state, device, config.shared_bytes);
    if (code != JITLOAD_CUDA_SUCCESS) return code;
  }
  int code = CallDriver(*state, args, config);
  if (__builtin_expect(code == kInvalidContext, 0) && AdoptContext(*state->driver)) code = CallDriver(*state, args, config);
  return __builtin_expect(code == JITLOAD_CUDA_SUCCESS, 1) ? code : RefuseLaunch(*state, config, device, code);
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_KERNEL_STATE_H_ */
