/* A builder of launch configurations with attributes, for `CubinKernel`:
 *
 *   jitload::LaunchConfig config(grid, block, stream, shared_bytes);
 *   config.Cluster(2, 2).SchedulingPolicy(CU_CLUSTER_SCHEDULING_POLICY_SPREAD).ProgrammaticStreamSerialization();
 *   TVM_FFI_CHECK_CUDA_DRIVER_ERROR(config.Launch(kernel, args));
 *
 * The grid is in blocks, even with clusters.
 */
#pragma once

#include <tvm/ffi/extra/cuda/cubin_launcher.h>

namespace jitload {
inline namespace v1 {

class LaunchConfig {
 public:
  LaunchConfig(tvm::ffi::dim3 grid, tvm::ffi::dim3 block, CUstream stream, uint32_t shared_bytes = 0)
      : config_{grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream, nullptr, 0} {}

  /* The cluster size in blocks. More than 8 blocks are allowed, too, which not every device supports. */
  LaunchConfig& Cluster(unsigned x, unsigned y = 1, unsigned z = 1) {
    CUlaunchAttributeValue& value = Attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    value.clusterDim.x = x;
    value.clusterDim.y = y;
    value.clusterDim.z = z;
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
    return kernel.LaunchEx(args, config);
  }

 private:
  enum : unsigned { kMaxAttributes = 5 };

  /* Return the value of an attribute, which is added on first use. */
  CUlaunchAttributeValue& Attribute(CUlaunchAttributeID id) {
    unsigned i = 0;
    while (i < count_ && attributes_[i].id != id) ++i;
    if (i == count_) attributes_[count_++].id = id;
    return attributes_[i].value;
  }

  CUlaunchConfig config_;
  CUlaunchAttribute attributes_[kMaxAttributes] = {};
  unsigned count_ = 0;
};

}  // namespace v1
}  // namespace jitload
