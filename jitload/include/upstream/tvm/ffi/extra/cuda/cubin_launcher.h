/* jitload's `tvm/ffi/extra/cuda/cubin_launcher.h`: cubins and their kernels, launched through libcuda.
 *
 * It replaces tvm-ffi's header and has the same interface. libcuda is loaded at run time, so that nothing needs to be
 * linked and libraries also load on machines without a GPU.
 */
#ifndef TVM_FFI_EXTRA_CUDA_CUBIN_LAUNCHER_H_
#define TVM_FFI_EXTRA_CUDA_CUBIN_LAUNCHER_H_

#include <jitload/launcher.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/internal/unified_api.h>
#include <tvm/ffi/string.h>

#include <type_traits>

namespace jitload {
inline namespace v1 {

/* The bytes in an array, behind a pointer, or in a container with data() and size(). */
template <class Source>
Image MakeImage(const Source& source) {
  if constexpr (std::is_array_v<Source>) {
    const size_t count = std::extent_v<Source>;
    return {reinterpret_cast<const unsigned char*>(&source[0]), count != 0 ? count * sizeof(source[0]) : kUnknownSize};
  } else if constexpr (std::is_pointer_v<Source>) {
    return {reinterpret_cast<const unsigned char*>(source), kUnknownSize};
  } else {
    return {reinterpret_cast<const unsigned char*>(source.data()), source.size() * sizeof(*source.data())};
  }
}

inline Image EmbeddedImage(const char* begin, const char* end) {
  const size_t size = end != nullptr ? static_cast<size_t>(end - begin) : kUnknownSize;
  return {reinterpret_cast<const unsigned char*>(begin), size};
}

}  // namespace v1
}  // namespace jitload

namespace tvm::ffi {
inline namespace jitload_v1 {

/* A kernel on all devices: a launch goes to the device of its stream. Movable; several threads may launch it. */
class CubinKernel {
 public:
  CubinKernel(cuda_api::LibraryHandle library, const char* name)
      : CubinKernel(::jitload::Library{library, 0, false}, name) {}
  ~CubinKernel() { ::jitload::FreeKernel(state_); }

  /* Launch, with dynamic shared memory up to the device's opt-in limit. Check the result with one of the macros of
   * base.h, such as TVM_FFI_CHECK_CUDA_ERROR: its message has the details of a failed launch. */
  cuda_api::Result Launch(void** args, dim3 grid, dim3 block, cuda_api::StreamHandle stream,
                          uint32_t dyn_smem_bytes = 0) {
    return LaunchWithConfig(args, cuda_api::MakeConfig(grid, block, stream, dyn_smem_bytes));
  }

  /* Launch with attributes: the driver's `CUlaunchConfig`, or the runtime's `cudaLaunchConfig_t`. */
  cuda_api::Result LaunchEx(void** args, const CUlaunchConfig& config) {
    return LaunchWithConfig(args, cuda_api::MakeConfig(config));
  }
#if JITLOAD_HAS_CUDA_RUNTIME
  cuda_api::Result LaunchEx(void** args, const cudaLaunchConfig_t& config) {
    return LaunchWithConfig(args, cuda_api::MakeConfig(config));
  }
#endif

  cuda_api::KernelHandle GetHandle() const {
    return static_cast<cuda_api::KernelHandle>(::jitload::GetKernelHandle(state_));
  }

  CubinKernel(const CubinKernel&) = delete;
  CubinKernel& operator=(const CubinKernel&) = delete;
  CubinKernel(CubinKernel&& other) noexcept : state_(other.state_) { other.state_ = nullptr; }
  CubinKernel& operator=(CubinKernel&& other) noexcept {
    if (this == &other) return *this;
    ::jitload::FreeKernel(state_);
    state_ = other.state_;
    other.state_ = nullptr;
    return *this;
  }

 private:
  friend class CubinModule;
  CubinKernel(const ::jitload::Library& library, const char* name) : state_(::jitload::MakeKernel(&library, name)) {
    if (state_ == nullptr) cuda_api::ThrowRaised();
  }
  cuda_api::Result LaunchWithConfig(void** args, const jitload_cu_config& config) {
    return cuda_api::Result(::jitload::LaunchKernel(state_, args, &config));
  }
  ::jitload::KernelState* state_;
};

/* A cubin or a fatbin that the driver has loaded. The driver takes from a fatbin the code that suits the device. The
 * constructor throws if the bytes are neither a cubin nor a fatbin. Movable. */
class CubinModule {
 public:
  explicit CubinModule(const Bytes& bytes)
      : CubinModule(::jitload::Image{reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}) {}
  explicit CubinModule(const char* code) : CubinModule(reinterpret_cast<const unsigned char*>(code)) {}
  explicit CubinModule(const unsigned char* code)
      : CubinModule(::jitload::Image{code, ::jitload::kUnknownSize}) {}
  explicit CubinModule(const ::jitload::Image& image) {
    cuda_api::ThrowIfFailed(::jitload::LoadImage(&image, &library_));
  }
  ~CubinModule() { ::jitload::Unload(&library_); }

  CubinKernel GetKernel(const char* name) const { return CubinKernel(library_, name); }
  CubinKernel operator[](const char* name) const { return GetKernel(name); }

  /* Return a kernel that may use as much dynamic shared memory as each device allows in addition to its static size.
   * Throw for an amount that no device can provide. */
  CubinKernel GetKernelWithMaxDynamicSharedMemory(const char* name, int64_t dynamic_smem_max = -1) const {
    return GetKernelWithMaxDynamicSharedMemory(name, 0, dynamic_smem_max);
  }
  CubinKernel GetKernelWithMaxDynamicSharedMemory(const char* name, int64_t static_smem,
                                                  int64_t dynamic_smem_max) const {
    CubinKernel kernel = GetKernel(name);
    cuda_api::ThrowIfFailed(::jitload::AllowMaxShared(kernel.state_, static_smem, dynamic_smem_max));
    return kernel;
  }

  cuda_api::LibraryHandle GetHandle() const { return static_cast<cuda_api::LibraryHandle>(library_.handle); }

  CubinModule(const CubinModule&) = delete;
  CubinModule& operator=(const CubinModule&) = delete;
  CubinModule(CubinModule&& other) noexcept : library_(other.library_) { other.library_ = {}; }
  CubinModule& operator=(CubinModule&& other) noexcept {
    if (this == &other) return *this;
    ::jitload::Unload(&library_);
    library_ = other.library_;
    other.library_ = {};
    return *this;
  }

 private:
  ::jitload::Library library_ = {};
};

}  // namespace jitload_v1
}  // namespace tvm::ffi

/* A module's CubinModule is never destroyed, because the driver may be unloaded before static destructors run. */
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

/* Declare a cubin that is linked in as the symbols `__tvm_ffi__cubin_<name>` and, for its size, `…_end`. */
#undef TVM_FFI_EMBED_CUBIN
#define TVM_FFI_EMBED_CUBIN(name)                                                                    \
  extern "C" __attribute__((visibility("hidden"))) const char __tvm_ffi__cubin_##name[];             \
  extern "C" __attribute__((visibility("hidden"), weak)) const char __tvm_ffi__cubin_##name##_end[]; \
  JITLOAD_DEFINE_MODULE_(name, ::jitload::EmbeddedImage(__tvm_ffi__cubin_##name, __tvm_ffi__cubin_##name##_end))

/* Define a module from a cubin or fatbin in an array or behind a pointer, for example from `#embed` or bin2c. */
#define TVM_FFI_EMBED_CUBIN_FROM_BYTES(name, imageBytes) JITLOAD_DEFINE_MODULE_(name, ::jitload::MakeImage(imageBytes))

/* A kernel of an embedded cubin; keep it in a static variable. */
#define TVM_FFI_EMBED_CUBIN_GET_KERNEL(name, kernel_name) (EmbedCubinModule_##name::Global()->mod[kernel_name])

#endif  // TVM_FFI_EXTRA_CUDA_CUBIN_LAUNCHER_H_
