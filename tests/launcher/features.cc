// Everything that the launcher headers offer, in both spellings, with all of their names included in a row.
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/internal/unified_api.h>
#include <tvm/ffi/container/tensor.h>
#if __has_include(<tvm/ffi/tvm_ffi.h>)
#include <tvm/ffi/tvm_ffi.h>
#endif

namespace ffi = tvm::ffi;

namespace {

CUstream AsStream(int64_t stream) { return reinterpret_cast<CUstream>(stream); }

constexpr unsigned char image[] = {
#include CUBIN_BYTES
};

// The module that `replace` replaces.
ffi::CubinModule& Module() {
  static ffi::CubinModule module(image);
  return module;
}
}  // namespace

TVM_FFI_EMBED_CUBIN_FROM_BYTES(kept, image);
// A header, an image of a kind that nobody knows, of 8 bytes, and what follows the fatbin in the program.
TVM_FFI_EMBED_CUBIN_FROM_BYTES(fatbin,
                               "\x50\xed\x55\xba\1\0\x10\0\x38\0\0\0\0\0\0\0"
                               "\x40\0\1\1\x30\0\0\0\x08\0\0\0\0\0\0\0"
                               "\0\0\0\0\0\0\0\0\0\0\0\0\x5a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                               "contents and the rest");

namespace {

ffi::CubinKernel& Empty() {
  static ffi::CubinKernel kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(kept, "empty");
  return kernel;
}

void Replace(ffi::Bytes bytes) { Module() = ffi::CubinModule(bytes); }
void LoadAddress(ffi::Bytes bytes) { ffi::CubinModule module(bytes.data()); }

void LaunchNamed(ffi::String name, int64_t stream, int64_t shared_bytes) {
  ffi::CubinKernel kernel = Module()[name.c_str()];
  cudaStream_t on = AsStream(stream);
  cudaError_t result = kernel.Launch(nullptr, ffi::dim3(1), ffi::dim3(32), on, shared_bytes);
  TVM_FFI_CHECK_CUDA_ERROR(result);
}

void LaunchPointer(ffi::TensorView y, int64_t n) {
  static auto kernel = Module().GetKernel("add_one");
  void* pointer = y.data_ptr();
  void* args[] = {&pointer, &pointer, &n};
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(kernel.Launch(args, ffi::dim3(1), ffi::dim3(32), nullptr));
}

// 0: as upstream's two-argument call; 1: with a static size.
void LaunchMost(int64_t form, int64_t first, int64_t second, int64_t used) {
  ffi::CubinKernel kernel = form == 0 ? Module().GetKernelWithMaxDynamicSharedMemory("empty", first)
                                      : Module().GetKernelWithMaxDynamicSharedMemory("empty", first, second);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(kernel.Launch(nullptr, ffi::dim3(1), ffi::dim3(32), nullptr, used));
}

void LaunchMoved() {
  ffi::CubinKernel kernel = Module().GetKernel("empty"), other = std::move(kernel);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(other.Launch(nullptr, ffi::dim3(2), ffi::dim3(32), nullptr));
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(kernel.Launch(nullptr, ffi::dim3(3), ffi::dim3(32), nullptr));
}

void UseMovedModule(ffi::Bytes bytes) {
  ffi::CubinModule module(bytes), other = std::move(module);
  ffi::CubinKernel kernel = other["empty"];
  module.GetKernel("empty");
}

// A cluster through upstream's own function; `unified` is whatever upstream calls a LaunchConfig here.
void LaunchCluster(int64_t stream, int64_t cluster) {
  ffi::cuda_api::LaunchConfig unified;
  ffi::cuda_api::LaunchAttrType attribute;
  ffi::cuda_api::ResultType built =
      ffi::cuda_api::ConstructLaunchConfig(Empty().GetHandle(), AsStream(stream), 64, ffi::dim3(8, 1, 1), ffi::dim3(32),
                                           static_cast<int>(cluster), unified, attribute);
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(built);
  ffi::cuda_api::ResultType result = Empty().LaunchEx(nullptr, unified);
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(result);
}

int64_t GuardedCount(int64_t device, ffi::Function inside) {
  ffi::CUDADeviceGuard guard(device);
  inside();
  int count = 0;
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(ffi::cuda_api::GetDeviceCount(&count));
  return count;
}

// Every use of a launch's result that works; the number of the first that is wrong, or 0.
int64_t UseResult(int64_t grid) {
  auto Go = [&] { return Empty().Launch(nullptr, ffi::dim3(grid), ffi::dim3(32), nullptr); };
  const bool is_wrong = grid == 0;
  CUresult of_driver = Go();
  cudaError_t of_runtime = Go();
  of_driver = Go(), of_runtime = Go();
  auto kept = Go();
  int number = Go();
  if ((of_driver != CUDA_SUCCESS) != is_wrong || (of_runtime != cudaSuccess) != is_wrong) return 1;
  if ((kept != CUDA_SUCCESS) != is_wrong || (kept == cudaSuccess) == is_wrong || (CUDA_SUCCESS == kept) == is_wrong)
    return 2;
  if ((kept != 0) != is_wrong || (kept != ffi::cuda_api::kSuccess) != is_wrong || kept != Go()) return 3;
  if (bool(kept) != is_wrong || !kept == is_wrong || static_cast<int>(kept) != number || (number != 0) != is_wrong)
    return 4;
  CUresult chosen = is_wrong ? kept : CUDA_SUCCESS;
  cudaError_t other = is_wrong ? cudaErrorInvalidValue : Go();
  if (chosen != of_driver || other != of_runtime) return 5;
  const char *name = nullptr, *text = nullptr;
  ffi::cuda_api::GetErrorString(kept, &name, &text);
  if ((std::string(name) == "CUDA_SUCCESS") == is_wrong) return 6;
  std::ostringstream out;
  out << kept;
  if (out.str() != (is_wrong ? "1" : "0")) return 7;
  switch (of_driver) {
    case CUDA_SUCCESS:
      return is_wrong ? 8 : 0;
    default:
      return is_wrong ? 0 : 8;
  }
}

void LoadFatbin() { EmbedCubinModule_fatbin::Global(); }

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(replace, Replace);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(load_address, LoadAddress);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(load_fatbin, LoadFatbin);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch, LaunchNamed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch_pointer, LaunchPointer);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch_most, LaunchMost);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch_moved, LaunchMoved);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(use_moved_module, UseMovedModule);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch_cluster, LaunchCluster);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(guarded_count, GuardedCount);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(use_result, UseResult);
