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
  if (cluster != nullptr && BlocksOf(cluster) > JITLOAD_PORTABLE_CLUSTER) AllowLargeCluster(state, device);
}

/* The largest cluster that the device can hold, below the one that it cannot. */
JITLOAD_LAUNCHER uint32_t LimitOf(const KernelState* state, const jitload_cu_config* config, const uint32_t* cluster) {
  const uint64_t blocks = BlocksOf(cluster);
  return blocks == 0 ? 0 : jitload_fitting_cluster(state->driver->max_active_clusters, state->kernel, config, blocks - 1);
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
  const bool is_small = BlocksOf(cluster) <= JITLOAD_LARGEST_CLUSTER;
  if (is_small && state->driver->max_active_clusters(&count, state->kernel, config) == 0 && count > 0) return;
  const uint32_t limit = LimitOf(state, config, cluster);
  if (limit != 0) snprintf(text + used, size - used, ": the limit is %u blocks in a cluster", limit);
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCHER_CLUSTER_H_ */
