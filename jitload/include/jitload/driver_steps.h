/* What the runtime (device.cc, refusal.cc) and the C++ launcher (launcher_*.h) both ask of a driver, in one place. */
#ifndef JITLOAD_DRIVER_STEPS_H_
#define JITLOAD_DRIVER_STEPS_H_

#include "driver.h"

#define JITLOAD_STEP static inline __attribute__((unused))

enum {
  JITLOAD_DEFAULT_SHARED = 48 * 1024, /* a block gets this much without asking for more */
  JITLOAD_PORTABLE_CLUSTER = 8,       /* blocks that a cluster may have without asking */
  /* Of an H200 the driver says that clusters of 18 blocks can be active, and refuses to launch more than 16. */
  JITLOAD_LARGEST_CLUSTER = 16,
  JITLOAD_REMEMBERED_CONTEXTS = 64,
};

/* For: bytes as long long, device, the most a block gets, the kernel's own. */
#define JITLOAD_TOO_MUCH_SHARED                                                                           \
  "%lld bytes of dynamic shared memory asked for, but cuda:%d gives a block at most %d bytes, and the "   \
  "kernel's own static shared memory takes %d of them"

/* The device's primary context, retained once and kept in `remembered`: a library is never unloaded. One that somebody
 * has reset in the meantime is retained anew. */
JITLOAD_STEP jitload_cu_result jitload_retain_once(const jitload_driver* driver, jitload_cu_context* remembered,
                                                   jitload_cu_device device, jitload_cu_context* primary) {
  unsigned flags = 0;
  int is_active = 0;
  if (device < 0 || device >= JITLOAD_REMEMBERED_CONTEXTS) return driver->retain_primary(primary, device);
  *primary = __atomic_load_n(&remembered[device], __ATOMIC_ACQUIRE);
  if (*primary != NULL && driver->primary_state(device, &flags, &is_active) == JITLOAD_CUDA_SUCCESS && is_active) {
    return JITLOAD_CUDA_SUCCESS;
  }
  const jitload_cu_result code = driver->retain_primary(primary, device);
  if (code == JITLOAD_CUDA_SUCCESS) __atomic_store_n(&remembered[device], *primary, __ATOMIC_RELEASE);
  return code;
}

/* How many blocks the cluster has that a kernel was compiled for, `__cluster_dims__`; 1 without. */
JITLOAD_STEP int64_t jitload_declared_cluster(const jitload_driver* driver, jitload_cu_kernel kernel,
                                              jitload_cu_device device) {
  int64_t blocks = 1;
  for (int axis = 0; axis < 3; ++axis) {
    int extent = 0;
    driver->kernel_attribute(&extent, JITLOAD_FUNCTION_CLUSTER_WIDTH + axis, kernel, device);
    if (extent > 1) blocks *= extent;
  }
  return blocks;
}

/* The largest cluster of at most `blocks`, as (n, 1, 1), that the device can hold with the block and the shared memory of
 * a launch; 0 where the driver does not tell. `count` is cuOccupancyMaxActiveClusters. */
JITLOAD_STEP uint32_t jitload_fitting_cluster(jitload_cu_result (*count)(int*, void*, const jitload_cu_config*),
                                              jitload_cu_kernel kernel, const jitload_cu_config* launch,
                                              uint64_t blocks) {
  jitload_cu_attribute cluster = {JITLOAD_LAUNCH_CLUSTER, 0, {0}};
  jitload_cu_config probe = *launch;
  probe.attributes = &cluster;
  probe.attribute_count = 1;
  uint32_t size = blocks < JITLOAD_LARGEST_CLUSTER ? (uint32_t)blocks : (uint32_t)JITLOAD_LARGEST_CLUSTER;
  for (; size > 0; --size) {
    int active = 0;
    cluster.value.extent[0] = probe.grid[0] = size;
    cluster.value.extent[1] = cluster.value.extent[2] = probe.grid[1] = probe.grid[2] = 1;
    if (count(&active, kernel, &probe) == JITLOAD_CUDA_SUCCESS && active > 0) break;
  }
  return size;
}

/* The most shared memory that a device gives a block, and the kernel's own static part of it. */
JITLOAD_STEP jitload_cu_result jitload_shared_limit(const jitload_driver* driver, jitload_cu_kernel kernel,
                                                    jitload_cu_device device, int* most, int* fixed) {
  const jitload_cu_result code = driver->device_attribute(most, JITLOAD_DEVICE_MAX_SHARED_OPTIN, device);
  return code != JITLOAD_CUDA_SUCCESS ? code
                                      : driver->kernel_attribute(fixed, JITLOAD_FUNCTION_STATIC_SHARED, kernel, device);
}

#endif /* JITLOAD_DRIVER_STEPS_H_ */
