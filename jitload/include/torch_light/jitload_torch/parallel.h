/* at::parallel_for, on torch's threads if the text is compiled with -fopenmp, and else on the calling thread. */
#ifndef JITLOAD_TORCH_PARALLEL_H_
#define JITLOAD_TORCH_PARALLEL_H_

#include "tensor.h"

namespace at {

template <class T>
C10_HOST_DEVICE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
inline int64_t divup(int64_t a, int64_t b) { return ceil_div(a, b); }

template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, const F& function) {
  if (begin >= end) return;
#if defined(_OPENMP)
  jitload_torch::parallel_for(
      begin, end, grain_size,
      [](int64_t first, int64_t last, void* context) { (*static_cast<const F*>(context))(first, last); },
      const_cast<void*>(static_cast<const void*>(&function)));
#else
  static_cast<void>(grain_size);
  function(begin, end);
#endif
}

}  // namespace at

#endif  // JITLOAD_TORCH_PARALLEL_H_
