/* CUDA's events, and memory of torch's caching allocator. */
#ifndef JITLOAD_TORCH_EVENT_H_
#define JITLOAD_TORCH_EVENT_H_

#include "cuda.h"

namespace c10 {
namespace cuda {

class CUDAEvent {
 public:
  CUDAEvent() noexcept = default;
  CUDAEvent(unsigned flags) noexcept : flags_(flags) {}
  CUDAEvent(const CUDAEvent&) = delete;
  CUDAEvent(CUDAEvent&& other) noexcept { *this = static_cast<CUDAEvent&&>(other); }
  CUDAEvent& operator=(CUDAEvent&& other) noexcept {
    const auto swap = [](auto& a, auto& b) {
      const auto before = a;
      a = b;
      b = before;
    };
    swap(flags_, other.flags_);
    swap(was_recorded_, other.was_recorded_);
    swap(device_index_, other.device_index_);
    swap(event_, other.event_);
    return *this;
  }
  ~CUDAEvent() {
    if (event_ == nullptr) return;
    const CUDAGuard guard(device_index_);
    (void)cudaEventDestroy(event_);
  }
  operator cudaEvent_t() const { return event_; }
  cudaEvent_t event() const { return event_; }
  bool isCreated() const { return event_ != nullptr; }
  DeviceIndex device_index() const { return device_index_; }
  void create(DeviceIndex index) {
    if (event_ != nullptr) return;
    device_index_ = index;
    const CUDAGuard guard(index);
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags_));
  }
  void record() { record(getCurrentCUDAStream()); }
  void record(const CUDAStream& stream) {
    create(stream.device_index());
    TORCH_CHECK(device_index_ == stream.device_index(), "Event device ", static_cast<int>(device_index_),
                " does not match recording stream's device ", static_cast<int>(stream.device_index()), ".");
    const CUDAGuard guard(device_index_);
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
    was_recorded_ = true;
  }
  void recordOnce(const CUDAStream& stream) {
    if (!was_recorded_) record(stream);
  }
  void block(const CUDAStream& stream) {
    if (event_ == nullptr) return;
    const CUDAGuard guard(stream.device_index());
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
  }
  bool query() const {
    const cudaError_t status = event_ != nullptr ? cudaEventQuery(event_) : cudaSuccess;
    if (status != cudaErrorNotReady) {
      C10_CUDA_CHECK(status);
      return true;
    }
    (void)cudaGetLastError();
    return false;
  }
  void synchronize() const {
    if (event_ != nullptr) C10_CUDA_CHECK(cudaEventSynchronize(event_));
  }
  float elapsed_time(const CUDAEvent& other) const {
    TORCH_CHECK_VALUE(((flags_ | other.flags_) & cudaEventDisableTiming) == 0,
                      "Both events must be created with argument 'enable_timing=True'.");
    TORCH_CHECK_VALUE(isCreated() && other.isCreated(), "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(query() && other.query(), "Both events must be completed before calculating elapsed time.");
    float milliseconds = 0;
    const CUDAGuard guard(device_index_);
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_, other.event_));
    return milliseconds;
  }

 private:
  unsigned flags_ = cudaEventDisableTiming;
  bool was_recorded_ = false;
  DeviceIndex device_index_ = -1;
  cudaEvent_t event_ = nullptr;
};

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

}  // namespace cuda
}  // namespace c10

#endif  // JITLOAD_TORCH_EVENT_H_
