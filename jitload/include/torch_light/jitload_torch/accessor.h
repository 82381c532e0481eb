/* Accessors: a tensor's memory with its sizes and strides, for loops on the host and for kernels. */
#ifndef JITLOAD_TORCH_ACCESSOR_H_
#define JITLOAD_TORCH_ACCESSOR_H_

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
class TensorAccessorBase {
 public:
  using PtrType = typename Traits<T>::PtrType;
  C10_HOST_DEVICE TensorAccessorBase(PtrType data, const I* sizes, const I* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  C10_HOST ArrayRef<I> sizes() const { return ArrayRef<I>(sizes_, N); }
  C10_HOST ArrayRef<I> strides() const { return ArrayRef<I>(strides_, N); }
  C10_HOST_DEVICE I size(I dim) const { return sizes_[dim]; }
  C10_HOST_DEVICE I stride(I dim) const { return strides_[dim]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }

 protected:
  PtrType data_;
  const I* sizes_;
  const I* strides_;
};

template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class TensorAccessor : public TensorAccessorBase<T, N, Traits, I> {
 public:
  using TensorAccessorBase<T, N, Traits, I>::TensorAccessorBase;
  C10_HOST_DEVICE TensorAccessor<T, N - 1, Traits, I> operator[](I i) const {
    return {this->data_ + this->strides_[0] * i, this->sizes_ + 1, this->strides_ + 1};
  }
};
template <class T, template <class> class Traits, class I>
class TensorAccessor<T, 1, Traits, I> : public TensorAccessorBase<T, 1, Traits, I> {
 public:
  using TensorAccessorBase<T, 1, Traits, I>::TensorAccessorBase;
  C10_HOST_DEVICE T& operator[](I i) const { return this->data_[this->strides_[0] * i]; }
};

/* An accessor that is passed to kernels by value, so it contains the sizes and strides. */
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class GenericPackedTensorAccessorBase {
 public:
  using PtrType = typename Traits<T>::PtrType;
  template <class S>
  GenericPackedTensorAccessorBase(PtrType data, const S* sizes, const S* strides) : data_(data) {
    for (size_t i = 0; i < N; ++i) {
      sizes_[i] = static_cast<I>(sizes[i]);
      strides_[i] = static_cast<I>(strides[i]);
    }
  }
  C10_HOST_DEVICE I size(I dim) const { return sizes_[dim]; }
  C10_HOST_DEVICE I stride(I dim) const { return strides_[dim]; }
  C10_HOST_DEVICE PtrType data() const { return data_; }

 protected:
  PtrType data_;
  I sizes_[N];
  I strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class GenericPackedTensorAccessor : public GenericPackedTensorAccessorBase<T, N, Traits, I> {
 public:
  using GenericPackedTensorAccessorBase<T, N, Traits, I>::GenericPackedTensorAccessorBase;
  C10_HOST_DEVICE TensorAccessor<T, N - 1, Traits, I> operator[](I i) {
    return {this->data_ + this->strides_[0] * i, this->sizes_ + 1, this->strides_ + 1};
  }
  C10_HOST_DEVICE TensorAccessor<const T, N - 1, Traits, I> operator[](I i) const {
    return {this->data_ + this->strides_[0] * i, this->sizes_ + 1, this->strides_ + 1};
  }
};
template <class T, template <class> class Traits, class I>
class GenericPackedTensorAccessor<T, 1, Traits, I> : public GenericPackedTensorAccessorBase<T, 1, Traits, I> {
 public:
  using GenericPackedTensorAccessorBase<T, 1, Traits, I>::GenericPackedTensorAccessorBase;
  C10_HOST_DEVICE T& operator[](I i) { return this->data_[this->strides_[0] * i]; }
  C10_HOST_DEVICE const T& operator[](I i) const { return this->data_[this->strides_[0] * i]; }
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, Traits, I>;

}  // namespace at

#endif  // JITLOAD_TORCH_ACCESSOR_H_
