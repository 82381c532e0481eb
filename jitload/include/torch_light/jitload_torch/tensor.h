/* at::Tensor, a tensor of the running torch, and the operators of ATen that the text names. */
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
  /* x[0] = y copies into a part of x. */
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
  Device device() const {
    if (C10_UNLIKELY(!defined())) jitload_torch::fail_device();
    const jitload_torch::View& v = view();
    if (v.device_type == 1 || v.device_type == 3 || v.device_type == 0) return Device(kCPU);
    if (v.device_type == 2 || v.device_type == 13) return Device(kCUDA, static_cast<DeviceIndex>(v.device_index));
    const bool is_other = v.device_type >= jitload_torch::kOtherDevice;
    const auto type = is_other ? static_cast<DeviceType>(v.device_type - jitload_torch::kOtherDevice) : DeviceType::PrivateUse1;
    return Device(type, static_cast<DeviceIndex>(v.device_index));
  }
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
  bool is_signed() const { 
    const ScalarType type = scalar_type();
    return type != kByte && type != kBool && type != kUInt16 && type != kUInt32 && type != kUInt64;
  }
  bool has_storage() const { return defined(); }
  Layout layout() const {
    if (view().device_type < jitload_torch::kOtherDevice || jitload_torch::has_layout(node_, 0)) return kStrided;
    return jitload_torch::has_layout(node_, 1) ? kSparse : jitload_torch::has_layout(node_, 2) ? Layout::SparseCsr : Layout::Mkldnn;
  }
  TensorOptions options() const { return TensorOptions(scalar_type()).device(device()).layout(layout()); }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  MemoryFormat suggest_memory_format() const {
    const bool is_last = dim() == 4 && !is_contiguous() && is_contiguous(MemoryFormat::ChannelsLast);
    return is_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
  }
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

  /* x.type(), which old texts pass to AT_DISPATCH_… and from which they ask for the scalar type. */
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
#define JITLOAD_TORCH_IN_PLACE_(op, name)        \
  Tensor& operator op(const Tensor & other);     \
  Tensor& operator op(const Scalar & other);
#define JITLOAD_TORCH_IN_PLACE_SUMS(X) X(+=, "add_") X(-=, "sub_")
#define JITLOAD_TORCH_IN_PLACE_OPERATORS(X) \
  X(*=, "mul_") X(/=, "div_") X(&=, "bitwise_and_") X(|=, "bitwise_or_") X(^=, "bitwise_xor_")
  JITLOAD_TORCH_IN_PLACE_SUMS(JITLOAD_TORCH_IN_PLACE_)
  JITLOAD_TORCH_IN_PLACE_OPERATORS(JITLOAD_TORCH_IN_PLACE_)
#undef JITLOAD_TORCH_IN_PLACE_

#if defined(JITLOAD_TORCH_METHODS)
  JITLOAD_TORCH_METHODS /* those that the text names; jitload writes their declarations in front of it */
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
  int64_t wrap(int64_t index) const {
    const int64_t count = dim();
    if (C10_UNLIKELY(index < -count || index >= count)) jitload_torch::fail_dimension(index, count);
    return index < 0 ? index + count : index;
  }
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

inline bool Tensor::is_contiguous(MemoryFormat format) const {
  const jitload_torch::View& v = view();
  const bool is_last = format == MemoryFormat::ChannelsLast;
  if (is_last && v.ndim != 4) return false;
  static const int last[] = {0, 2, 3, 1};
  int64_t expected = 1;
  if (v.strides == nullptr) jitload_torch::fail_strides("is_contiguous");
  if (numel() == 0 && !is_last) return true;
  for (int i = v.ndim - 1; i >= 0; --i) {
    const int d = is_last ? last[i] : i;
    if (v.sizes[d] == 1) continue;
    if (v.strides[d] != expected) return false;
    expected *= v.sizes[d];
  }
  return true;
}

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

inline at::Tensor RawResult<at::Tensor>::take(const RawTensor& value) { return at::Tensor(adopt(value.impl)); }
inline at::Tensor with_options(at::Tensor tensor, const c10::TensorOptions& options) {
  return options.requires_grad() ? at::Tensor(call_path(".requires_grad_", "", tensor)) : tensor;
}

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
  jitload_torch::Object to_python() const {
    using namespace jitload_torch;
    switch (make_) {
      case 0: return none();
      case 1: return python_ellipsis();
      case 2: return python_integer(integer_);
      case 3: return python_bool(integer_ != 0);
      case 4: {
        using Part = Caster<OptionalArg<int64_t>>;
        return python_slice(Part::to_python(slice_.start), Part::to_python(slice_.stop), Part::to_python(slice_.step));
      }
      default: return Caster<Tensor>::to_python(tensor_);
    }
  }

 private:
  int make_;
  long integer_ = 0;
  Slice slice_;
  Tensor tensor_;
};

}  // namespace indexing
}  // namespace at

namespace jitload_torch {
template <>
struct Caster<at::indexing::TensorIndex> {
  static Object to_python(const at::indexing::TensorIndex& value) { return value.to_python(); }
};
}  // namespace jitload_torch

namespace at {

inline Tensor Tensor::index(ArrayRef<indexing::TensorIndex> indices) const {
  return Tensor(jitload_torch::call_path(".__getitem__", "", *this, indices));
}
inline Tensor Tensor::index(std::initializer_list<indexing::TensorIndex> indices) const {
  return index(ArrayRef<indexing::TensorIndex>(indices));
}
#define X(Value)                                                                                              \
  inline Tensor& Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Value& value) {            \
    jitload_torch::call_path(".__setitem__", "", *this, indices, value);                                      \
    return *this;                                                                                             \
  }                                                                                                           \
  inline Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Value& value) { \
    return index_put_(ArrayRef<indexing::TensorIndex>(indices), value);                                       \
  }
X(Tensor) X(Scalar)
#undef X
inline Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& value, bool accumulate) {
  jitload_torch::call_path(".index_put_", "", *this, ArrayRef<indexing::TensorIndex>(indices), value, accumulate);
  return *this;
}
inline Tensor Tensor::operator[](int64_t index) const {
  static jitload_torch::Operator op{"select.int", "", "ERKNS_6TensorElN3c106SymIntE", nullptr, nullptr, nullptr};
  return jitload_torch::call<Tensor, 't', 'l', 'y'>(op, *this, 0, index);
}
inline Tensor Tensor::operator[](const Scalar& index) const {
  TORCH_CHECK_INDEX(index.isIntegral(false), "Can only index tensors with integral scalars");
  return (*this)[index.toLong()];
}
inline Tensor Tensor::operator[](const Tensor& index) const {
  TORCH_CHECK_INDEX(index.defined(), "Can only index with tensors that are defined");
  TORCH_CHECK_INDEX(index.dim() == 0, "Can only index with tensors that are scalars (zero-dim)");
  return (*this)[index.item()];
}

// ---- what needs torch ---------------------------------------------------------------------------------------------

#define JITLOAD_TORCH_NAMED_OPERATOR_(op, name, keywords, types) \
  static jitload_torch::Operator op { name, keywords, types, nullptr, nullptr, nullptr }
#define JITLOAD_TORCH_OPERATOR_(name, types) JITLOAD_TORCH_NAMED_OPERATOR_(op, name, "", types)
#define JITLOAD_TORCH_UNARY_TYPES_ "ERKNS_6TensorE"
#define JITLOAD_TORCH_BINARY_TYPES_ "ERKNS_6TensorES4_"
#define JITLOAD_TORCH_SCALAR_TYPES_ "ERKNS_6TensorERKN3c106ScalarE"
#define JITLOAD_TORCH_CHANGE_TYPES_ "ERNS_6TensorERKS2_"
#define JITLOAD_TORCH_CHANGE_SCALAR_TYPES_ "ERNS_6TensorERKN3c106ScalarE"

inline Scalar Tensor::item() const {
  JITLOAD_TORCH_OPERATOR_("item", JITLOAD_TORCH_UNARY_TYPES_);
  return jitload_torch::call<Scalar, 't'>(op, *this);
}
inline Tensor Tensor::contiguous(MemoryFormat format) const {
  if (is_contiguous(format)) return *this;
  JITLOAD_TORCH_NAMED_OPERATOR_(op, "contiguous", "memory_format ", "ERKNS_6TensorEN3c1012MemoryFormatE");
  return jitload_torch::call<Tensor, 't', 'm'>(op, *this, format);
}
inline Tensor& Tensor::assign(const Tensor& other) {
  JITLOAD_TORCH_OPERATOR_("copy_", JITLOAD_TORCH_CHANGE_TYPES_ "b");
  jitload_torch::call<void, 't', 't', 'b'>(op, *this, other, false);
  return *this;
}
inline Tensor& Tensor::operator=(const Scalar& value) && {
  JITLOAD_TORCH_OPERATOR_("fill_.Scalar", JITLOAD_TORCH_CHANGE_SCALAR_TYPES_);
  jitload_torch::call<void, 't', 's'>(op, *this, value);
  return *this;
}
inline Tensor Tensor::convert(const TensorOptions& options) const {
  JITLOAD_TORCH_NAMED_OPERATOR_(
      op, "to.dtype_layout", "dtype layout device pin_memory non_blocking copy memory_format ",
      "ERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbEbbS5_INS6_12MemoryFormatEE");
  return jitload_torch::call<Tensor, 't', 'C', 'U', 'V', 'B', 'b', 'b', 'M'>(
      op, *this, options.dtype_opt(), options.layout_opt(), options.device_opt(), options.pinned_memory_opt(), false, false,
      options.memory_format_opt());
}
inline Tensor Tensor::cpu() const { return convert(options().device(kCPU)); }
inline Tensor Tensor::cuda() const { return convert(options().device(kCUDA)); }
inline Tensor Tensor::toType(ScalarType type) const { return type == scalar_type() ? *this : convert(options().dtype(type)); }
inline Tensor Tensor::data() const { return Tensor(jitload_torch::call_path(".detach", "", *this)); }
inline bool Tensor::requires_grad() const { return jitload_torch::requires_grad(*this); }
inline const Tensor& Tensor::set_requires_grad(bool value) const {
  jitload_torch::call_path(".requires_grad_", "", *this, value);
  return *this;
}
inline int64_t Tensor::storage_offset() const {
  int64_t value = 0;
  const jitload_torch::Object object = jitload_torch::call_path(".storage_offset", "", *this);
  jitload_torch::Caster<int64_t>::load(object.get(), true, &value);
  return value;
}
inline Tensor Tensor::grad() const {
  Tensor value;
  const jitload_torch::Object object = jitload_torch::call_path(".grad", "", *this);
  jitload_torch::Caster<Tensor>::load(object.get(), true, &value);
  return value;
}

inline void Tensor::backward(const Tensor& gradient, OptionalArg<bool> retain_graph, bool create_graph,
                             OptionalArg<TensorList> inputs) const {
  jitload_torch::call_path(".backward", "", *this, gradient, retain_graph, create_graph, inputs);
}

#define JITLOAD_TORCH_CHANGE_(symbol, name)                                              \
  inline Tensor& Tensor::operator symbol(const Tensor & other) {                         \
    JITLOAD_TORCH_OPERATOR_(name ".Tensor", JITLOAD_TORCH_CHANGE_TYPES_);                \
    jitload_torch::call<void, 't', 't'>(op, *this, other);                               \
    return const_cast<Tensor&>(reread());                                                \
  }                                                                                      \
  inline Tensor& Tensor::operator symbol(const Scalar & other) {                         \
    JITLOAD_TORCH_OPERATOR_(name ".Scalar", JITLOAD_TORCH_CHANGE_SCALAR_TYPES_);         \
    jitload_torch::call<void, 't', 's'>(op, *this, other);                               \
    return const_cast<Tensor&>(reread());                                                \
  }
JITLOAD_TORCH_IN_PLACE_OPERATORS(JITLOAD_TORCH_CHANGE_)
#undef JITLOAD_TORCH_CHANGE_
/* Sums and differences have a factor of the second operand. */
#define JITLOAD_TORCH_CHANGE_(symbol, name)                                                                    \
  inline Tensor& Tensor::operator symbol(const Tensor & other) {                                               \
    JITLOAD_TORCH_NAMED_OPERATOR_(op, name ".Tensor", "alpha ", JITLOAD_TORCH_CHANGE_TYPES_ "RKN3c106ScalarE"); \
    jitload_torch::call<void, 't', 't', 's'>(op, *this, other, Scalar(1));                                     \
    return const_cast<Tensor&>(reread());                                                                      \
  }                                                                                                            \
  inline Tensor& Tensor::operator symbol(const Scalar & other) {                                               \
    JITLOAD_TORCH_OPERATOR_(name ".Scalar", JITLOAD_TORCH_CHANGE_SCALAR_TYPES_ "S7_");                         \
    jitload_torch::call<void, 't', 's', 's'>(op, *this, other, Scalar(1));                                     \
    return const_cast<Tensor&>(reread());                                                                      \
  }
JITLOAD_TORCH_IN_PLACE_SUMS(JITLOAD_TORCH_CHANGE_)
#undef JITLOAD_TORCH_CHANGE_
#define JITLOAD_TORCH_SUM_(symbol, name)                                                                  \
  inline Tensor operator symbol(const Tensor& a, const Tensor& b) {                                       \
    JITLOAD_TORCH_NAMED_OPERATOR_(op, name ".Tensor", "alpha ", JITLOAD_TORCH_BINARY_TYPES_ "RKN3c106ScalarE"); \
    return jitload_torch::call<Tensor, 't', 't', 's'>(op, a, b, Scalar(1));                               \
  }                                                                                                       \
  inline Tensor operator symbol(const Tensor& a, const Scalar& b) {                                       \
    JITLOAD_TORCH_OPERATOR_(name ".Scalar", JITLOAD_TORCH_SCALAR_TYPES_ "S7_");                           \
    return jitload_torch::call<Tensor, 't', 's', 's'>(op, a, b, Scalar(1));                               \
  }
JITLOAD_TORCH_SUM_(+, "add") JITLOAD_TORCH_SUM_(-, "sub")
#undef JITLOAD_TORCH_SUM_
#define JITLOAD_TORCH_BINARY_(symbol, name)                                        \
  inline Tensor operator symbol(const Tensor& a, const Tensor& b) {                \
    JITLOAD_TORCH_OPERATOR_(name ".Tensor", JITLOAD_TORCH_BINARY_TYPES_);          \
    return jitload_torch::call<Tensor, 't', 't'>(op, a, b);                        \
  }                                                                                \
  inline Tensor operator symbol(const Tensor& a, const Scalar& b) {                \
    JITLOAD_TORCH_OPERATOR_(name ".Scalar", JITLOAD_TORCH_SCALAR_TYPES_);          \
    return jitload_torch::call<Tensor, 't', 's'>(op, a, b);                        \
  }
JITLOAD_TORCH_BINARY_(*, "mul") JITLOAD_TORCH_BINARY_(/, "div") JITLOAD_TORCH_BINARY_(%, "remainder")
inline Tensor operator+(const Scalar& a, const Tensor& b) { return b + a; }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return b * a; }
namespace detail {
/* A number in front: a tensor like the other that is filled with it, and then changed. */
inline Tensor filled_like(const Scalar& number, const Tensor& other) {
  JITLOAD_TORCH_NAMED_OPERATOR_(
      op, "empty_like", "dtype layout device pin_memory memory_format ",
      "ERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbES5_INS6_12MemoryFormatEE");
  Tensor result = jitload_torch::call<Tensor, 't', 'C', 'U', 'V', 'B', 'M'>(
      op, other, OptionalArg<ScalarType>(), OptionalArg<Layout>(), OptionalArg<Device>(), OptionalArg<bool>(),
      OptionalArg<MemoryFormat>());
  static_cast<Tensor&&>(result) = number;
  return result;
}
}  // namespace detail
inline Tensor operator-(const Scalar& a, const Tensor& b) { return detail::filled_like(a, b) -= b; }
inline Tensor operator/(const Scalar& a, const Tensor& b) { return detail::filled_like(a, b) /= b; }
inline Tensor operator%(const Scalar& a, const Tensor& b) {
  JITLOAD_TORCH_OPERATOR_("remainder_.Tensor", JITLOAD_TORCH_CHANGE_TYPES_);
  Tensor result = detail::filled_like(a, b);
  jitload_torch::call<void, 't', 't'>(op, result, b);
  return result;
}
#define X(symbol, name, swapped)                                                   \
  JITLOAD_TORCH_BINARY_(symbol, name)                                              \
  inline Tensor operator symbol(const Scalar& a, const Tensor& b) {                \
    JITLOAD_TORCH_OPERATOR_(swapped ".Scalar", JITLOAD_TORCH_SCALAR_TYPES_);       \
    return jitload_torch::call<Tensor, 't', 's'>(op, b, a);                        \
  }
X(<, "lt", "gt") X(<=, "le", "ge") X(>, "gt", "lt") X(>=, "ge", "le") X(==, "eq", "eq") X(!=, "ne", "ne")
X(&, "bitwise_and", "bitwise_and") X(|, "bitwise_or", "bitwise_or") X(^, "bitwise_xor", "bitwise_xor")
#undef X
inline Tensor Tensor::operator-() const {
  JITLOAD_TORCH_OPERATOR_("neg", JITLOAD_TORCH_UNARY_TYPES_);
  return jitload_torch::call<Tensor, 't'>(op, *this);
}
inline Tensor Tensor::operator~() const {
  JITLOAD_TORCH_OPERATOR_("bitwise_not", JITLOAD_TORCH_UNARY_TYPES_);
  return jitload_torch::call<Tensor, 't'>(op, *this);
}
#undef JITLOAD_TORCH_BINARY_
#undef JITLOAD_TORCH_OPERATOR_
#undef JITLOAD_TORCH_NAMED_OPERATOR_

#if defined(JITLOAD_TORCH_FUNCTIONS)
JITLOAD_TORCH_FUNCTIONS
#endif

// ---- tensors from values ------------------------------------------------------------------------------------------

namespace detail {
inline Tensor tensor_of(const jitload_torch::Object& values, OptionalArg<ScalarType> type, const TensorOptions& options) {
  if (options.has_dtype()) type = options.dtype_opt();
  Tensor result(jitload_torch::call_path("torch.tensor", "dtype device ", values, type, options.device_opt()));
  return jitload_torch::with_options(result, options);
}
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
    at::OptionalArg<at::ScalarType> type; /* of torch.tensor for the usual numbers */
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
inline Tensor tensor_over(void* data, IntArrayRef sizes, const int64_t* strides, const TensorOptions& options,
                          void (*release)(void*, void*), void* context) {
  int64_t* shape = new int64_t[2 * sizes.size() + 1];
  int64_t* steps = shape + sizes.size();
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    shape[i] = sizes[i];
    steps[i] = strides != nullptr ? strides[i] : expected;
    expected *= sizes[i] > 1 ? sizes[i] : 1;
  }
  const Device device = options.device();
  jitload_torch::View view = {data, device.is_cuda() ? 2 : 1, device.has_index() ? device.index() : 0,
                              static_cast<int32_t>(sizes.size()), 0, 0, 1, shape, steps, 0};
  jitload_torch::dtype_of_dlpack(static_cast<int8_t>(options.dtype().toScalarType()), &view.dtype_code, &view.dtype_bits);
  return jitload_torch::with_options(Tensor(jitload_torch::tensor_over(view, release, context)), options);
}
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
inline void append(Message& m, const at::Tensor::Type& type) {
  append_all(m, type.cuda ? "torch.cuda." : "torch.", type.scalar, "Tensor");
}
}  // namespace jitload_torch

namespace at {
/* No gradients are recorded while one lives. */
class NoGradGuard {
 public:
  NoGradGuard() : was_enabled_(jitload_torch::set_grad_enabled(false)) {}
  NoGradGuard(const NoGradGuard&) = delete;
  ~NoGradGuard() { jitload_torch::set_grad_enabled(was_enabled_); }

 private:
  bool was_enabled_;
};
class AutoGradMode {
 public:
  explicit AutoGradMode(bool enabled) : was_enabled_(jitload_torch::set_grad_enabled(enabled)) {}
  AutoGradMode(const AutoGradMode&) = delete;
  ~AutoGradMode() { jitload_torch::set_grad_enabled(was_enabled_); }

 private:
  bool was_enabled_;
};
inline int get_num_threads() {
  int count = 1;
  jitload_torch::Caster<int>::load(jitload_torch::call_path("torch.get_num_threads", "").get(), true, &count);
  return count;
}
inline void set_num_threads(int count) { jitload_torch::call_path("torch.set_num_threads", "", count); }
inline TypeMeta get_default_dtype() {
  ScalarType type = kFloat;
  jitload_torch::Caster<ScalarType>::load(jitload_torch::call_path("torch.get_default_dtype", "").get(), true, &type);
  return type;
}
inline void manual_seed(uint64_t seed) { jitload_torch::call_path("torch.manual_seed", "", seed); }
}  // namespace at

namespace c10 {
using at::Tensor;

/* Makes a GPU the current one while it lives; texts without CUDA's headers have no other way. */
class OptionalDeviceGuard {
 public:
  explicit OptionalDeviceGuard(OptionalArg<Device> device = {}) {
    if (!device.has_value() || !device->is_cuda() || !device->has_index()) return;
    const jitload_torch::Object current = jitload_torch::call_path("torch.cuda.current_device", "");
    jitload_torch::Caster<int>::load(current.get(), true, &original_);
    set(device->index());
  }
  OptionalDeviceGuard(const OptionalDeviceGuard&) = delete;
  ~OptionalDeviceGuard() {
    if (original_ >= 0) set(original_);
  }

 private:
  static void set(int index) { jitload_torch::call_path("torch.cuda.set_device", "", index); }
  int original_ = -1;
};
using DeviceGuard = OptionalDeviceGuard;

class InferenceMode {
 public:
  explicit InferenceMode(bool enabled = true)
      : guard_(jitload_torch::call_path("torch.autograd.grad_mode._enter_inference_mode", "", enabled)) {}
  InferenceMode(const InferenceMode&) = delete;
  ~InferenceMode() { jitload_torch::call_path("torch.autograd.grad_mode._exit_inference_mode", "", guard_); }

 private:
  jitload_torch::Object guard_;
};
}  // namespace c10
namespace at {
using c10::DeviceGuard;
using c10::OptionalDeviceGuard;
/* Of a tensor on a GPU; nothing for one on the CPU. */
inline OptionalArg<Device> device_of(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() ? OptionalArg<Device>(tensor.device()) : OptionalArg<Device>();
}
}  // namespace at
namespace torch {
using Tensor = at::Tensor;
using IntArrayRef = at::IntArrayRef;
}  // namespace torch

#endif  // JITLOAD_TORCH_TENSOR_H_
