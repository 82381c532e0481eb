/* Launches of the launcher: choosing the device, and calling the driver.
 *
 * With one GPU a launch costs one comparison in addition to the driver's call.
 */
#pragma once

#include "launcher_kernel.h"

namespace jitload {
inline namespace v1 {

/* ---- clusters -------------------------------------------------------------------------------------------------- */

/* Return the cluster among a launch's attributes, or NULL. */
JITLOAD_LAUNCHER const uint32_t* FindCluster(const jitload_cu_config* config) {
  for (uint32_t i = 0; i < config->attribute_count; ++i) {
    if (config->attributes[i].id == JITLOAD_LAUNCH_CLUSTER) return config->attributes[i].value.extent;
  }
  return nullptr;
}

JITLOAD_LAUNCHER uint64_t CountBlocks(const uint32_t* cluster) { return uint64_t{cluster[0]} * cluster[1] * cluster[2]; }

/* Format what is wrong with the cluster of a failed launch: the driver's errors name no limit. Without a cluster, the
 * text is empty. */
JITLOAD_LAUNCHER void FormatClusterError(const KernelState* state, const jitload_cu_config* config, char* text,
                                         size_t size) {
  const uint32_t* cluster = FindCluster(config);
  int count = 0;
  text[0] = 0;
  if (cluster == nullptr) return;
  const int used = snprintf(text, size, ", cluster (%u, %u, %u)", cluster[0], cluster[1], cluster[2]);
  for (int i = 0; i < 3; ++i) {
    if (cluster[i] != 0 && config->grid[i] % cluster[i] == 0) continue;
    snprintf(text + used, size - used, ": grid.%c is not a multiple of cluster.%c", "xyz"[i], "xyz"[i]);
    return;
  }
  const uint64_t blocks = CountBlocks(cluster);
  if (blocks <= JITLOAD_MAX_CLUSTER && state->driver->max_active_clusters(&count, state->kernel, config) == 0 && count > 0) return;
  const uint32_t limit = jitload_largest_cluster(state->driver, state->kernel, config, blocks - 1);
  if (limit != 0) snprintf(text + used, size - used, ": the limit is %u blocks in a cluster", limit);
}

/* ---- the device of a launch ------------------------------------------------------------------------------------ */

/* For a launch without a stream: the current device if a pointer belongs to it, otherwise the first pointer's
 * device. */
JITLOAD_LAUNCHER int DeviceOfPointers(const KernelState* state, void** args, int current) {
  enum { DEVICE_MEMORY = 2, MEMORY_TYPE = 2, ORDINAL = 9 };
  const Driver* driver = state->driver;
  int selected = current;
  if (args == nullptr || driver->pointer_attributes == nullptr) return current;
  for (uint32_t i = 0; i < state->pointer_count; ++i) {
    jitload_cu_address address = 0;
    unsigned type = 0;
    int ordinal = -1, attributes[] = {MEMORY_TYPE, ORDINAL};
    void* values[] = {&type, &ordinal};
    if (args[state->pointers[i]] != nullptr) memcpy(&address, args[state->pointers[i]], sizeof address);
    if (address == 0 || driver->pointer_attributes(2, attributes, values, address) != JITLOAD_CUDA_SUCCESS) continue;
    if (type != DEVICE_MEMORY || ordinal < 0 || ordinal >= driver->devices) continue;
    if (ordinal == current) return current;
    if (selected == current) selected = ordinal;
  }
  return selected;
}

/* With several devices: make the context of the stream, or of the pointers' device, current. Return whether
 * LeaveLaunchContext has to restore the previous context. */
JITLOAD_LAUNCHER bool EnterLaunchContext(const KernelState* state, void** args, jitload_cu_stream stream, int* device) {
  const Driver* driver = state->driver;
  jitload_cu_context current = nullptr, target = nullptr;
  if (driver->get_context(&current) == JITLOAD_CUDA_SUCCESS && current == nullptr && AdoptContext(driver)) {
    driver->get_context(&current);
  }
  driver->context_device(device);
  if (reinterpret_cast<uintptr_t>(stream) > 2) { /* 0, 1 and 2 are default streams, which every device has */
    if (driver->stream_context(stream, &target) != JITLOAD_CUDA_SUCCESS) return false;
  } else {
    const int owner = DeviceOfPointers(state, args, *device);
    if (owner == *device || PrimaryContext(driver, owner, &target) != JITLOAD_CUDA_SUCCESS) return false;
  }
  if (target == nullptr || target == current || driver->push_context(target) != JITLOAD_CUDA_SUCCESS) return false;
  driver->context_device(device);
  return true;
}

JITLOAD_LAUNCHER void LeaveLaunchContext(const KernelState* state, bool is_entered) {
  jitload_cu_context entered = nullptr;
  if (is_entered) state->driver->pop_context(&entered);
}

/* ---- the launch ------------------------------------------------------------------------------------------------ */

JITLOAD_LAUNCHER int CallDriver(const KernelState* state, void** args, const jitload_cu_config* config) {
  if (config->attribute_count != 0) return state->driver->launch_ex(config, state->kernel, args, nullptr);
  return state->driver->launch(state->kernel, config->grid[0], config->grid[1], config->grid[2], config->block[0],
                               config->block[1], config->block[2], config->shared_bytes, config->stream, args, nullptr);
}

JITLOAD_LAUNCHER int DescribeLaunchError(const KernelState* state, const jitload_cu_config* config, int device,
                                         int code) {
  if (code == JITLOAD_CUDA_ERROR_NOT_INITIALIZED && state->driver->process != getpid()) {
    return SetLaunchError(code, "%s: %s", state->name, kForked);
  }
  const uint32_t *grid = config->grid, *block = config->block;
  char cluster[160];
  FormatClusterError(state, config, cluster, sizeof cluster);
  return SetLaunchError(code,
                        "%.200s on cuda:%d, grid (%u, %u, %u), block (%u, %u, %u), %u bytes of dynamic shared memory%s",
                state->name, device, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared_bytes,
                        cluster);
}

JITLOAD_LAUNCHER int LaunchOnCurrentDevice(KernelState* state, void** args, const jitload_cu_config* config,
                                           int device) {
  int code = 0;
  const int64_t limit = __atomic_load_n(&state->slots[device].shared_limit, __ATOMIC_ACQUIRE);
  if (__builtin_expect(config->shared_bytes > limit, 0)) code = Prepare(state, device, config->shared_bytes);
  if (__builtin_expect(code != 0, 0)) return code;
  const uint32_t* cluster = FindCluster(config);
  if (cluster != nullptr && CountBlocks(cluster) > JITLOAD_PORTABLE_CLUSTER) AllowLargeCluster(state, device);
  code = CallDriver(state, args, config);
  if (__builtin_expect(code == JITLOAD_CUDA_ERROR_INVALID_CONTEXT, 0) && AdoptContext(state->driver))
    code = CallDriver(state, args, config);
  return __builtin_expect(code == 0, 1) ? 0 : DescribeLaunchError(state, config, device, code);
}

JITLOAD_LAUNCHER int LaunchKernel(KernelState* state, void** args, const jitload_cu_config* config) {
  if (__builtin_expect(state == nullptr, 0)) {
    return SetLaunchError(JITLOAD_CUDA_ERROR_INVALID_HANDLE, "the kernel was moved to another object");
  }
  if (state->driver->devices == 1) return LaunchOnCurrentDevice(state, args, config, 0);
  int device = 0;
  const bool is_entered = EnterLaunchContext(state, args, config->stream, &device);
  const int code = LaunchOnCurrentDevice(state, args, config, device);
  LeaveLaunchContext(state, is_entered);
  return code;
}

}  // namespace v1
}  // namespace jitload
