/* CUDA: the current stream, guards and checks. */
#ifndef JITLOAD_TORCH_CUDA_H_
#define JITLOAD_TORCH_CUDA_H_

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
#define C10_CUDA_CHECK(...)                                                         \
  JITLOAD_TORCH_CUDA_CHECK_((__VA_ARGS__), ::jitload_torch::fail_cuda(cudaGetErrorString(jitload_error_), \
                                                                      cudaGetErrorName(jitload_error_)))
#define AT_CUDA_CHECK(...) C10_CUDA_CHECK(__VA_ARGS__)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_CHECK_WARN(...) \
  JITLOAD_TORCH_CUDA_CHECK_((__VA_ARGS__), TORCH_WARN("CUDA warning: ", cudaGetErrorString(jitload_error_)))
#define C10_CUDA_IGNORE_ERROR(...) JITLOAD_TORCH_CUDA_CHECK_((__VA_ARGS__), void())
#define JITLOAD_TORCH_LIBRARY_CHECK_(library, name_of, call, ...)                                                     \
  do {                                                                                                               \
    const library##Status_t jitload_status_ = (__VA_ARGS__);                                                         \
    TORCH_CHECK(jitload_status_ == 0, "CUDA error: ", name_of(jitload_status_), " when calling `" call "`");         \
  } while (false)
#define TORCH_CUDABLAS_CHECK(...) JITLOAD_TORCH_LIBRARY_CHECK_(cublas, cublasGetStatusName, #__VA_ARGS__, __VA_ARGS__)
#define TORCH_CUDASPARSE_CHECK(...) \
  JITLOAD_TORCH_LIBRARY_CHECK_(cusparse, cusparseGetErrorString, #__VA_ARGS__, __VA_ARGS__)
#define AT_CUDNN_CHECK(...)                                                                                         \
  do {                                                                                                              \
    const cudnnStatus_t jitload_status_ = (__VA_ARGS__);                                                            \
    TORCH_CHECK(jitload_status_ == CUDNN_STATUS_SUCCESS, "cuDNN error: ", cudnnGetErrorString(jitload_status_),     \
                jitload_status_ == CUDNN_STATUS_NOT_SUPPORTED                                                       \
                    ? ". This error may appear if you passed in a non-contiguous input."                            \
                    : "");                                                                                          \
  } while (false)
#define TORCH_CUSOLVER_CHECK(...)                                                                                   \
  do {                                                                                                              \
    const int jitload_status_ = static_cast<int>(__VA_ARGS__);                                                      \
    if (C10_UNLIKELY(jitload_status_ != 0)) ::jitload_torch::fail_cusolver(jitload_status_, #__VA_ARGS__);          \
  } while (false)
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                            \
  int64_t i##_next_ = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;         \
  for (index_type i = static_cast<index_type>(i##_next_); i##_next_ < (n);                 \
       i##_next_ += static_cast<int64_t>(blockDim.x) * gridDim.x, i = static_cast<index_type>(i##_next_))
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

/* Handles of cuBLAS and other libraries, declared as in their own headers, which the text may include before or after
 * this header. */
typedef struct cublasContext* cublasHandle_t;
typedef struct cublasLtContext* cublasLtHandle_t;
typedef struct cusparseContext* cusparseHandle_t;
typedef struct cusolverDnContext* cusolverDnHandle_t;
typedef struct cudnnContext* cudnnHandle_t;

namespace c10 {
namespace cuda {

inline DeviceIndex current_device() {
  int index = 0;
  C10_CUDA_CHECK(cudaGetDevice(&index));
  return static_cast<DeviceIndex>(index);
}
inline DeviceIndex device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return static_cast<DeviceIndex>(count);
}
inline void set_device(DeviceIndex index) { C10_CUDA_CHECK(cudaSetDevice(index)); }
inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }

class CUDAStream {
 public:
  CUDAStream(cudaStream_t stream, DeviceIndex index) : stream_(stream), index_(index) {}
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
inline CUDAStream getCurrentCUDAStream(DeviceIndex index = -1) {
  const DeviceIndex device = index == -1 ? current_device() : index;
  return CUDAStream(static_cast<cudaStream_t>(jitload_torch::current_stream(device)), device);
}
inline CUDAStream getDefaultCUDAStream(DeviceIndex index = -1) {
  return CUDAStream(nullptr, index == -1 ? current_device() : index);
}

inline CUDAStream getStreamFromPool(int priority, DeviceIndex index = -1) {
  const DeviceIndex device = index == -1 ? current_device() : index;
  return CUDAStream(static_cast<cudaStream_t>(jitload_torch::stream_from_pool(priority < 0, device)), device);
}
inline CUDAStream getStreamFromPool(bool is_high_priority = false, DeviceIndex index = -1) {
  return getStreamFromPool(is_high_priority ? -1 : 0, index);
}
inline CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex index) { return CUDAStream(stream, index); }
/* Makes a stream torch's current one on its device; the current device stays. */
inline void setCurrentCUDAStream(CUDAStream stream) {
  jitload_torch::set_current_stream(stream.stream(), stream.device_index());
}
inline void stream_synchronize(cudaStream_t stream) { C10_CUDA_CHECK(cudaStreamSynchronize(stream)); }

class CUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : original_(current_device()), current_(index) { switch_to(index); }
  explicit CUDAGuard(Device device) : CUDAGuard(index_of(device)) {}
  CUDAGuard(const CUDAGuard&) = delete;
  ~CUDAGuard() {
    if (current_ != original_) (void)cudaSetDevice(original_);
  }
  void set_device(Device device) { switch_to(index_of(device)); }
  void set_index(DeviceIndex index) { switch_to(index); }
  void reset_device(Device device) { set_device(device); }
  Device original_device() const { return Device(kCUDA, original_); }
  Device current_device_() const { return Device(kCUDA, current_); }

 private:
  static DeviceIndex index_of(const Device& device) {
    TORCH_CHECK(device.is_cuda(), "Expected a CUDA device, but got ", device);
    return device.has_index() ? device.index() : current_device();
  }
  void switch_to(DeviceIndex index) {
    current_ = index;
    if (current_device() != index) cuda::set_device(index);
  }
  DeviceIndex original_, current_;
};

class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(OptionalArg<Device> device) {
    if (device.has_value()) set_device(*device);
  }
  explicit OptionalCUDAGuard(DeviceIndex index) { set_index(index); }
  OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
  ~OptionalCUDAGuard() { delete guard_; }
  void set_device(Device device) { guard_ != nullptr ? guard_->set_device(device) : void(guard_ = new CUDAGuard(device)); }
  void set_index(DeviceIndex index) { set_device(Device(kCUDA, index)); }
  void reset() {
    delete guard_;
    guard_ = nullptr;
  }

 private:
  CUDAGuard* guard_ = nullptr;
};

/* Makes a stream and the stream's device current while an object lives. */
class CUDAStreamGuard {
 public:
  explicit CUDAStreamGuard(CUDAStream stream)
      : guard_(stream.device()), original_(getCurrentCUDAStream(stream.device_index())), current_(stream) {
    setCurrentCUDAStream(stream);
  }
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  ~CUDAStreamGuard() { setCurrentCUDAStream(original_); }
  CUDAStream original_stream() const { return original_; }
  CUDAStream current_stream() const { return current_; }

 private:
  CUDAGuard guard_;
  CUDAStream original_, current_;
};

}  // namespace cuda
}  // namespace c10

namespace at {
namespace cuda {
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
namespace detail {
constexpr int CUDA_NUM_THREADS = 1024;
inline int GET_BLOCKS(int64_t count, int64_t max_threads = CUDA_NUM_THREADS) {
  TORCH_INTERNAL_ASSERT(count > 0, "CUDA kernel launch blocks must be positive, but got N=", count);
  const int64_t blocks = (count - 1) / max_threads + 1;
  TORCH_INTERNAL_ASSERT(blocks <= INT32_MAX, "Can't schedule too many blocks on CUDA device");
  return static_cast<int>(blocks);
}
}  // namespace detail
inline int warp_size() { return getCurrentDeviceProperties()->warpSize; }
inline bool is_available() { return device_count() > 0; }
template <class T>
T ATenCeilDiv(T a, T b) {
  return (a + b - 1) / b;
}
}  // namespace cuda
namespace native {
X(cudnnHandle_t, getCudnnHandle, "_ZN2at6native14getCudnnHandleEv")
#undef X
}  // namespace native
}  // namespace at

namespace torch {
namespace cuda {
using c10::cuda::CUDAStream;
using c10::cuda::device_count;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::getDefaultCUDAStream;
using c10::cuda::getStreamFromPool;
inline bool is_available() { return device_count() > 0; }
inline void synchronize(int64_t index = -1) {
  if (index == -1) return c10::cuda::device_synchronize();
  c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  c10::cuda::device_synchronize();
}
}  // namespace cuda
}  // namespace torch

#endif  // JITLOAD_TORCH_CUDA_H_
