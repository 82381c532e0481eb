/* A builder of launch configurations with attributes, for `CubinKernel`:
 *
 *   jitload::LaunchConfig config(grid, block, stream, shared_bytes);
 *   config.Cluster(2, 2).SchedulingPolicy(CU_CLUSTER_SCHEDULING_POLICY_SPREAD).ProgrammaticStreamSerialization();
 *   TVM_FFI_CHECK_CUDA_DRIVER_ERROR(config.Launch(kernel, args));
 *
 * The grid is in blocks, even with clusters. `Launch` throws a ValueError for a grid that is not a multiple of the
 * cluster, and for a cluster that the device cannot hold; `kernel.LaunchEx(args, config)` leaves both to the driver.
 */
#ifndef JITLOAD_LAUNCH_CONFIG_H_
#define JITLOAD_LAUNCH_CONFIG_H_

#include <tvm/ffi/extra/cuda/cubin_launcher.h>

namespace jitload {
inline namespace v1 {

class LaunchConfig {
 public:
  LaunchConfig(tvm::ffi::dim3 grid, tvm::ffi::dim3 block, CUstream stream, uint32_t shared_bytes = 0)
      : config_{grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream, nullptr, 0} {}

  /* The cluster size in blocks. `Launch` also allows more than 8 blocks, which not every device supports. */
  LaunchConfig& Cluster(unsigned x, unsigned y = 1, unsigned z = 1) {
    CUlaunchAttributeValue& value = Attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    value.clusterDim.x = cluster_[0] = x;
    value.clusterDim.y = cluster_[1] = y;
    value.clusterDim.z = cluster_[2] = z;
    return *this;
  }

  /* How the blocks of a cluster are distributed over multiprocessors. */
  LaunchConfig& SchedulingPolicy(CUclusterSchedulingPolicy policy) {
    Attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE).clusterSchedulingPolicyPreference = policy;
    return *this;
  }

  /* PDL: the kernel may start before the previous one in the stream has finished. */
  LaunchConfig& ProgrammaticStreamSerialization(bool is_allowed = true) {
    Attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).programmaticStreamSerializationAllowed =
        is_allowed;
    return *this;
  }

  /* All blocks are resident at the same time, so that the kernel can synchronise the grid. */
  LaunchConfig& Cooperative(bool is_cooperative = true) {
    Attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = is_cooperative;
    return *this;
  }

  /* As for streams, smaller numbers have higher priority. */
  LaunchConfig& Priority(int priority) {
    Attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY).priority = priority;
    return *this;
  }

  /* The driver's record, valid as long as this object. */
  operator const CUlaunchConfig&() {
    config_.attrs = count_ != 0 ? attributes_ : nullptr;
    config_.numAttrs = count_;
    return config_;
  }

  tvm::ffi::cuda_api::Result Launch(tvm::ffi::CubinKernel& kernel, void** args) {
    const CUlaunchConfig& config = *this;
    if (cluster_[0] != kUnset) {
      const jitload_cu_config driver_config = tvm::ffi::cuda_api::MakeConfig(config);
      CheckDivides(driver_config);
      tvm::ffi::cuda_api::ThrowIfFailed(CheckCluster(kernel.state_, args, &driver_config, cluster_));
    }
    return kernel.LaunchEx(args, config);
  }

 private:
  enum : unsigned { kUnset = ~0u, kMaxAttributes = 5 };

  /* Return the value of an attribute, which is added on first use. */
  CUlaunchAttributeValue& Attribute(CUlaunchAttributeID id) {
    unsigned i = 0;
    while (i < count_ && attributes_[i].id != id) ++i;
    if (i == count_) attributes_[count_++].id = id;
    return attributes_[i].value;
  }

  void CheckDivides(const jitload_cu_config& config) const {
    for (int i = 0; i < 3; ++i) {
      if (cluster_[i] == 0) {
        Raise("ValueError", "cluster must be positive, got (%u, %u, %u)", cluster_[0], cluster_[1], cluster_[2]);
        tvm::ffi::cuda_api::ThrowRaised();
      }
      if (config.grid[i] % cluster_[i] != 0) {
        Raise("ValueError", "grid.%c (%u blocks) is not a multiple of cluster.%c (%u)", "xyz"[i], config.grid[i],
              "xyz"[i],
              cluster_[i]);
        tvm::ffi::cuda_api::ThrowRaised();
      }
    }
  }

  CUlaunchConfig config_;
  CUlaunchAttribute attributes_[kMaxAttributes] = {};
  unsigned count_ = 0;
  uint32_t cluster_[3] = {kUnset, 1, 1};
};

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCH_CONFIG_H_ */
