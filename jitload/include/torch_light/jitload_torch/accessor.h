/* Accessors: a tensor's memory with its sizes and strides, for loops on the host and for kernels. */
#pragma once

#include "check.h"

namespace at {

template <class T>
struct DefaultPtrTraits {
  using PtrType = T*;
};
template <class T>
struct RestrictPtrTraits {
  using PtrType = T* __restrict__;
};

template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class TensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  C10_HOST_DEVICE TensorAccessor(PtrType data, const I* sizes, const I* strides) : data_(data), sizes_(sizes), strides_(strides) {}
  ArrayRef<I> sizes() const { return ArrayRef<I>(sizes_, N); }
  ArrayRef<I> strides() const { return ArrayRef<I>(strides_, N); }
  C10_HOST_DEVICE I size(I dim) const { return sizes_[dim]; }
  C10_HOST_DEVICE I stride(I dim) const { return strides_[dim]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }
  C10_HOST_DEVICE decltype(auto) operator[](I i) const {
    if constexpr (N == 1) {
      return static_cast<T&>(data_[strides_[0] * i]);
    } else {
      return TensorAccessor<T, N - 1, Traits, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
    }
  }

 private:
  PtrType data_;
  const I* sizes_;
  const I* strides_;
};

/* An accessor that is passed to kernels by value, so it contains the sizes and strides. */
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class GenericPackedTensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  template <class S>
  GenericPackedTensorAccessor(PtrType data, const S* sizes, const S* strides) : data_(data) {
    for (size_t i = 0; i < N; ++i) sizes_[i] = static_cast<I>(sizes[i]), strides_[i] = static_cast<I>(strides[i]);
  }
  C10_HOST_DEVICE I size(I dim) const { return sizes_[dim]; }
  C10_HOST_DEVICE I stride(I dim) const { return strides_[dim]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }
  C10_HOST_DEVICE decltype(auto) operator[](I i) { return TensorAccessor<T, N, Traits, I>(data_, sizes_, strides_)[i]; }
  C10_HOST_DEVICE decltype(auto) operator[](I i) const { return TensorAccessor<const T, N, Traits, I>(data_, sizes_, strides_)[i]; }

 private:
  PtrType data_;
  I sizes_[N];
  I strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, Traits, I>;

}  // namespace at
