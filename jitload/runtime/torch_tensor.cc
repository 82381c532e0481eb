/* The methods and operators of at::Tensor that need not be inline. */
#include <string>
#include <tuple>
#include <vector>

#include "../include/torch_light/jitload_torch/pybind.h"

namespace jitload_torch {

template <>
struct Caster<at::indexing::TensorIndex> {
  static Object to_python(const at::indexing::TensorIndex& value) { return value.to_python(); }
};

namespace {

/* The mangled types of torch's functions, for the third member of an `Operator`. */
constexpr const char* kUnary = "ERKNS_6TensorE";
constexpr const char* kBinary = "ERKNS_6TensorES4_";
constexpr const char* kWithScalar = "ERKNS_6TensorERKN3c106ScalarE";
constexpr const char* kChange = "ERNS_6TensorERKS2_";
constexpr const char* kChangeByScalar = "ERNS_6TensorERKN3c106ScalarE";

}  // namespace

at::Tensor with_options(at::Tensor tensor, const c10::TensorOptions& options) {
  return options.requires_grad() ? at::Tensor(call_path(".requires_grad_", "", tensor)) : tensor;
}

}  // namespace jitload_torch

namespace at {

using namespace jitload_torch;

// ---- what a tensor is -----------------------------------------------------------------------------------------------

Device Tensor::device() const {
  if (!defined()) fail_device();
  const View& v = view();
  if (v.device_type == 1 || v.device_type == 3 || v.device_type == 0) return Device(kCPU);
  if (v.device_type == 2 || v.device_type == 13) return Device(kCUDA, static_cast<DeviceIndex>(v.device_index));
  const bool is_other = v.device_type >= kOtherDevice;
  const auto type = is_other ? static_cast<DeviceType>(v.device_type - kOtherDevice) : DeviceType::PrivateUse1;
  return Device(type, static_cast<DeviceIndex>(v.device_index));
}
bool Tensor::is_signed() const {
  const ScalarType type = scalar_type();
  return type != kByte && type != kBool && type != kUInt16 && type != kUInt32 && type != kUInt64;
}
Layout Tensor::layout() const {
  return view().device_type < kOtherDevice ? kStrided : static_cast<Layout>(layout_of(node_));
}
TensorOptions Tensor::options() const { return TensorOptions(scalar_type()).device(device()).layout(layout()); }
namespace {
/* The dimension with the i-th largest stride, if the channels are last. */
int channels_last(int i, int ndim) { return i == 0 ? 0 : i == ndim - 1 ? 1 : i + 1; }
/* Whether the strides are those of a tensor whose channels are last; false if they fit both orders. */
bool has_channels_last(const View& v) {
  if (v.strides == nullptr || (v.ndim != 4 && v.ndim != 5) || v.strides[1] == 0) return false;
  int64_t least = 0;
  for (int i = v.ndim - 1; i >= 0; --i) {
    const int d = channels_last(i, v.ndim);
    if (v.sizes[d] == 0 || v.strides[d] < least || (d == 0 && least == v.strides[1])) return false;
    least = v.strides[d] * (v.sizes[d] > 1 ? v.sizes[d] : 1);
  }
  return true;
}
}  // namespace
MemoryFormat Tensor::suggest_memory_format() const {
  const View& v = view();
  if (!has_channels_last(v) || layout() != kStrided) return MemoryFormat::Contiguous;
  return v.ndim == 4 ? MemoryFormat::ChannelsLast : MemoryFormat::ChannelsLast3d;
}
bool Tensor::is_contiguous(MemoryFormat format) const {
  const View& v = view();
  const bool is_last = format == MemoryFormat::ChannelsLast || format == MemoryFormat::ChannelsLast3d;
  if (is_last && v.ndim != (format == MemoryFormat::ChannelsLast ? 4 : 5)) return false;
  int64_t expected = 1;
  if (v.strides == nullptr) fail_strides("is_contiguous");
  if (numel() == 0 && !is_last) return true;
  for (int i = v.ndim - 1; i >= 0; --i) {
    const int d = is_last ? channels_last(i, v.ndim) : i;
    if (v.sizes[d] == 1) continue;
    if (v.strides[d] != expected) return false;
    expected *= v.sizes[d];
  }
  return true;
}
int64_t Tensor::wrap(int64_t index) const {
  const int64_t count = dim();
  if (index < -count || index >= count) fail_dimension(index, count);
  return index < 0 ? index + count : index;
}
bool Tensor::requires_grad() const { return jitload_torch::requires_grad(*this); }
const Tensor& Tensor::set_requires_grad(bool value) const {
  call_path(".requires_grad_", "", *this, value);
  return *this;
}
int64_t Tensor::storage_offset() const { return python_value<int64_t>(call_path(".storage_offset", "", *this)); }
Tensor Tensor::grad() const {
  Object gradient = call_path(".grad", "", *this);
  return is_none(gradient.get()) ? Tensor() : Tensor(static_cast<Object&&>(gradient));
}
void Tensor::backward(const Tensor& gradient, OptionalArg<bool> retain_graph, bool create_graph,
                      OptionalArg<TensorList> inputs) const {
  call_path(".backward", "", *this, gradient, retain_graph, create_graph, inputs);
}
Tensor Tensor::data() const { return Tensor(call_path(".detach", "", *this)); }

// ---- indexing -------------------------------------------------------------------------------------------------------

jitload_torch::Object indexing::TensorIndex::to_python() const {
  using Part = Caster<OptionalArg<int64_t>>;
  switch (make_) {
    case 0: return none();
    case 1: return python_ellipsis();
    case 2: return python_integer(integer_);
    case 3: return python_bool(integer_ != 0);
    case 4: return python_slice(Part::to_python(slice_.start), Part::to_python(slice_.stop), Part::to_python(slice_.step));
    default: return Caster<Tensor>::to_python(tensor_);
  }
}
Tensor Tensor::index(ArrayRef<indexing::TensorIndex> indices) const {
  return Tensor(call_path(".__getitem__", "", *this, indices));
}
Tensor Tensor::index(std::initializer_list<indexing::TensorIndex> indices) const {
  return index(ArrayRef<indexing::TensorIndex>(indices));
}
#define X(Value)                                                                                         \
  Tensor& Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Value& value) {              \
    call_path(".__setitem__", "", *this, indices, value);                                                \
    return *this;                                                                                        \
  }                                                                                                      \
  Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Value& value) { \
    return index_put_(ArrayRef<indexing::TensorIndex>(indices), value);                                  \
  }
X(Tensor) X(Scalar)
#undef X
Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& value, bool accumulate) {
  call_path(".index_put_", "", *this, ArrayRef<indexing::TensorIndex>(indices), value, accumulate);
  return *this;
}
Tensor Tensor::operator[](int64_t index) const {
  static Operator op{"select.int", "", "ERKNS_6TensorElN3c106SymIntE"};
  return call<Tensor, 't', 'l', 'y'>(op, *this, 0, index);
}
Tensor Tensor::operator[](const Scalar& index) const {
  TORCH_CHECK_INDEX(index.isIntegral(false), "Can only index tensors with integral scalars");
  return (*this)[index.toLong()];
}
Tensor Tensor::operator[](const Tensor& index) const {
  TORCH_CHECK_INDEX(index.defined(), "Can only index with tensors that are defined");
  TORCH_CHECK_INDEX(index.dim() == 0, "Can only index with tensors that are scalars (zero-dim)");
  return (*this)[index.item()];
}

// ---- copies ---------------------------------------------------------------------------------------------------------

Scalar Tensor::item() const {
  static Operator op{"item", "", kUnary};
  return call<Scalar, 't'>(op, *this);
}
Tensor Tensor::contiguous(MemoryFormat format) const {
  static Operator op{"contiguous", "memory_format ", "ERKNS_6TensorEN3c1012MemoryFormatE"};
  return is_contiguous(format) ? *this : call<Tensor, 't', 'm'>(op, *this, format);
}
Tensor& Tensor::assign(const Tensor& other) {
  static Operator op{"copy_", "", "ERNS_6TensorERKS2_b"};
  call<void, 't', 't', 'b'>(op, *this, other, false);
  return *this;
}
Tensor& Tensor::operator=(const Scalar& value) && {
  static Operator op{"fill_.Scalar", "", kChangeByScalar};
  call<void, 't', 's'>(op, *this, value);
  return *this;
}
Tensor Tensor::convert(const TensorOptions& options) const {
  static Operator op{
      "to.dtype_layout", "dtype layout device pin_memory non_blocking copy memory_format ",
      "ERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbEbbS5_INS6_12MemoryFormatEE"};
  return call<Tensor, 't', 'C', 'U', 'V', 'B', 'b', 'b', 'M'>(
      op, *this, options.dtype_opt(), options.layout_opt(), options.device_opt(), options.pinned_memory_opt(), false, false,
      options.memory_format_opt());
}
Tensor Tensor::cpu() const { return convert(options().device(kCPU)); }
Tensor Tensor::cuda() const { return convert(options().device(kCUDA)); }
Tensor Tensor::toType(ScalarType type) const { return type == scalar_type() ? *this : convert(options().dtype(type)); }

// ---- operators ------------------------------------------------------------------------------------------------------

#define X(symbol, name)                                    \
  Tensor& Tensor::operator symbol(const Tensor & other) {  \
    static Operator op{name ".Tensor", "", kChange};         \
    call<void, 't', 't'>(op, *this, other);                \
    return const_cast<Tensor&>(reread());                  \
  }                                                        \
  Tensor& Tensor::operator symbol(const Scalar & other) {  \
    static Operator op{name ".Scalar", "", kChangeByScalar}; \
    call<void, 't', 's'>(op, *this, other);                \
    return const_cast<Tensor&>(reread());                  \
  }
X(*=, "mul_") X(/=, "div_") X(&=, "bitwise_and_") X(|=, "bitwise_or_") X(^=, "bitwise_xor_")
#undef X
/* Sums and differences have a factor of the second operand, alpha, which is 1. */
#define X(symbol, name)                                                                          \
  Tensor& Tensor::operator symbol##=(const Tensor& other) {                                      \
    static Operator op{name "_.Tensor", "alpha ", "ERNS_6TensorERKS2_RKN3c106ScalarE"};            \
    call<void, 't', 't', 's'>(op, *this, other, Scalar(1));                                      \
    return const_cast<Tensor&>(reread());                                                        \
  }                                                                                              \
  Tensor& Tensor::operator symbol##=(const Scalar& other) {                                      \
    static Operator op{name "_.Scalar", "", "ERNS_6TensorERKN3c106ScalarES7_"};                    \
    call<void, 't', 's', 's'>(op, *this, other, Scalar(1));                                      \
    return const_cast<Tensor&>(reread());                                                        \
  }                                                                                              \
  Tensor operator symbol(const Tensor& a, const Tensor& b) {                                     \
    static Operator op{name ".Tensor", "alpha ", "ERKNS_6TensorES4_RKN3c106ScalarE"};              \
    return call<Tensor, 't', 't', 's'>(op, a, b, Scalar(1));                                     \
  }                                                                                              \
  Tensor operator symbol(const Tensor& a, const Scalar& b) {                                     \
    static Operator op{name ".Scalar", "", "ERKNS_6TensorERKN3c106ScalarES8_"};                    \
    return call<Tensor, 't', 's', 's'>(op, a, b, Scalar(1));                                     \
  }
X(+, "add") X(-, "sub")
#undef X
#define JITLOAD_TORCH_BINARY_(symbol, name)                  \
  Tensor operator symbol(const Tensor& a, const Tensor& b) { \
    static Operator op{name ".Tensor", "", kBinary};           \
    return call<Tensor, 't', 't'>(op, a, b);                 \
  }                                                          \
  Tensor operator symbol(const Tensor& a, const Scalar& b) { \
    static Operator op{name ".Scalar", "", kWithScalar};       \
    return call<Tensor, 't', 's'>(op, a, b);                 \
  }
JITLOAD_TORCH_BINARY_(*, "mul") JITLOAD_TORCH_BINARY_(/, "div") JITLOAD_TORCH_BINARY_(%, "remainder")
#define X(symbol, name, swapped)                             \
  JITLOAD_TORCH_BINARY_(symbol, name)                        \
  Tensor operator symbol(const Scalar& a, const Tensor& b) { \
    static Operator op{swapped ".Scalar", "", kWithScalar};    \
    return call<Tensor, 't', 's'>(op, b, a);                 \
  }
X(<, "lt", "gt") X(<=, "le", "ge") X(>, "gt", "lt") X(>=, "ge", "le") X(==, "eq", "eq") X(!=, "ne", "ne")
X(&, "bitwise_and", "bitwise_and") X(|, "bitwise_or", "bitwise_or") X(^, "bitwise_xor", "bitwise_xor")
#undef X
#undef JITLOAD_TORCH_BINARY_
Tensor operator+(const Scalar& a, const Tensor& b) { return b + a; }
Tensor operator*(const Scalar& a, const Tensor& b) { return b * a; }
namespace {
/* For operators whose first operand is a number: a new tensor like `other` that is filled with the number. */
Tensor filled_like(const Scalar& number, const Tensor& other) {
  static Operator op{
      "empty_like", "dtype layout device pin_memory memory_format ",
      "ERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbES5_INS6_12MemoryFormatEE"};
  const TensorOptions options;
  Tensor result =
      call<Tensor, 't', 'C', 'U', 'V', 'B', 'M'>(op, other, options.dtype_opt(), options.layout_opt(), options.device_opt(),
                                                 options.pinned_memory_opt(), options.memory_format_opt());
  static_cast<Tensor&&>(result) = number;
  return result;
}
}  // namespace
Tensor operator-(const Scalar& a, const Tensor& b) { return filled_like(a, b) -= b; }
Tensor operator/(const Scalar& a, const Tensor& b) { return filled_like(a, b) /= b; }
Tensor operator%(const Scalar& a, const Tensor& b) {
  static Operator op{"remainder_.Tensor", "", kChange};
  Tensor result = filled_like(a, b);
  call<void, 't', 't'>(op, result, b);
  return result;
}
Tensor Tensor::operator-() const {
  static Operator op{"neg", "", kUnary};
  return call<Tensor, 't'>(op, *this);
}
Tensor Tensor::operator~() const {
  static Operator op{"bitwise_not", "", kUnary};
  return call<Tensor, 't'>(op, *this);
}

// ---- tensors from values and memory ---------------------------------------------------------------------------------

Tensor detail::tensor_of(const jitload_torch::Object& values, OptionalArg<ScalarType> type, const TensorOptions& options) {
  if (options.has_dtype()) type = options.dtype_opt();
  Tensor result(call_path("torch.tensor", "dtype device ", values, type, options.device_opt()));
  return with_options(result, options);
}
Tensor detail::tensor_over(void* data, IntArrayRef sizes, const int64_t* strides, const TensorOptions& options,
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
  View view = {data, device.is_cuda() ? 2 : 1, device.has_index() ? device.index() : 0,
               static_cast<int32_t>(sizes.size()), 0, 0, 1, shape, steps, 0};
  dtype_of_dlpack(static_cast<int8_t>(options.dtype().toScalarType()), &view.dtype_code, &view.dtype_bits);
  return with_options(Tensor(jitload_torch::tensor_over(view, release, context)), options);
}

OptionalArg<MemoryFormat> memory_format_of(const TensorOptions& options, const OptionalArg<MemoryFormat>& argument) {
  TORCH_CHECK(!options.memory_format_opt().has_value() || !argument.has_value(),
              "Cannot set memory_format both in TensorOptions and explicit argument; please delete the redundant setter.");
  return argument.has_value() ? argument : options.memory_format_opt();
}

// ---- torch's state --------------------------------------------------------------------------------------------------

int get_num_threads() { return python_value<int>(call_path("torch.get_num_threads", "")); }
void set_num_threads(int count) { call_path("torch.set_num_threads", "", count); }
TypeMeta get_default_dtype() { return python_value<ScalarType>(call_path("torch.get_default_dtype", "")); }
void manual_seed(uint64_t seed) { call_path("torch.manual_seed", "", seed); }
OptionalArg<Device> device_of(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() ? OptionalArg<Device>(tensor.device()) : OptionalArg<Device>();
}

}  // namespace at

namespace c10 {

using namespace jitload_torch;

// ---- numbers --------------------------------------------------------------------------------------------------------

namespace {
[[noreturn]] void fail_overflow(const char* type) {
  fail(ErrorKind::runtime, ("value cannot be converted to type " + std::string(type) + " without overflow").c_str());
}
}  // namespace

void Scalar::check_integer(const char* type, double low, double high) const {
  const bool wraps = low == 0 && !has_float(); /* negative integers become unsigned ones */
  const double value = real();
  if (!(value >= (wraps ? -high : low) && value <= high) || (isComplex() && imaginary() != 0)) fail_overflow(type);
}
void Scalar::check_float(const char* type, double high) const {
  const double value = real();
  const bool is_finite = value - value == 0;
  if ((is_finite && (value < -high || value > high)) || (isComplex() && imaginary() != 0)) fail_overflow(type);
}
Scalar Scalar::operator-() const {
  TORCH_CHECK(!isBoolean(), "torch boolean negative, the `-` operator, is not supported.");
  return isComplex() ? complex(-float_, -imaginary()) : isFloatingPoint() ? Scalar(-float_) : Scalar(-integer_);
}

// ---- guards ---------------------------------------------------------------------------------------------------------

OptionalDeviceGuard::OptionalDeviceGuard(OptionalArg<Device> device) {
  if (!device.has_value() || !device->is_cuda() || !device->has_index()) return;
  original_ = python_value<int>(call_path("torch.cuda.current_device", ""));
  call_path("torch.cuda.set_device", "", static_cast<int>(device->index()));
}
OptionalDeviceGuard::~OptionalDeviceGuard() {
  if (original_ >= 0) call_path("torch.cuda.set_device", "", original_);
}
InferenceMode::InferenceMode(bool enabled)
    : guard_(call_path("torch.autograd.grad_mode._enter_inference_mode", "", enabled)) {}
InferenceMode::~InferenceMode() { call_path("torch.autograd.grad_mode._exit_inference_mode", "", guard_); }

}  // namespace c10
