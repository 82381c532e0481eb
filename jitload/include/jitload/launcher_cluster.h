/* Whether a kernel's cluster is possible, asked before the launch: the driver's own refusal names no limit. */
#ifndef JITLOAD_LAUNCHER_CLUSTER_H_
#define JITLOAD_LAUNCHER_CLUSTER_H_

#include "launcher_kernel.h"

namespace jitload {
inline namespace v1 {

/* The largest cluster, as (n, 1, 1), that the device can hold with this block and shared memory. */
JITLOAD_LAUNCHER uint32_t LargestCluster(const KernelState* state, const jitload_cu_config* config, uint32_t below) {
  jitload_cu_attribute attribute = {JITLOAD_LAUNCH_CLUSTER, 0, {}};
  jitload_cu_config probe = *config;
  probe.attributes = &attribute;
  probe.attribute_count = 1;
  for (uint32_t size = below - 1; size > 0; --size) {
    int count = 0;
    attribute.value.extent[0] = probe.grid[0] = size;
    attribute.value.extent[1] = attribute.value.extent[2] = probe.grid[1] = probe.grid[2] = 1;
    if (state->driver->max_active_clusters(&count, state->kernel, &probe) == JITLOAD_CUDA_SUCCESS && count > 0)
      return size;
  }
  return 0;
}

/* Clusters over the portable size of 8 must be allowed; whether one can be scheduled, the driver is asked once. */
JITLOAD_LAUNCHER int CheckClusterHere(KernelState* state, const jitload_cu_config* config, const uint32_t* cluster,
                                      int device) {
  const uint64_t largest = 33; /* no device has clusters of more than 16 blocks yet */
  const Driver* driver = state->driver;
  KernelSlot* slot = &state->slots[device];
  const uint32_t wanted[7] = {cluster[0],       cluster[1],       cluster[2],          config->block[0],
                              config->block[1], config->block[2], config->shared_bytes};
  int code = 0, count = 0, mode = JITLOAD_CAPTURE_RELAXED;
  if (config->shared_bytes > __atomic_load_n(&slot->allowed, __ATOMIC_ACQUIRE))
    code = Prepare(state, device, config->shared_bytes);
  if (code != 0) return RaiseCode("cannot launch", code);
  pthread_mutex_lock(&launcher_lock);
  const bool is_known = memcmp(slot->checked, wanted, sizeof wanted) == 0;
  pthread_mutex_unlock(&launcher_lock);
  if (is_known) return 0;
  driver->exchange_capture_mode(&mode);
  driver->set_kernel_attribute(JITLOAD_FUNCTION_NON_PORTABLE_CLUSTER, 1, state->kernel, device);
  driver->exchange_capture_mode(&mode);
  code = driver->max_active_clusters(&count, state->kernel, config);
  if (code != 0 || count < 1) {
    const uint64_t volume = uint64_t{cluster[0]} * cluster[1] * cluster[2];
    return Raise("ValueError",
                 "%s: a cluster of (%u, %u, %u), %llu blocks, is not possible on cuda:%d with %u threads and %u "
                 "bytes of dynamic shared memory in a block: the limit is %u blocks",
                 state->name, cluster[0], cluster[1], cluster[2], static_cast<unsigned long long>(volume), device,
                 config->block[0] * config->block[1] * config->block[2], config->shared_bytes,
                 LargestCluster(state, config, static_cast<uint32_t>(volume < largest ? volume : largest)));
  }
  pthread_mutex_lock(&launcher_lock);
  memcpy(slot->checked, wanted, sizeof wanted);
  pthread_mutex_unlock(&launcher_lock);
  return 0;
}

JITLOAD_LAUNCHER int CheckCluster(KernelState* state, void** args, const jitload_cu_config* config,
                                  const uint32_t* cluster) {
  int device = 0;
  if (state == nullptr) return 0; /* the launch will say so */
  const bool is_entered = state->driver->devices > 1 && EnterPlace(state, args, config->stream, &device);
  AdoptContext(state->driver);
  const int failed = CheckClusterHere(state, config, cluster, device);
  LeavePlace(state, is_entered);
  return failed;
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCHER_CLUSTER_H_ */
