/* jitload's `tvm/ffi/extra/cuda/internal/unified_api.h`: the functions of `tvm::ffi::cuda_api`, which call libcuda.
 *
 * The types are those of the driver or of the runtime, as in tvm-ffi's header, so that code which accesses members of
 * `cuda_api::LaunchConfig` compiles. The calls always go to the driver.
 */
#ifndef TVM_FFI_EXTRA_CUDA_INTERNAL_UNIFIED_API_H_
#define TVM_FFI_EXTRA_CUDA_INTERNAL_UNIFIED_API_H_

#include <tvm/ffi/extra/cuda/base.h>

#ifndef TVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API
#if JITLOAD_HAS_CUDA_RUNTIME && CUDART_VERSION >= 12080
#define TVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API 0
#else
#define TVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API 1
#endif
#elif !TVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API && !(JITLOAD_HAS_CUDA_RUNTIME && CUDART_VERSION >= 12080)
#error "TVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API=0 needs the headers of the CUDA runtime, 12.8 or newer"
#endif

namespace tvm::ffi {
inline namespace jitload_v1 {
namespace cuda_api {

#if TVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API
using StreamHandle = CUstream;
using DeviceHandle = CUdevice;
using LibraryHandle = CUlibrary;
using KernelHandle = CUkernel;
using LaunchConfig = CUlaunchConfig;
using ResultType = CUresult;
using LaunchAttrType = CUlaunchAttribute;
using DeviceAttrType = CUdevice_attribute;
constexpr ResultType kSuccess = CUDA_SUCCESS;
#else
using StreamHandle = cudaStream_t;
using DeviceHandle = int;
using LibraryHandle = cudaLibrary_t;
using KernelHandle = cudaKernel_t;
using LaunchConfig = cudaLaunchConfig_t;
using ResultType = cudaError_t;
using LaunchAttrType = cudaLaunchAttribute;
using DeviceAttrType = cudaDeviceAttr;
constexpr ResultType kSuccess = cudaSuccess;
#endif

template <class Code>
inline void GetErrorString(Code err, const char** name, const char** str) {
  ::jitload::DescribeCode(static_cast<int>(err), name, str);
}

/* ---- launch configurations, of the driver and of the runtime --------------------------------------------------- */

inline jitload_cu_config MakeConfig(dim3 grid, dim3 block, StreamHandle stream, uint32_t shared_bytes) {
  return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, stream, nullptr, 0};
}

inline jitload_cu_config MakeConfig(const CUlaunchConfig& config) {
  jitload_cu_config driver_config;
  static_assert(sizeof driver_config == sizeof config, "the driver's layout");
  __builtin_memcpy(&driver_config, &config, sizeof config);
  return driver_config;
}

inline void FillConfig(StreamHandle stream, uint32_t smem_size, dim3 grid, dim3 block, CUlaunchConfig& config) {
  config = CUlaunchConfig{grid.x, grid.y, grid.z, block.x, block.y, block.z, smem_size, stream, nullptr, 0};
}

inline void FillCluster(unsigned cluster_dim, CUlaunchAttribute& attr) {
  attr.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attr.value.clusterDim.x = cluster_dim;
  attr.value.clusterDim.y = attr.value.clusterDim.z = 1;
}

#if JITLOAD_HAS_CUDA_RUNTIME
static_assert(sizeof(cudaLaunchAttribute) == sizeof(jitload_cu_attribute), "the driver's layout");

inline jitload_cu_config MakeConfig(const cudaLaunchConfig_t& config) {
  jitload_cu_config driver_config = MakeConfig({config.gridDim.x, config.gridDim.y, config.gridDim.z},
                                      {config.blockDim.x, config.blockDim.y, config.blockDim.z}, config.stream,
                                      static_cast<uint32_t>(config.dynamicSmemBytes));
  if (config.dynamicSmemBytes > UINT32_MAX) driver_config.shared_bytes = UINT32_MAX; /* more than any device allows */
  driver_config.attributes = reinterpret_cast<jitload_cu_attribute*>(config.attrs);
  driver_config.attribute_count = config.numAttrs;
  return driver_config;
}

inline void FillConfig(StreamHandle stream, uint32_t smem_size, dim3 grid, dim3 block, cudaLaunchConfig_t& config) {
  config = cudaLaunchConfig_t{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, smem_size, stream, nullptr, 0};
}

inline void FillCluster(unsigned cluster_dim, cudaLaunchAttribute& attr) {
  attr.id = cudaLaunchAttributeClusterDimension;
  attr.val.clusterDim.x = cluster_dim;
  attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
}
#endif

/* Fill in a configuration, with a cluster attribute if `cluster_dim` is above 1; `attr` must outlive the launch.
 */
template <class Config, class Attribute>
inline Result ConstructLaunchConfig(KernelHandle, StreamHandle stream, uint32_t smem_size, dim3 grid, dim3 block,
                                    int cluster_dim, Config& config, Attribute& attr) {
  FillConfig(stream, smem_size, grid, block, config);
  if (cluster_dim > 1) {
    FillCluster(static_cast<unsigned>(cluster_dim), attr);
    config.attrs = &attr;
    config.numAttrs = 1;
  }
  return Result(JITLOAD_CUDA_SUCCESS);
}

/* ---- the driver's calls, by handle ----------------------------------------------------------------------------- */

inline Result LoadLibrary(LibraryHandle* library, const void* image) {
  void* handle = nullptr;
  const int code = ::jitload::LoadBytes(&GetDriver(), image, &handle);
  if (code == JITLOAD_CUDA_SUCCESS) *library = static_cast<LibraryHandle>(handle);
  return Result(code);
}

inline Result UnloadLibrary(LibraryHandle library) { return Result(GetDriver().library_unload(library)); }

inline Result GetKernel(KernelHandle* kernel, LibraryHandle library, const char* name) {
  void* handle = nullptr;
  const int code = GetDriver().library_kernel(&handle, library, name);
  if (code == JITLOAD_CUDA_SUCCESS) *kernel = static_cast<KernelHandle>(handle);
  return Result(code);
}

inline DeviceHandle GetDeviceHandle(int device_id) {
  ThrowIfFailed(::jitload::CheckDevice(&GetDriver(), "GetDeviceHandle", device_id));
  return device_id;
}

/* Launches by handle use the current device, whereas launches of a CubinKernel use the stream's device. */
inline Result LaunchByHandle(KernelHandle kernel, void** args, const jitload_cu_config& config) {
  return Result(GetDriver().launch_ex(&config, kernel, args, nullptr));
}

inline Result LaunchKernel(KernelHandle kernel, void** args, dim3 grid, dim3 block, StreamHandle stream,
                           uint32_t dyn_smem_bytes = 0) {
  return LaunchByHandle(kernel, args, MakeConfig(grid, block, stream, dyn_smem_bytes));
}

template <class Config>
inline Result LaunchKernelEx(KernelHandle kernel, void** args, const Config& config) {
  return LaunchByHandle(kernel, args, MakeConfig(config));
}

inline Result GetKernelSharedMem(KernelHandle kernel, int& out, DeviceHandle device) {
  return Result(GetDriver().kernel_attribute(&out, JITLOAD_FUNCTION_STATIC_SHARED, kernel, device));
}

inline Result SetKernelMaxDynamicSharedMem(KernelHandle kernel, int shmem, DeviceHandle device) {
  const ::jitload::Driver& driver = GetDriver();
  return Result(driver.set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, shmem, kernel, device));
}

inline Result GetDeviceCount(int* count) {
  *count = GetDriver().devices;
  return Result(JITLOAD_CUDA_SUCCESS);
}

template <class Attribute>
inline Result GetDeviceAttribute(int* value, Attribute attr, DeviceHandle device) {
  return Result(GetDriver().device_attribute(value, static_cast<int>(attr), device));
}

}  // namespace cuda_api
}  // namespace jitload_v1
}  // namespace tvm::ffi

#endif  // TVM_FFI_EXTRA_CUDA_INTERNAL_UNIFIED_API_H_
