/* CUDA: the current stream, guards, checks, and memory of torch's caching allocator. */
#pragma once

#include <cuda_runtime_api.h>

#include "tensor.h"

#define JITLOAD_TORCH_CUDA_CHECK_(call, fail)                                       \
  do {                                                                              \
    const cudaError_t jitload_error_ = (call);                                      \
    if (C10_UNLIKELY(jitload_error_ != cudaSuccess)) {                              \
      (void)cudaGetLastError();                                                     \
      fail;                                                                         \
    }                                                                               \
  } while (false)
#define C10_CUDA_CHECK(...) \
  JITLOAD_TORCH_CUDA_CHECK_((__VA_ARGS__), ::jitload_torch::fail_cuda(jitload_error_, cudaGetErrorString(jitload_error_)))
#define AT_CUDA_CHECK(...) C10_CUDA_CHECK(__VA_ARGS__)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_CHECK_WARN(...) \
  JITLOAD_TORCH_CUDA_CHECK_((__VA_ARGS__), TORCH_WARN("CUDA warning: ", cudaGetErrorString(jitload_error_)))
#define C10_CUDA_IGNORE_ERROR(...) JITLOAD_TORCH_CUDA_CHECK_((__VA_ARGS__), void())
#define JITLOAD_TORCH_LIBRARY_CHECK_(Status, call, ...)                             \
  do {                                                                              \
    const Status jitload_status_ = (call);                                          \
    TORCH_CHECK(jitload_status_ == 0, __VA_ARGS__);                                 \
  } while (false)
#define TORCH_CUDABLAS_CHECK(...)                                                                                     \
  JITLOAD_TORCH_LIBRARY_CHECK_(cublasStatus_t, (__VA_ARGS__), "CUDA error: ", cublasGetStatusName(jitload_status_),  \
                               " when calling `" #__VA_ARGS__ "`")
#define TORCH_CUDASPARSE_CHECK(...)                                                                                   \
  JITLOAD_TORCH_LIBRARY_CHECK_(cusparseStatus_t, (__VA_ARGS__), "CUDA error: ",                                      \
                               cusparseGetErrorString(jitload_status_), " when calling `" #__VA_ARGS__ "`")

/* Handles of cuBLAS and other libraries, declared as in their own headers, which the text may include before or after
 * this header. */
typedef struct cublasContext* cublasHandle_t;
typedef struct cublasLtContext* cublasLtHandle_t;
typedef struct cusparseContext* cusparseHandle_t;
typedef struct cusolverDnContext* cusolverDnHandle_t;

namespace c10 { constexpr size_t hardware_destructive_interference_size = 64; } /* a name in the copy of CUDAEvent.h */
namespace c10::impl {
/* For the copy of torch's CUDAEvent.h: nobody watches a text's events. */
struct PyInterpreter {
  const PyInterpreter* operator->() const { return this; }
#define X(name) \
  template <class... T> \
  void trace_gpu_event_##name(const T&...) const {}
  X(creation) X(deletion) X(record) X(wait) X(synchronization)
#undef X
};
struct GPUTrace {
  static const PyInterpreter* get_trace() { return nullptr; }
};
}  // namespace c10::impl

namespace c10::cuda {

inline DeviceIndex current_device() {
  int index = 0;
  C10_CUDA_CHECK(cudaGetDevice(&index));
  return static_cast<DeviceIndex>(index);
}
inline DeviceIndex device_count() {
  int count = 0;
  C10_CUDA_IGNORE_ERROR(cudaGetDeviceCount(&count));
  return static_cast<DeviceIndex>(count);
}
inline void set_device(DeviceIndex index) { C10_CUDA_CHECK(cudaSetDevice(index)); }
inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }

class CUDAStream {
 public:
  CUDAStream(void* stream, DeviceIndex index)
      : stream_(static_cast<cudaStream_t>(stream)), index_(index == -1 ? current_device() : index) {}
  operator cudaStream_t() const { return stream_; }
  cudaStream_t stream() const { return stream_; }
  DeviceIndex device_index() const { return index_; }
  Device device() const { return Device(kCUDA, index_); }
  void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
  bool query() const { return cudaStreamQuery(stream_) == cudaSuccess; }
  friend bool operator==(const CUDAStream& a, const CUDAStream& b) { return a.stream_ == b.stream_ && a.index_ == b.index_; }
  friend bool operator!=(const CUDAStream& a, const CUDAStream& b) { return !(a == b); }

 private:
  cudaStream_t stream_;
  DeviceIndex index_;
};
inline CUDAStream getDefaultCUDAStream(DeviceIndex index = -1) { return CUDAStream(nullptr, index); }
inline CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex index) { return CUDAStream(stream, index); }
inline CUDAStream getCurrentCUDAStream(DeviceIndex index = -1) {
  const DeviceIndex device = index == -1 ? current_device() : index;
  return CUDAStream(jitload_torch::current_stream(device), device);
}
inline CUDAStream getStreamFromPool(int priority, DeviceIndex index = -1) {
  const DeviceIndex device = index == -1 ? current_device() : index;
  return CUDAStream(jitload_torch::stream_from_pool(priority < 0, device), device);
}
inline CUDAStream getStreamFromPool(bool is_high_priority = false, DeviceIndex index = -1) {
  return getStreamFromPool(is_high_priority ? -1 : 0, index);
}
/* Makes a stream torch's current one on its device; the current device stays. */
inline void setCurrentCUDAStream(CUDAStream stream) {
  jitload_torch::set_current_stream(stream.stream(), stream.device_index());
}

class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(OptionalArg<Device> device) {
    if (device.has_value()) set_device(*device);
  }
  explicit OptionalCUDAGuard(DeviceIndex index) { set_index(index); }
  OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
  ~OptionalCUDAGuard() { reset(); }
  void set_device(Device device) {
    TORCH_CHECK(device.is_cuda(), "Expected a CUDA device, but got ", device);
    set_index(device.has_index() ? device.index() : cuda::current_device());
  }
  void set_index(DeviceIndex index) {
    const DeviceIndex before = cuda::current_device();
    if (original_ == -1) original_ = before;
    if (before != index) cuda::set_device(index);
    current_ = index;
  }
  void reset() {
    if (current_ != original_) (void)cudaSetDevice(original_);
    current_ = original_ = -1;
  }

 protected:
  DeviceIndex original_ = -1, current_ = -1; /* -1 until a device is set */
};
class CUDAGuard : public OptionalCUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : OptionalCUDAGuard(index) {}
  explicit CUDAGuard(Device device) { set_device(device); }
  Device original_device() const { return Device(kCUDA, original_); }
  Device current_device() const { return Device(kCUDA, current_); }
};

/* Makes a stream and the stream's device current while an object lives. */
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream stream)
      : guard(stream.device()), original(getCurrentCUDAStream(stream.device_index())), current(stream) {
    setCurrentCUDAStream(stream);
  }
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  ~CUDAStreamGuard() { setCurrentCUDAStream(original); }
  CUDAStream original_stream() const { return original; }
  CUDAStream current_stream() const { return current; }
  const CUDAGuard guard;
  const CUDAStream original, current;
};

/* What the copy of torch's CUDAEvent.h names besides. */
enum class CaptureStatus { None = cudaStreamCaptureStatusNone, Active = cudaStreamCaptureStatusActive };
inline CaptureStatus currentStreamCaptureStatusMayInitCtx() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(getCurrentCUDAStream(), &status));
  return static_cast<CaptureStatus>(status);
}

namespace CUDACachingAllocator {
inline void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return reinterpret_cast<void*>(jitload_torch::python_value<long long>(jitload_torch::call_path(
      "torch.cuda.caching_allocator_alloc", "stream ", bytes, reinterpret_cast<long long>(stream))));
}
inline void* raw_alloc(size_t bytes) { return raw_alloc_with_stream(bytes, getCurrentCUDAStream()); }
inline void raw_delete(void* memory) {
  jitload_torch::call_path("torch.cuda.caching_allocator_delete", "", reinterpret_cast<long long>(memory));
}
inline void emptyCache() { jitload_torch::call_path("torch.cuda.empty_cache", ""); }
}  // namespace CUDACachingAllocator

}  // namespace c10::cuda

namespace at::cuda {
using namespace c10::cuda;

inline cudaDeviceProp* getDeviceProperties(c10::DeviceIndex index) {
  static cudaDeviceProp* properties[128] = {};
  TORCH_CHECK(index >= 0 && index < device_count(), "device=", static_cast<int>(index), ", num_gpus=",
              static_cast<int>(device_count()));
  if (properties[index] == nullptr) {
    cudaDeviceProp* fresh = new cudaDeviceProp;
    C10_CUDA_CHECK(cudaGetDeviceProperties(fresh, index));
    properties[index] = fresh;
  }
  return properties[index];
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(current_device()); }
/* torch's handles of CUDA's libraries for the current device, with its current stream. */
inline cublasHandle_t getCurrentCUDABlasHandle(bool = true) {
  return static_cast<cublasHandle_t>(jitload_torch::blas_handle());
}
#define X(T, name, function) \
  inline T name() { return static_cast<T>(jitload_torch::library_handle(function)); }
X(cublasLtHandle_t, getCurrentCUDABlasLtHandle, "_ZN2at4cuda26getCurrentCUDABlasLtHandleEv")
X(cusparseHandle_t, getCurrentCUDASparseHandle, "_ZN2at4cuda26getCurrentCUDASparseHandleEv")
X(cusolverDnHandle_t, getCurrentCUDASolverDnHandle, "_ZN2at4cuda28getCurrentCUDASolverDnHandleEv")
inline int warp_size() { return getCurrentDeviceProperties()->warpSize; }
inline bool is_available() { return device_count() > 0; }
template <class T>
T ATenCeilDiv(T a, T b) { return ceil_div(a, b); }
#undef X
}  // namespace at::cuda

namespace torch::cuda {
using at::cuda::is_available, c10::cuda::CUDAStream, c10::cuda::device_count, c10::cuda::getCurrentCUDAStream,
    c10::cuda::getDefaultCUDAStream, c10::cuda::getStreamFromPool;
inline void synchronize(int64_t index = -1) {
  c10::cuda::OptionalCUDAGuard guard;
  if (index != -1) guard.set_index(static_cast<c10::DeviceIndex>(index));
  c10::cuda::device_synchronize();
}
}  // namespace torch::cuda
