/* Thread block clusters: what a launch asks for, and why it was refused; the driver's own words name no limit. */
#ifndef JITLOAD_LAUNCHER_CLUSTER_H_
#define JITLOAD_LAUNCHER_CLUSTER_H_

#include "launcher_kernel.h"

namespace jitload {
inline namespace v1 {

/* The cluster among a launch's attributes; NULL where there is none. */
JITLOAD_LAUNCHER const uint32_t* ClusterOf(const jitload_cu_config* config) {
  for (uint32_t i = 0; i < config->attribute_count; ++i) {
    if (config->attributes[i].id == JITLOAD_LAUNCH_CLUSTER) return config->attributes[i].value.extent;
  }
  return nullptr;
}

JITLOAD_LAUNCHER uint64_t BlocksOf(const uint32_t* cluster) { return uint64_t{cluster[0]} * cluster[1] * cluster[2]; }

/* Before a launch with attributes. */
JITLOAD_LAUNCHER void AllowCluster(KernelState* state, const jitload_cu_config* config, int device) {
  const uint32_t* cluster = ClusterOf(config);
  if (cluster != nullptr && BlocksOf(cluster) > kPortableCluster) AllowLargeCluster(state, device);
}

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

/* Of an H200 the driver says that clusters of 18 blocks can be active, and refuses to launch more than 16. */
constexpr uint32_t kLargestCluster = 16;

JITLOAD_LAUNCHER uint32_t LimitOf(const KernelState* state, const jitload_cu_config* config, const uint32_t* cluster) {
  const uint64_t highest = kLargestCluster + 1, blocks = BlocksOf(cluster);
  return LargestCluster(state, config, static_cast<uint32_t>(blocks < highest ? blocks : highest));
}

/* What was wrong with the cluster of a refused launch, to follow the launch's own words; empty where that is not
 * known. */
JITLOAD_LAUNCHER void ExplainCluster(const KernelState* state, const jitload_cu_config* config, char* text, size_t size) {
  const uint32_t* cluster = ClusterOf(config);
  int count = 0;
  text[0] = 0;
  if (cluster == nullptr) return;
  const int used = snprintf(text, size, ", cluster (%u, %u, %u)", cluster[0], cluster[1], cluster[2]);
  for (int i = 0; i < 3; ++i) {
    if (cluster[i] != 0 && config->grid[i] % cluster[i] == 0) continue;
    snprintf(text + used, size - used, ": grid.%c is no multiple of cluster.%c", "xyz"[i], "xyz"[i]);
    return;
  }
  const bool is_small = BlocksOf(cluster) <= kLargestCluster;
  if (is_small && state->driver->max_active_clusters(&count, state->kernel, config) == 0 && count > 0) return;
  const uint32_t limit = LimitOf(state, config, cluster);
  if (limit != 0) snprintf(text + used, size - used, ": the limit is %u blocks in a cluster", limit);
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCHER_CLUSTER_H_ */
