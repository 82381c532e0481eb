// Every name of `tvm::ffi::cuda_api`, used as code written for tvm-ffi's own headers uses it.
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/extra/cuda/internal/unified_api.h>
#include <tvm/ffi/function.h>

#include <type_traits>
#include <utility>

namespace api = tvm::ffi::cuda_api;
using tvm::ffi::CubinKernel;
using tvm::ffi::CubinModule;

static_assert(!std::is_copy_constructible_v<CubinModule> && !std::is_copy_assignable_v<CubinModule>);
static_assert(!std::is_copy_constructible_v<CubinKernel> && !std::is_copy_assignable_v<CubinKernel>);
static_assert(std::is_nothrow_move_constructible_v<CubinModule> && std::is_nothrow_move_assignable_v<CubinModule>);
static_assert(std::is_nothrow_move_constructible_v<CubinKernel> && std::is_nothrow_move_assignable_v<CubinKernel>);
static_assert(!std::is_convertible_v<const char*, CubinModule> && !std::is_convertible_v<unsigned, tvm::ffi::dim3>);
static_assert(!std::is_default_constructible_v<CubinModule> && !std::is_default_constructible_v<CubinKernel>);
static_assert(std::is_same_v<decltype(std::declval<CubinModule&>().GetHandle()), api::LibraryHandle>);
static_assert(std::is_same_v<decltype(std::declval<CubinKernel&>().GetHandle()), api::KernelHandle>);
#if TVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API
static_assert(std::is_same_v<api::ResultType, CUresult> && std::is_same_v<api::LaunchConfig, CUlaunchConfig>);
static_assert(std::is_same_v<api::StreamHandle, CUstream> && std::is_same_v<api::LaunchAttrType, CUlaunchAttribute>);
static_assert(std::is_same_v<api::LibraryHandle, CUlibrary> && std::is_same_v<api::KernelHandle, CUkernel>);
#else
static_assert(std::is_same_v<api::ResultType, cudaError_t> && std::is_same_v<api::LaunchConfig, cudaLaunchConfig_t>);
static_assert(std::is_same_v<api::StreamHandle, cudaStream_t>);
static_assert(std::is_same_v<api::LaunchAttrType, cudaLaunchAttribute>);
static_assert(std::is_same_v<api::LibraryHandle, cudaLibrary_t> && std::is_same_v<api::KernelHandle, cudaKernel_t>);
#endif

static int64_t GridVolume(tvm::ffi::dim3 extent) { return int64_t{extent.x} * extent.y * extent.z; }

// By handles alone; returns the most dynamic shared memory that was set.
int64_t ByHandle(tvm::ffi::Bytes cubin, int64_t dynamic_smem_max) {
  api::LibraryHandle library = nullptr;
  api::KernelHandle kernel = nullptr;
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(api::LoadLibrary(&library, cubin.data()));
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(api::GetKernel(&kernel, library, "mixed"));
  api::ResultType missing = api::GetKernel(&kernel, library, "absent");
  TVM_FFI_CHECK(missing != api::kSuccess, RuntimeError) << "a kernel that is not there";
  int devices = 0, set = 0;
  api::ResultType err = api::GetDeviceCount(&devices);
  if (err != api::kSuccess || devices == 0) return -1;
  for (int device_id = 0; device_id < devices; ++device_id) {
    auto device = api::GetDeviceHandle(device_id);
    int most = 0, fixed = 0;
    err = api::GetDeviceAttribute(&most, api::DeviceAttrType(97), device);
    if (err != api::kSuccess) continue;
    err = api::GetKernelSharedMem(kernel, fixed, device);
    if (err != api::kSuccess) continue;
    set = dynamic_smem_max == -1 ? most - fixed : static_cast<int>(dynamic_smem_max);
    err = api::SetKernelMaxDynamicSharedMem(kernel, set, device);
    TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(err);
  }
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(api::UnloadLibrary(library));
  return set;
}

// All forms of a launch; returns how many there were.
int64_t Launches(tvm::ffi::Bytes cubin) {
  CubinModule module(cubin), other(reinterpret_cast<const unsigned char*>(cubin.data()));
  other = CubinModule(cubin.data());
  module = std::move(other);
  CubinKernel kernel = module["empty"], second = module.GetKernel("empty"), third(module.GetHandle(), "empty");
  kernel = std::move(second);
  api::StreamHandle stream = nullptr;
  tvm::ffi::dim3 grid, block(32), plane(2, 3), space(2, 3, 4);
  TVM_FFI_CHECK(GridVolume(grid) == 1 && GridVolume(plane) == 6 && GridVolume(space) == 24, ValueError) << "dim3";
  api::LaunchConfig config;
  api::LaunchAttrType attribute;
  api::ResultType result = kernel.Launch(nullptr, grid, block, stream);
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(result);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(third.Launch(nullptr, plane, block, stream, 64));
  TVM_FFI_CHECK_CUDA_ERROR(api::LaunchKernel(kernel.GetHandle(), nullptr, space, block, stream));
  result = api::ConstructLaunchConfig(kernel.GetHandle(), stream, 128, tvm::ffi::dim3(4), block, 2, config, attribute);
  TVM_FFI_CHECK(result == api::kSuccess && config.numAttrs == 1 && config.attrs == &attribute, RuntimeError) << "config";
  result = kernel.LaunchEx(nullptr, config);
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(result);
  result = api::LaunchKernelEx(kernel.GetHandle(), nullptr, config);
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(result);
  CUresult of_driver = kernel.Launch(nullptr, grid, block, nullptr);
  cudaError_t of_runtime = kernel.Launch(nullptr, grid, block, nullptr);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(of_driver);
  TVM_FFI_CHECK_CUDA_ERROR(of_runtime);
  const char *name = nullptr, *text = nullptr;
  api::GetErrorString(result, &name, &text);
  TVM_FFI_CHECK(name != nullptr && text != nullptr, RuntimeError) << "no text";
  return 7;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(by_handle, ByHandle);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launches, Launches);
