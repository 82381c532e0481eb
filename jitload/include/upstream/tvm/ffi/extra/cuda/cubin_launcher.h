/* jitload's own `tvm/ffi/extra/cuda/cubin_launcher.h`: cubins and their kernels, launched through libcuda.
 *
 * Found in place of tvm-ffi's header of this name, with its interface. Header-only: libcuda is found at run time, so
 * that nothing is linked, and a library loads on a machine without a GPU.
 */
#ifndef TVM_FFI_EXTRA_CUDA_CUBIN_LAUNCHER_H_
#define TVM_FFI_EXTRA_CUDA_CUBIN_LAUNCHER_H_

#include <jitload/cubin_image.h>
#include <jitload/kernel_state.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/internal/unified_api.h>
#include <tvm/ffi/string.h>

#include <utility>

namespace jitload {
inline namespace v1 {
class LaunchConfig;
}
}  // namespace jitload

namespace tvm {
namespace ffi {
inline namespace jitload_v1 {

/* A kernel, on every device: launches go to the device of their stream. Movable; safe to launch from many threads. */
class CubinKernel {
 public:
  CubinKernel(cuda_api::LibraryHandle library, const char* name)
      : CubinKernel(::jitload::MakeKernelState(library, name, 0, nullptr)) {}

  /* Launch. Dynamic shared memory over 48 KiB is allowed for as it is asked for, up to the device's opt-in limit. The
   * result must be checked; the check's message says what was wrong with the launch. */
  cuda_api::Result Launch(void** args, dim3 grid, dim3 block, cuda_api::StreamHandle stream, uint32_t dyn_smem_bytes = 0) {
    const jitload_cu_config config = cuda_api::MakeConfig(grid, block, stream, dyn_smem_bytes);
    return cuda_api::Result(::jitload::LaunchKernel(state_.get(), args, config));
  }

  /* Launch with attributes: the driver's `CUlaunchConfig`, or the runtime's `cudaLaunchConfig_t`. */
  cuda_api::Result LaunchEx(void** args, const CUlaunchConfig& config) {
    return cuda_api::Result(::jitload::LaunchKernel(state_.get(), args, cuda_api::MakeConfig(config)));
  }
#if JITLOAD_HAS_CUDA_RUNTIME
  cuda_api::Result LaunchEx(void** args, const cudaLaunchConfig_t& config) {
    return cuda_api::Result(::jitload::LaunchKernel(state_.get(), args, cuda_api::MakeConfig(config)));
  }
#endif

  cuda_api::KernelHandle GetHandle() const {
    return state_ != nullptr ? static_cast<cuda_api::KernelHandle>(state_->kernel) : nullptr;
  }

  CubinKernel(const CubinKernel&) = delete;
  CubinKernel& operator=(const CubinKernel&) = delete;
  CubinKernel(CubinKernel&& other) noexcept = default;
  CubinKernel& operator=(CubinKernel&& other) noexcept = default;

 private:
  friend class CubinModule;
  friend class ::jitload::LaunchConfig;
  explicit CubinKernel(std::unique_ptr<::jitload::KernelState> state) : state_(std::move(state)) {}
  std::unique_ptr<::jitload::KernelState> state_;
};

/* A cubin in the driver. The bytes are looked at first: what is no cubin throws. Movable. */
class CubinModule {
 public:
  explicit CubinModule(const Bytes& bytes)
      : CubinModule(::jitload::Image{reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), false}) {}
  explicit CubinModule(const char* code)
      : CubinModule(reinterpret_cast<const unsigned char*>(code)) {}
  explicit CubinModule(const unsigned char* code) : CubinModule(::jitload::Image{code, ::jitload::kUnknownSize, false}) {}
  JITLOAD_COLD explicit CubinModule(const ::jitload::Image& image) {
    const std::string fault = ::jitload::FindFault(image);
    if (!fault.empty()) ::jitload::ThrowRuntimeError("CubinModule: " + fault);
    capability_ = ::jitload::CapabilityOf(image);
    kernels_ = ::jitload::ListKernels(image);
    ::jitload::ThrowIfFailed("CubinModule: the driver cannot load the cubin", cuda_api::LoadLibrary(&library_, image.data));
  }
  ~CubinModule() { Unload(); }

  CubinKernel GetKernel(const char* name) const {
    if (library_ == nullptr) ::jitload::ThrowRuntimeError("CubinModule: the module was moved to another one");
    return CubinKernel(::jitload::MakeKernelState(library_, name, capability_, kernels_.c_str()));
  }

  CubinKernel operator[](const char* name) const { return GetKernel(name); }

  /* A kernel that may use the most dynamic shared memory that a device gives beside the kernel's own static size, on
   * each device from its first launch on; an amount that no device here can give throws. */
  CubinKernel GetKernelWithMaxDynamicSharedMemory(const char* name, int64_t dynamic_smem_max = -1) const {
    return GetKernelWithMaxDynamicSharedMemory(name, 0, dynamic_smem_max);
  }
  CubinKernel GetKernelWithMaxDynamicSharedMemory(const char* name, int64_t static_smem, int64_t dynamic_smem_max) const {
    CubinKernel kernel = GetKernel(name);
    ::jitload::AllowMostShared(kernel.state_.get(), static_smem, dynamic_smem_max);
    return kernel;
  }

  cuda_api::LibraryHandle GetHandle() const { return library_; }

  CubinModule(const CubinModule&) = delete;
  CubinModule& operator=(const CubinModule&) = delete;
  CubinModule(CubinModule&& other) noexcept
      : library_(std::exchange(other.library_, nullptr)),
        capability_(other.capability_),
        kernels_(std::move(other.kernels_)) {}
  CubinModule& operator=(CubinModule&& other) noexcept {
    if (this == &other) return *this;
    Unload();
    library_ = std::exchange(other.library_, nullptr);
    capability_ = other.capability_;
    kernels_ = std::move(other.kernels_);
    return *this;
  }

 private:
  void Unload() noexcept {
    if (library_ != nullptr) ::jitload::driver_table.library_unload(library_);
  }
  cuda_api::LibraryHandle library_ = nullptr;
  int capability_ = 0;
  std::string kernels_; /* their names, for messages */
};

}  // namespace jitload_v1
}  // namespace ffi
}  // namespace tvm

/* A module's one CubinModule lives until the process ends: unloading at exit would meet a driver that is gone. */
#define JITLOAD_DEFINE_MODULE_(name, image)                                         \
  namespace {                                                                       \
  struct EmbedCubinModule_##name {                                                  \
    tvm::ffi::CubinModule mod{image};                                               \
    static EmbedCubinModule_##name* Global() {                                      \
      static EmbedCubinModule_##name* const module = new EmbedCubinModule_##name(); \
      return module;                                                                \
    }                                                                               \
  };                                                                                \
  } /* anonymous namespace */

/* Declare a cubin that is linked in as the symbols `__tvm_ffi__cubin_<name>` and `__tvm_ffi__cubin_<name>_end`. */
#undef TVM_FFI_EMBED_CUBIN
#define TVM_FFI_EMBED_CUBIN(name)                                                          \
  extern "C" __attribute__((visibility("hidden"))) const char __tvm_ffi__cubin_##name[];       \
  extern "C" __attribute__((visibility("hidden"))) const char __tvm_ffi__cubin_##name##_end[]; \
  JITLOAD_DEFINE_MODULE_(name, (::jitload::Image{reinterpret_cast<const unsigned char*>(__tvm_ffi__cubin_##name), \
      static_cast<size_t>(__tvm_ffi__cubin_##name##_end - __tvm_ffi__cubin_##name), true}))

/* The same over an array or a pointer that the program has anyhow, from `#embed` or bin2c: a cubin, or a fatbin. */
#define TVM_FFI_EMBED_CUBIN_FROM_BYTES(name, imageBytes) JITLOAD_DEFINE_MODULE_(name, ::jitload::ImageOf(imageBytes))

/* A kernel of an embedded cubin; keep it in a static variable. */
#define TVM_FFI_EMBED_CUBIN_GET_KERNEL(name, kernel_name) (EmbedCubinModule_##name::Global()->mod[kernel_name])

#endif  // TVM_FFI_EXTRA_CUDA_CUBIN_LAUNCHER_H_
