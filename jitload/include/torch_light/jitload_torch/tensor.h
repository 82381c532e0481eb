/* at::Tensor, which refers to a tensor of the running torch, and the operators of ATen that the user's text names. */
#ifndef JITLOAD_TORCH_TENSOR_H_
#define JITLOAD_TORCH_TENSOR_H_

#include "accessor.h"
#include "convert.h"

namespace at {

class Tensor;
using TensorList = ArrayRef<Tensor>;
using ITensorListRef = TensorList;
namespace indexing {
class TensorIndex;
}

class Tensor {
 public:
  Tensor() noexcept : node_(nullptr) {}
  explicit Tensor(jitload_torch::Node* owned) noexcept : node_(owned) {}
  explicit Tensor(jitload_torch::Object object) : node_(jitload_torch::share(static_cast<jitload_torch::Object&&>(object))) {}
  Tensor(const Tensor& other) : node_(other.node_) {
    if (node_ != nullptr) __atomic_fetch_add(&node_->count, 1, __ATOMIC_RELAXED);
  }
  Tensor(Tensor&& other) noexcept : node_(other.node_) { other.node_ = nullptr; }
  Tensor& operator=(const Tensor& other) & { return *this = Tensor(other); }
  Tensor& operator=(Tensor&& other) & noexcept {
    jitload_torch::Node* mine = node_;
    node_ = other.node_;
    other.node_ = mine;
    return *this;
  }
  /* Assignments to temporaries copy values: `x[0] = y` copies into a part of x. */
  Tensor& operator=(const Tensor& other) && { return assign(other); }
  Tensor& operator=(Tensor&& other) && { return assign(other); }
  Tensor& operator=(const Scalar& value) &&;
  ~Tensor() { reset(); }
  void reset() {
    if (node_ != nullptr && __atomic_fetch_sub(&node_->count, 1, __ATOMIC_ACQ_REL) == 1) jitload_torch::destroy(node_);
    node_ = nullptr;
  }
  bool defined() const { return node_ != nullptr; }
  bool is_same(const Tensor& other) const { return object() == other.object(); }
  void* object() const { return node_ != nullptr ? jitload_torch::object_of(node_) : nullptr; }
  jitload_torch::Node* node() const { return node_; }

  // ---- what a tensor is
  int64_t dim() const { return view().ndim; }
  int64_t ndimension() const { return dim(); }
  IntArrayRef sizes() const { return IntArrayRef(view().sizes, static_cast<size_t>(dim())); }
  IntArrayRef strides() const { return IntArrayRef(stride_data(), static_cast<size_t>(dim())); }
  int64_t size(int64_t index) const { return view().sizes[wrap(index)]; }
  int64_t stride(int64_t index) const { return stride_data()[wrap(index)]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t extent : sizes()) count *= extent;
    return count;
  }
  ScalarType scalar_type() const { return view(), node_ != nullptr ? ScalarType(node_->scalar_type) : ScalarType::Undefined; }
  TypeMeta dtype() const { return scalar_type(); }
  int64_t element_size() const { return static_cast<int64_t>(itemsize()); }
  size_t itemsize() const { return elementSize(scalar_type()); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * itemsize(); }
  Device device() const;
  int64_t get_device() const { return device().index(); }
  bool is_cuda() const { return defined() && device().is_cuda(); }
  bool is_cpu() const { return defined() && device().is_cpu(); }
  bool is_meta() const { return defined() && device().is_meta(); }
  bool is_xpu() const { return defined() && device().type() == DeviceType::XPU; }
  bool is_mps() const { return defined() && device().type() == DeviceType::MPS; }
  bool is_hip() const { return defined() && device().type() == DeviceType::HIP; }
  bool is_sparse_csr() const { return layout() == Layout::SparseCsr; }
  bool is_mkldnn() const { return layout() == Layout::Mkldnn; }
  bool is_sparse() const { return layout() == kSparse; }
  bool is_quantized() const { return scalar_type() >= kQInt8 && scalar_type() <= kQInt32; }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  bool is_complex() const { return isComplexType(scalar_type()); }
  bool is_signed() const;
  bool has_storage() const { return defined(); }
  Layout layout() const;
  TensorOptions options() const;
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  MemoryFormat suggest_memory_format() const;
  bool requires_grad() const;
  const Tensor& set_requires_grad(bool value) const;
  int64_t storage_offset() const;
  Tensor grad() const;
  void backward(const Tensor& gradient = {}, OptionalArg<bool> retain_graph = {}, bool create_graph = false,
                OptionalArg<TensorList> inputs = {}) const;
#if defined(_GLIBCXX_STRING)
  std::string toString() const {
    if (!defined()) return "UndefinedType";
    return std::string(is_sparse() ? "Sparse" : "") + (is_cuda() ? "CUDA" : is_meta() ? "Meta" : "CPU") + at::toString(scalar_type()) + "Type";
  }
#endif

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
  void* data_ptr() const {
    const jitload_torch::View& v = view();
    if (C10_UNLIKELY(v.byte_offset >= jitload_torch::kUnreadMemory)) jitload_torch::read_memory(node_);
    return v.data != nullptr ? static_cast<char*>(v.data) + v.byte_offset : nullptr;
  }
  template <class T>
  T* data_ptr() const {
    check<T>();
    return static_cast<T*>(data_ptr());
  }
  template <class T>
  T* mutable_data_ptr() const {
    return data_ptr<T>();
  }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <class T>
  const typename jitload_torch::identity<T>::type* const_data_ptr() const {
    return data_ptr<T>();
  }
  const void* const_data_ptr() const { return data_ptr(); }
  template <class T>
  T* data() const {
    return data_ptr<T>();
  }
  Tensor data() const;
  Tensor variable_data() const { return data(); }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const {
    check_dim(N);
    return TensorAccessor<T, N>(data_ptr<T>(), view().sizes, view().strides);
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, I> generic_packed_accessor() const {
    check_dim(N);
    return GenericPackedTensorAccessor<T, N, Traits, I>(data_ptr<T>(), view().sizes, view().strides);
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
  T item() const {
    return item().template to<T>();
  }

  // ---- other tensors
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  Tensor cpu() const;
  Tensor cuda() const;
  Tensor toType(ScalarType type) const;
  Tensor operator[](int64_t index) const;
  Tensor operator[](const Scalar& index) const;
  Tensor operator[](const Tensor& index) const;
  Tensor index(ArrayRef<indexing::TensorIndex> indices) const;
  Tensor index(std::initializer_list<indexing::TensorIndex> indices) const;
  Tensor& index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor& value);
  Tensor& index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar& value);
  Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& value);
  Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Scalar& value);
  Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& value, bool accumulate);
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

  /* Reads the sizes and the memory again, after an operator that may have changed them. */
  const Tensor& reread() const {
    if (node_ != nullptr) node_->is_viewed = false;
    return *this;
  }

 private:
  const jitload_torch::View& view() const {
    static int64_t zero = 0, one = 1;
    static const jitload_torch::View undefined = {nullptr, 0, -1, 1, 0, 0, 1, &zero, &one, 0};
    if (C10_UNLIKELY(node_ == nullptr)) return undefined;
    if (C10_UNLIKELY(!node_->is_viewed)) jitload_torch::read_view(node_);
    return node_->view;
  }
  const int64_t* stride_data() const {
    if (C10_UNLIKELY(view().strides == nullptr)) jitload_torch::fail_strides("strides");
    return view().strides;
  }
  Tensor& assign(const Tensor& other);
  Tensor convert(const TensorOptions& options) const;
  int64_t wrap(int64_t index) const;
  template <class T>
  void check() const {
    const ScalarType type = CppTypeToScalarType<T>::value;
    if (C10_UNLIKELY(scalar_type() != type)) jitload_torch::check_dtype(node_, static_cast<int8_t>(type));
  }
  void check_dim(size_t count) const {
    TORCH_CHECK(dim() == static_cast<int64_t>(count), "TensorAccessor expected ", count, " dims but tensor has ", dim());
  }
  jitload_torch::Node* node_;
};

using TensorBase = Tensor;

}  // namespace at

#include "direct.h"

namespace jitload_torch {

template <>
struct Caster<at::Tensor> {
  static Object to_python(const at::Tensor& value) { return value.defined() ? borrow(value.object()) : none(); }
  static bool load(void* object, bool, at::Tensor* value) {
    if (!is_tensor(object)) return false;
    *value = at::Tensor(borrow(object));
    return true;
  }
  static void describe(Message& m, bool) { m.append("torch.Tensor"); }
};

at::Tensor with_options(at::Tensor tensor, const c10::TensorOptions& options);

}  // namespace jitload_torch

namespace at {

// ---- indexing -----------------------------------------------------------------------------------------------------

namespace indexing {

struct EllipsisIndexType {};
const EllipsisIndexType Ellipsis{};
struct NoneType {};
const NoneType None{};

struct Slice {
  Slice(OptionalArg<int64_t> start = {}, OptionalArg<int64_t> stop = {}, OptionalArg<int64_t> step = {})
      : start(start), stop(stop), step(step) {}
  Slice(NoneType, OptionalArg<int64_t> stop = {}, OptionalArg<int64_t> step = {}) : stop(stop), step(step) {}
  Slice(OptionalArg<int64_t> start, NoneType, OptionalArg<int64_t> step = {}) : start(start), step(step) {}
  Slice(NoneType, NoneType, OptionalArg<int64_t> step = {}) : step(step) {}
  OptionalArg<int64_t> start, stop, step;
};

class TensorIndex {
 public:
  TensorIndex(NoneType) : make_(0) {}
  TensorIndex(const std::nullopt_t&) : make_(0) {}
  TensorIndex(EllipsisIndexType) : make_(1) {}
  TensorIndex(const char*) : make_(1) {} /* "..." */
  TensorIndex(long value) : make_(2), integer_(value) {}
  TensorIndex(long long value) : make_(2), integer_(static_cast<long>(value)) {}
  TensorIndex(int value) : make_(2), integer_(value) {}
  TensorIndex(bool value) : make_(3), integer_(value) {}
  TensorIndex(const Slice& slice) : make_(4), slice_(slice) {}
  TensorIndex(const Tensor& tensor) : make_(5), tensor_(tensor) {}
  jitload_torch::Object to_python() const;

 private:
  int make_;
  long integer_ = 0;
  Slice slice_;
  Tensor tensor_;
};

}  // namespace indexing

/* The memory format of a call, from its options or from its argument, of which only one may be set. */
OptionalArg<MemoryFormat> memory_format_of(const TensorOptions& options, const OptionalArg<MemoryFormat>& argument);

#define X(symbol)                                            \
  Tensor operator symbol(const Tensor& a, const Tensor& b);  \
  Tensor operator symbol(const Tensor& a, const Scalar& b);  \
  Tensor operator symbol(const Scalar& a, const Tensor& b);
X(+) X(-) X(*) X(/) X(%) X(<) X(<=) X(>) X(>=) X(==) X(!=) X(&) X(|) X(^)
#undef X

#if defined(JITLOAD_TORCH_FUNCTIONS)
JITLOAD_TORCH_FUNCTIONS
#endif

// ---- tensors from values ------------------------------------------------------------------------------------------

namespace detail {
Tensor tensor_of(const jitload_torch::Object& values, OptionalArg<ScalarType> type, const TensorOptions& options);
}  // namespace detail
template <class T>
Tensor tensor(ArrayRef<T> values, const TensorOptions& options = {}) {
  return detail::tensor_of(jitload_torch::list_of(values.data(), values.size()), CppTypeToScalarType<T>::value, options);
}
template <class T>
Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {}) {
  return at::tensor(ArrayRef<T>(values), options);
}
template <class C, class T = typename C::value_type>
Tensor tensor(const C& values, const TensorOptions& options = {}) {
  return at::tensor(ArrayRef<T>(values), options);
}
#define X(T, name, number) \
  inline Tensor tensor(T value, const TensorOptions& options = {}) { return at::tensor(ArrayRef<T>(value), options); }
JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X

}  // namespace at
namespace torch {
namespace detail {

/* What torch::tensor takes: a number, an array, or a braced list of these. */
class TensorDataContainer {
 public:
  TensorDataContainer() : type_(at::kFloat), values_(jitload_torch::python_list(0)) {}
#define X(T, name, number) \
  TensorDataContainer(T value) : type_(at::k##name), values_(jitload_torch::Caster<at::Scalar>::to_python(at::Scalar(value))) {}
  JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X
  TensorDataContainer(std::initializer_list<TensorDataContainer> list)
      : type_(list.begin()->type_), values_(jitload_torch::python_list(list.size())) {
    size_t index = 0;
    for (const TensorDataContainer& element : list) {
      TORCH_CHECK(element.type_ == type_, "Expected all elements of the tensor to have the same scalar type: ", type_,
                  ", but got element of scalar type: ", element.type_);
      jitload_torch::set_list_item(values_, index++, jitload_torch::borrow(element.values_.get()));
    }
  }
  template <class T>
  TensorDataContainer(at::ArrayRef<T> values)
      : type_(at::CppTypeToScalarType<T>::value), values_(jitload_torch::list_of(values.data(), values.size())) {}
#if defined(_GLIBCXX_VECTOR)
  template <class T>
  TensorDataContainer(const std::vector<T>& values) : TensorDataContainer(at::ArrayRef<T>(values)) {}
#endif
  at::Tensor to_tensor(const at::TensorOptions& options) const {
    at::OptionalArg<at::ScalarType> type; /* absent for the usual numbers, so that torch.tensor chooses it */
    if (type_ != at::kInt && type_ != at::kLong && type_ != at::kFloat && type_ != at::kDouble) type = type_;
    return at::detail::tensor_of(values_, type, options);
  }

 private:
  at::ScalarType type_;
  jitload_torch::Object values_;
};

}  // namespace detail
inline at::Tensor tensor(const detail::TensorDataContainer& data, const at::TensorOptions& options = {}) {
  return data.to_tensor(options);
}
}  // namespace torch
namespace at {

// ---- tensors over memory ------------------------------------------------------------------------------------------

namespace detail {
Tensor tensor_over(void* data, IntArrayRef sizes, const int64_t* strides, const TensorOptions& options,
                   void (*release)(void*, void*), void* context);
template <class F>
void release_with(void* context, void* data) {
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
Tensor from_blob(void* data, IntArrayRef sizes, const F& deleter, const TensorOptions& options = {}) {
  return detail::tensor_over(data, sizes, nullptr, options, &detail::release_with<F>, new F(deleter));
}
template <class F, class = decltype(jitload_torch::value_of<F&>()(jitload_torch::value_of<void*>()))>
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const F& deleter, const TensorOptions& options = {}) {
  return detail::tensor_over(data, sizes, strides.data(), options, &detail::release_with<F>, new F(deleter));
}

}  // namespace at

namespace jitload_torch {
void append(Message& m, const at::Tensor& value); /* as torch prints it */
#if defined(_GLIBCXX_OSTREAM)
void print(std::ostream& stream, const at::Tensor& tensor);
#endif
inline void append(Message& m, const at::Tensor::Type& type) {
  append_all(m, type.cuda ? "torch.cuda." : "torch.", type.scalar, "Tensor");
}
}  // namespace jitload_torch

namespace at {
/* Turns the recording of gradients on or off while an object of this class lives. */
class AutoGradMode {
 public:
  explicit AutoGradMode(bool enabled) : was_enabled_(jitload_torch::set_grad_enabled(enabled)) {}
  AutoGradMode(const AutoGradMode&) = delete;
  ~AutoGradMode() { jitload_torch::set_grad_enabled(was_enabled_); }

 private:
  bool was_enabled_;
};
class NoGradGuard : public AutoGradMode {
 public:
  NoGradGuard() : AutoGradMode(false) {}
};
int get_num_threads();
void set_num_threads(int count);
TypeMeta get_default_dtype();
void manual_seed(uint64_t seed);
}  // namespace at

namespace c10 {
using at::Tensor;

/* Makes a GPU current while an object of this class lives. Texts without CUDA's headers have no other way to do so. */
class OptionalDeviceGuard {
 public:
  explicit OptionalDeviceGuard(OptionalArg<Device> device = {});
  OptionalDeviceGuard(const OptionalDeviceGuard&) = delete;
  ~OptionalDeviceGuard();

 private:
  int original_ = -1;
};
using DeviceGuard = OptionalDeviceGuard;

class InferenceMode {
 public:
  explicit InferenceMode(bool enabled = true);
  InferenceMode(const InferenceMode&) = delete;
  ~InferenceMode();

 private:
  jitload_torch::Object guard_;
};
}  // namespace c10
namespace at {
using c10::DeviceGuard;
using c10::OptionalDeviceGuard;
/* The device of a tensor on a GPU, or nothing for a tensor on the CPU. */
OptionalArg<Device> device_of(const Tensor& tensor);
}  // namespace at
#if defined(_GLIBCXX_OSTREAM)
namespace at {
inline std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) {
  jitload_torch::print(stream, tensor);
  return stream;
}
}  // namespace at
#endif
namespace torch {
using Tensor = at::Tensor;
using IntArrayRef = at::IntArrayRef;
}  // namespace torch

#endif  // JITLOAD_TORCH_TENSOR_H_
