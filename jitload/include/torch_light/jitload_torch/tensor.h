/* at::Tensor, which refers to a tensor of the running torch, and the operators of ATen that the user's text names. */
#pragma once

#include "accessor.h"
#include "convert.h"

namespace at {

using TensorList = ArrayRef<Tensor>;
using ITensorListRef = TensorList;

/* Each method asks torch, so that nothing that a tensor says is out of date. */
class Tensor {
 public:
  Tensor() noexcept : handle_(nullptr) {}
  explicit Tensor(jitload_torch::Handle owned) noexcept : handle_(owned) {}
  explicit Tensor(const jitload_torch::Object& object) : handle_(nullptr) {
    TORCH_CHECK_TYPE(jitload_torch::tensor_from(object.get(), &handle_), "torch returned an object that is not a tensor");
  }
  Tensor(const Tensor& other) : handle_(other.handle_ != nullptr ? jitload_torch::copy_handle(other.handle_) : nullptr) {}
  Tensor(Tensor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Tensor& operator=(const Tensor& other) & { return *this = Tensor(other); }
  Tensor& operator=(Tensor&& other) & noexcept {
    jitload_torch::Handle mine = handle_;
    handle_ = other.handle_;
    other.handle_ = mine;
    return *this;
  }
  /* Assignments to temporaries copy values: `x[0] = y` copies into a part of x. */
  Tensor& operator=(const Tensor& other) && { return assign(other); }
  Tensor& operator=(Tensor&& other) && { return assign(other); }
  Tensor& operator=(const Scalar& value) &&;
  ~Tensor() { reset(); }
  void reset() {
    if (handle_ != nullptr) jitload_torch::delete_handle(handle_);
    handle_ = nullptr;
  }
  bool defined() const { return handle_ != nullptr; }
  bool is_same(const Tensor& other) const;
  jitload_torch::Handle handle() const { return handle_; }

  // ---- what a tensor is
  int64_t dim() const { return jitload_torch::tensor_dim(handle_); }
  int64_t ndimension() const { return dim(); }
  IntArrayRef sizes() const { return IntArrayRef(jitload_torch::tensor_sizes(handle_), static_cast<size_t>(dim())); }
  IntArrayRef strides() const { return IntArrayRef(jitload_torch::tensor_strides(handle_), static_cast<size_t>(dim())); }
  int64_t size(int64_t index) const { return jitload_torch::tensor_sizes(handle_)[wrap(index)]; }
  int64_t stride(int64_t index) const { return jitload_torch::tensor_strides(handle_)[wrap(index)]; }
  int64_t numel() const { return jitload_torch::tensor_numel(handle_); }
  ScalarType scalar_type() const { return static_cast<ScalarType>(jitload_torch::tensor_dtype(handle_)); }
  TypeMeta dtype() const { return scalar_type(); }
  int64_t element_size() const { return static_cast<int64_t>(itemsize()); }
  size_t itemsize() const { return elementSize(scalar_type()); }
  size_t nbytes() const { return is_sparse() ? static_cast<size_t>(property(".nbytes")) : static_cast<size_t>(numel()) * itemsize(); }
  Device device() const;
  DeviceIndex get_device() const { return device().index(); } /* a character, when printed */
#define X(name, kind) \
  bool name() const { return defined() && device().type() == DeviceType::kind; }
  X(is_cuda, CUDA) X(is_cpu, CPU) X(is_meta, Meta) X(is_xpu, XPU) X(is_mps, MPS) X(is_hip, HIP)
#undef X
  bool is_sparse() const { return layout() == kSparse; }
  bool is_quantized() const { return scalar_type() >= kQInt8 && scalar_type() <= kQInt32; }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  bool is_complex() const { return isComplexType(scalar_type()); }
  bool is_signed() const { return isIntegralType(scalar_type(), true) ? scalar_type() >= kChar && scalar_type() <= kLong : scalar_type() != kFloat8_e8m0fnu; }
  Layout layout() const { return static_cast<Layout>(jitload_torch::tensor_layout(handle_)); }
  TensorOptions options() const;
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  MemoryFormat suggest_memory_format() const;
  const Tensor& set_requires_grad(bool value) const;
  Tensor& requires_grad_(bool value = true) const;
  bool requires_grad() const { return defined() && property(".requires_grad") != 0; }
  /* Properties and methods of Python's. */
#define X(T, name, path) \
  T name() const { return static_cast<T>(property(path)); }
  X(bool, is_leaf, ".is_leaf") X(bool, retains_grad, ".retains_grad") X(int64_t, output_nr, ".output_nr")
  X(int64_t, _version, "._version") X(bool, is_conj, ".is_conj") X(bool, is_neg, ".is_neg")
  X(bool, is_nested, ".is_nested") X(bool, is_inference, ".is_inference") X(void, retain_grad, ".retain_grad")
#undef X
  bool is_alias_of(const Tensor& other) const;
  void set_data(const Tensor& data) const;
  int64_t storage_offset() const { return jitload_torch::tensor_storage_offset(handle_); }
  const Tensor grad() const; /* as in torch, nothing can be assigned to it */
  void backward(const Tensor& gradient = {}, OptionalArg<bool> retain_graph = {}, bool create_graph = false,
                OptionalArg<TensorList> inputs = {}) const;

  /* The result of x.type(). Old texts pass it to AT_DISPATCH_…, or ask it for the scalar type. */
  struct Type {
    ScalarType scalar;
    bool cuda;
    ScalarType scalarType() const { return scalar; }
    bool is_cuda() const { return cuda; }
    operator ScalarType() const { return scalar; }
  };
  Type type() const { return {scalar_type(), is_cuda()}; }

  // ---- its memory
  void* data_ptr() const { return jitload_torch::tensor_data(handle_); }
  template <class T>
  T* data_ptr() const {
    check<T>();
    void* const memory = data_ptr();
    jitload_torch::check_allocated(handle_, memory, sizeof(T));
    return static_cast<T*>(memory);
  }
  template <class T>
  T* mutable_data_ptr() const { return data_ptr<T>(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <class T>
  const typename jitload_torch::identity<T>::type* const_data_ptr() const {
    check<T>();
    const void* const memory = const_data_ptr();
    jitload_torch::check_allocated(handle_, memory, sizeof(T));
    return static_cast<const T*>(memory);
  }
  const void* const_data_ptr() const { return jitload_torch::tensor_const_data(handle_); }
  template <class T>
  T* data() const { return data_ptr<T>(); }
  Tensor data() const;
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const {
    check_dim(N);
    return TensorAccessor<T, N>(data_ptr<T>(), sizes().data(), strides().data());
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, I> generic_packed_accessor() const {
    check_dim(N);
    return GenericPackedTensorAccessor<T, N, Traits, I>(data_ptr<T>(), sizes().data(), strides().data());
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const {
    TORCH_CHECK(numel() <= INT32_MAX, "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
    return generic_packed_accessor<T, N, Traits, int32_t>();
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const {
    return generic_packed_accessor<T, N, Traits, int64_t>();
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, I> packed_accessor() const {
    return generic_packed_accessor<T, N, Traits, I>();
  }
  Scalar item() const;
  template <class T>
  T item() const { return item().template to<T>(); }

  // ---- other tensors
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  Tensor cpu() const;
  Tensor cuda() const;
  Tensor toType(ScalarType type) const;
  Tensor convert(const TensorOptions& options) const; /* x.to(options), of jitload's own */
  Tensor operator[](int64_t index) const;
  Tensor operator[](const Scalar& index) const;
  Tensor operator[](const Tensor& index) const;
  Tensor index(ArrayRef<indexing::TensorIndex> indices) const;
  Tensor& index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor& value, bool accumulate = false);
  Tensor& index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar& value);
  Tensor index_put(ArrayRef<indexing::TensorIndex> indices, const Tensor& value, bool accumulate = false) const;
  Tensor operator-() const;
  Tensor operator~() const;
#define X(op)                                \
  Tensor& operator op(const Tensor & other); \
  Tensor& operator op(const Scalar & other);
  X(+=) X(-=) X(*=) X(/=) X(&=) X(|=) X(^=)
#undef X

#if defined(JITLOAD_TORCH_METHODS)
  JITLOAD_TORCH_METHODS /* the methods that the text names; jitload defines this macro in front of the text */
#endif

 private:
  int64_t property(const char* path) const;
  Tensor& assign(const Tensor& other);
  int64_t wrap(int64_t index) const;
  template <class T>
  void check() const {
    const ScalarType type = CppTypeToScalarType<T>::value;
    const ScalarType actual = scalar_type();
    if (C10_UNLIKELY(actual != type)) jitload_torch::check_dtype(static_cast<int8_t>(type), static_cast<int8_t>(actual));
  }
  void check_dim(size_t count) const {
    TORCH_CHECK(dim() == static_cast<int64_t>(count), "TensorAccessor expected ", count, " dims but tensor has ", dim());
  }
  jitload_torch::Handle handle_;
};

using TensorBase = Tensor;

}  // namespace at

#include "operators.h"

namespace at {

// ---- indexing -----------------------------------------------------------------------------------------------------

namespace indexing {

struct EllipsisIndexType {};
const EllipsisIndexType Ellipsis{};
struct NoneType {};
const NoneType None{};

struct Slice {
  struct Bound : OptionalArg<int64_t> {
    using OptionalArg<int64_t>::OptionalArg;
    Bound(NoneType = {}) {}
  };
  Slice(Bound start = {}, Bound stop = {}, Bound step = {}) : start(start), stop(stop), step(step) {}
  OptionalArg<int64_t> start, stop, step;
};

class TensorIndex {
 public:
  TensorIndex(NoneType) : object_(jitload_torch::none()) {}
  TensorIndex(const std::nullopt_t&) : object_(jitload_torch::none()) {}
  TensorIndex(EllipsisIndexType) : TensorIndex("...") {}
  TensorIndex(const char* text);
#define X(T) TensorIndex(T value) : object_(jitload_torch::Caster<T>::to_python(value)), tensor_bits_(__is_same(T, bool)) {}
  X(long) X(long long) X(int) X(bool)
#undef X
  TensorIndex(const Slice& slice);
  TensorIndex(const Tensor& tensor);
  TensorIndex(const TensorIndex& other) : object_(other.to_python()), tensor_bits_(other.tensor_bits_) {}
  void operator=(const TensorIndex& other) { object_ = other.to_python(), tensor_bits_ = other.tensor_bits_; }
  jitload_torch::Object to_python() const { return jitload_torch::borrow(object_.get()); }
  int tensor_bits() const { return tensor_bits_; } /* 1 for a tensor or a bool, which becomes one, and 2 for an undefined tensor */

 private:
  jitload_torch::Object object_;
  int tensor_bits_ = 0;
};

}  // namespace indexing

#define X(symbol)                                            \
  Tensor operator symbol(const Tensor& a, const Tensor& b);  \
  Tensor operator symbol(const Tensor& a, const Scalar& b);  \
  Tensor operator symbol(const Scalar& a, const Tensor& b);
X(+) X(-) X(*) X(/) X(%) X(<) X(<=) X(>) X(>=) X(==) X(!=) X(&) X(|) X(^)
#undef X

struct GradMode {
  static bool is_enabled() { return jitload_torch::is_grad_enabled(); }
  static void set_enabled(bool enabled) { jitload_torch::set_grad_enabled(enabled); }
};
/* Turns the recording of gradients on or off while an object of this class lives. */
struct AutoGradMode {
  explicit AutoGradMode(bool enabled) : was_enabled(GradMode::is_enabled()) { GradMode::set_enabled(enabled); }
  AutoGradMode(const AutoGradMode&) = delete;
  ~AutoGradMode() { GradMode::set_enabled(was_enabled); }
  const bool was_enabled;
};
struct NoGradGuard : AutoGradMode {
  NoGradGuard() : AutoGradMode(false) {}
};

#if defined(JITLOAD_TORCH_FUNCTIONS)
JITLOAD_TORCH_FUNCTIONS
#endif

// ---- tensors from values ------------------------------------------------------------------------------------------

namespace detail {

/* What torch::tensor takes: a number, an array, or a braced list of numbers or lists. */
class TensorDataContainer {
 public:
  TensorDataContainer() : TensorDataContainer(kFloat, nullptr, 0) {}
#define X(T, name, ...) TensorDataContainer(T value) : type_(k##name), numbers_(new Scalar[1]{value}) {}
  JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X
  TensorDataContainer(std::initializer_list<TensorDataContainer> list);
  template <class C, class T = typename C::value_type>
  TensorDataContainer(const C& values)
      : TensorDataContainer(CppTypeToScalarType<T>::value, ArrayRef<T>(values).data(), static_cast<int64_t>(values.size())) {}
#if defined(_GLIBCXX_VECTOR)
  TensorDataContainer(const std::vector<int>& values) : TensorDataContainer(ArrayRef<int>(values)) {}
#endif
  TensorDataContainer(const TensorDataContainer&) = delete;
  ~TensorDataContainer() { delete[] numbers_; }
  /* torch::tensor chooses the default dtype and int64 for numbers of C++; at::tensor keeps theirs, and has no 0-dim tensors. */
  Tensor to_tensor(const TensorOptions& options, bool is_plain) const;

 private:
  TensorDataContainer(ScalarType type, const void* values, int64_t count); /* an array, which becomes a tensor at once */
  Tensor fill_each(const TensorOptions& options, IntArrayRef sizes) const;
  ScalarType type_;
  size_t dim_ = 0;
  int64_t sizes_[64] = {1}; /* torch has no tensors of more dimensions */
  Scalar* numbers_ = nullptr; /* all numbers of a list, in order */
  Tensor array_;
};

}  // namespace detail
inline Tensor tensor(const detail::TensorDataContainer& data, const TensorOptions& options = {}) {
  return data.to_tensor(options, true);
}
}  // namespace at
namespace torch {
using Tensor = at::Tensor; /* as compilers' messages name it */
inline at::Tensor tensor(const at::detail::TensorDataContainer& data, const at::TensorOptions& options = {}) {
  return data.to_tensor(options, false);
}
}  // namespace torch
namespace at {

// ---- tensors over memory ------------------------------------------------------------------------------------------

namespace detail {
Tensor tensor_over(void* data, IntArrayRef sizes, const int64_t* strides, const TensorOptions& options,
                   void (*release)(void*, void*), void* context);
template <class F>
void release_with(void* data, void* context) {
  F* function = static_cast<F*>(context);
  (*function)(data);
  delete function;
}
}  // namespace detail
inline Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& options = {}) {
  return detail::tensor_over(data, sizes, nullptr, options, nullptr, nullptr);
}
inline Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options = {}) {
  return detail::tensor_over(data, sizes, strides.data(), options, nullptr, nullptr);
}
template <class F, class = decltype(jitload_torch::value_of<F&>()(jitload_torch::value_of<void*>()))>
Tensor from_blob(void* data, IntArrayRef sizes, F deleter, const TensorOptions& options = {}) {
  return detail::tensor_over(data, sizes, nullptr, options, &detail::release_with<F>, new F(deleter));
}
template <class F, class = decltype(jitload_torch::value_of<F&>()(jitload_torch::value_of<void*>()))>
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, F deleter, const TensorOptions& options = {}) {
  return detail::tensor_over(data, sizes, strides.data(), options, &detail::release_with<F>, new F(deleter));
}

}  // namespace at

namespace jitload_torch {
void append(Message& m, const at::Tensor& value); /* as torch prints it */
inline void append(Message& m, const at::Tensor::Type& type) {
  append_all(m, type.cuda ? "torch.cuda." : "torch.", type.scalar, "Tensor");
}
}  // namespace jitload_torch

namespace at {
inline int64_t numel(const Tensor& tensor) { return tensor.numel(); }

template <class T>
C10_HOST_DEVICE constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <class T>
C10_HOST_DEVICE bool _isnan(T value) { /* a name in the copies of torch's headers */
  return value != value;
}

/* On torch's threads if the text is compiled with -fopenmp, and else on the calling thread. */
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, const F& function) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(grain_size >= 0);
  if (begin >= end) return;
#if defined(_OPENMP)
  jitload_torch::parallel_for(
      begin, end, grain_size,
      [](int64_t first, int64_t last, void* context) { (*static_cast<const F*>(context))(first, last); },
      const_cast<void*>(static_cast<const void*>(&function)));
#else
  function(begin, end);
#endif
}

namespace internal { constexpr int64_t GRAIN_SIZE = 32768; }
int get_num_threads();
void manual_seed(uint64_t seed);
#if defined(_GLIBCXX_OSTREAM)
inline std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) { return stream << jitload_torch::Text(tensor).text(); }
#endif
/* The device of a tensor on a GPU, or nothing for a tensor on the CPU. */
OptionalArg<Device> device_of(const Tensor& tensor);
}  // namespace at

namespace c10 {
using at::Tensor;

/* Makes a GPU current while an object of this class lives. Texts without CUDA's headers have no other way to do so. */
struct OptionalDeviceGuard {
  explicit OptionalDeviceGuard(OptionalArg<Device> device = {});
  OptionalDeviceGuard(const OptionalDeviceGuard&) = delete;
  ~OptionalDeviceGuard();
  int original = -1;
};
using DeviceGuard = OptionalDeviceGuard;
}  // namespace c10
