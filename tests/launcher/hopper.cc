// Launches with every attribute, by each of the header's ways; what to launch comes from the test.
#include <jitload/launch_config.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/extra/cuda/device_guard.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

TVM_FFI_EMBED_CUBIN(hopper);

namespace ffi = tvm::ffi;

namespace {

// In the order of the test's list.
struct How {
  int64_t grid[3], block, shared_bytes, stream, cluster[3], policy, is_pdl, is_cooperative, priority, most_shared;
};
enum : int64_t { kNone = -1000 };

How Read(const ffi::Array<int64_t>& numbers) {
  How how;
  TVM_FFI_CHECK(numbers.size() * sizeof(int64_t) == sizeof how, ValueError) << "a launch has other numbers";
  for (size_t i = 0; i < numbers.size(); ++i) reinterpret_cast<int64_t*>(&how)[i] = numbers[i];
  return how;
}

std::optional<ffi::CubinModule> replaced;
std::map<std::string, ffi::CubinKernel> kernels;
std::mutex lock;

const ffi::CubinModule& Module() { return replaced ? *replaced : EmbedCubinModule_hopper::Global()->mod; }

// Kept as a static variable keeps one; `replace` forgets them.
ffi::CubinKernel& Kernel(const ffi::String& name, int64_t most_shared) {
  std::lock_guard<std::mutex> guard(lock);
  const std::string key = std::string(name) + (most_shared == kNone ? "" : std::to_string(most_shared));
  auto found = kernels.find(key);
  if (found != kernels.end()) return found->second;
  return kernels
      .emplace(key, most_shared == kNone ? Module()[name.c_str()]
                                         : Module().GetKernelWithMaxDynamicSharedMemory(name.c_str(), most_shared))
      .first->second;
}

ffi::dim3 Extent(const int64_t* extent) { return ffi::dim3(extent[0], extent[1], extent[2]); }
CUstream Stream(const How& how) { return reinterpret_cast<CUstream>(how.stream); }

// Either of CUDA's attributes; they have the same numbers and the same layout.
std::vector<CUlaunchAttribute> Attributes(const How& how) {
  std::vector<CUlaunchAttribute> list;
  auto add = [&](CUlaunchAttributeID id) -> CUlaunchAttributeValue& {
    list.emplace_back();
    list.back().id = id;
    return list.back().value;
  };
  if (how.cluster[0] != kNone) {
    CUlaunchAttributeValue& value = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    value.clusterDim.x = how.cluster[0];
    value.clusterDim.y = how.cluster[1];
    value.clusterDim.z = how.cluster[2];
  }
  if (how.policy != kNone) {
    add(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE).clusterSchedulingPolicyPreference =
        static_cast<CUclusterSchedulingPolicy>(how.policy);
  }
  if (how.is_pdl) add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).programmaticStreamSerializationAllowed = 1;
  if (how.is_cooperative) add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1;
  if (how.priority != kNone) add(CU_LAUNCH_ATTRIBUTE_PRIORITY).priority = how.priority;
  return list;
}

CUresult LaunchDriverConfig(ffi::CubinKernel& kernel, void** args, const How& how) {
  std::vector<CUlaunchAttribute> attributes = Attributes(how);
  CUlaunchConfig config = {};
  config.gridDimX = how.grid[0], config.gridDimY = how.grid[1], config.gridDimZ = how.grid[2];
  config.blockDimX = how.block, config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = how.shared_bytes;
  config.hStream = Stream(how);
  config.attrs = attributes.data();
  config.numAttrs = attributes.size();
  return kernel.LaunchEx(args, config);
}

CUresult LaunchRuntimeConfig(ffi::CubinKernel& kernel, void** args, const How& how) {
#if JITLOAD_HAS_CUDA_RUNTIME
  std::vector<CUlaunchAttribute> attributes = Attributes(how);
  cudaLaunchConfig_t config = {};
  config.gridDim = ::dim3(how.grid[0], how.grid[1], how.grid[2]);
  config.blockDim = ::dim3(how.block);
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = Stream(how);
  config.attrs = reinterpret_cast<cudaLaunchAttribute*>(attributes.data());
  config.numAttrs = attributes.size();
  cudaError_t result = kernel.LaunchEx(args, config);
  TVM_FFI_CHECK_CUDA_ERROR(result);
  return CUDA_SUCCESS;
#else
  TVM_FFI_THROW(RuntimeError) << "built without the CUDA runtime's headers";
#endif
}

CUresult LaunchBuilt(ffi::CubinKernel& kernel, void** args, const How& how) {
  jitload::LaunchConfig config(Extent(how.grid), ffi::dim3(how.block), Stream(how), how.shared_bytes);
  if (how.cluster[0] != kNone) config.Cluster(2).Cluster(how.cluster[0], how.cluster[1], how.cluster[2]);
  if (how.policy != kNone) config.SchedulingPolicy(static_cast<CUclusterSchedulingPolicy>(how.policy));
  if (how.is_pdl) config.ProgrammaticStreamSerialization();
  if (how.is_cooperative) config.Cooperative();
  if (how.priority != kNone) config.Priority(how.priority);
  return how.is_cooperative ? CUresult(kernel.LaunchEx(args, config)) : CUresult(config.Launch(kernel, args));
}

void Launch(ffi::String way, ffi::String name, ffi::TensorView out, int64_t number, ffi::Array<int64_t> numbers) {
  const How how = Read(numbers);
  ffi::CubinKernel& kernel = Kernel(name, how.most_shared);
  void* pointer = out.data_ptr();
  void* args[] = {&pointer, &number};
  CUresult result = way == "driver"    ? LaunchDriverConfig(kernel, args, how)
                    : way == "runtime" ? LaunchRuntimeConfig(kernel, args, how)
                    : way == "builder" ? LaunchBuilt(kernel, args, how)
                                       : CUresult(kernel.Launch(args, Extent(how.grid), ffi::dim3(how.block),
                                                                Stream(how), how.shared_bytes));
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}

void Replace(ffi::Bytes cubin) {
  ffi::CubinModule made(cubin);
  std::lock_guard<std::mutex> guard(lock);
  kernels.clear();
  replaced = std::move(made);
}

int64_t Handle(ffi::String name) { return reinterpret_cast<int64_t>(Kernel(name, kNone).GetHandle()); }
bool HasRuntime() { return JITLOAD_HAS_CUDA_RUNTIME; }

// Calls back inside a guard.
void Guarded(int64_t device, ffi::Function inside) {
  ffi::CUDADeviceGuard guard(static_cast<int>(device));
  inside();
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch, Launch);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(replace, Replace);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(handle, Handle);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(has_runtime, HasRuntime);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(guarded, Guarded);
