/* at::parallel_for, on OpenMP's threads if the text is compiled with -fopenmp, and else on the calling thread. */
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
  const int64_t step = grain_size > 1 ? grain_size : 1, count = (end - begin + step - 1) / step;
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = begin + i * step;
    function(start, start + step < end ? start + step : end);
  }
#else
  static_cast<void>(grain_size);
  function(begin, end);
#endif
}

}  // namespace at

#endif  // JITLOAD_TORCH_PARALLEL_H_
