/* Tensors: what torch says of them, and the methods and operators of at::Tensor that need not be inline. */
#include <dlfcn.h>
#include <string.h>

#include <sstream>
#include <utility>
#include <vector>

#include "library.h"

namespace jitload_torch {

namespace {

/* Throws torch's error for a method that failed. A torch that does not tell it raises it in Python. */
void fail_method(Handle tensor, const char* method) {
  Gil gil;
  if (PyErr_Occurred() != nullptr) throw PythonError();
  if (tensor != nullptr && interface().last_message == nullptr) {
    call_path((std::string(".") + method).c_str(), "", at::Tensor(copy_handle(tensor)));
  }
  fail_torch(method);
}
/* What one of torch's functions says of a tensor. */
template <class T, class Raw>
T ask(int32_t (*function)(Handle, Raw*), Handle tensor, const char* method) {
  Raw value{};
  if (function(tensor != nullptr ? tensor : interface().undefined, &value) != 0) fail_method(tensor, method);
  return static_cast<T>(value);
}

}  // namespace

at::Tensor with_options(at::Tensor tensor, const c10::TensorOptions& options) {
  return options.requires_grad() ? tensor.set_requires_grad(true) : tensor;
}
Handle copy_handle(Handle tensor) {
  Handle copy = nullptr;
  if (interface().aoti_torch_new_tensor_handle(tensor, &copy) != 0) fail_torch("to share a tensor");
  return copy;
}
void delete_handle(Handle tensor) { interface().aoti_torch_delete_tensor_object(tensor); }
#define X(T, name, function, method) \
  T tensor_##name(Handle tensor) { return ask<T>(interface().aoti_torch_##function, tensor, method); }
X(int64_t, dim, get_dim, "dim") X(int64_t, numel, get_numel, "numel") X(int8_t, dtype, get_dtype, "dtype")
X(int64_t, storage_offset, get_storage_offset, "storage_offset") X(const int64_t*, sizes, get_sizes, "size")
X(const int64_t*, strides, get_strides, "stride") X(int8_t, layout, get_layout, "layout")
X(int8_t, device_type, get_device_type, "device") X(int8_t, device_index, get_device_index, "device")
X(bool, is_contiguous, is_contiguous, "is_contiguous") 
#undef X
void* tensor_data(Handle tensor) { return ask<void*>(interface().torch_get_mutable_data_ptr, tensor, "data_ptr"); }
const void* tensor_const_data(Handle tensor) {
  return ask<const void*>(interface().torch_get_const_data_ptr, tensor, "data_ptr");
}
void check_allocated(Handle tensor, const void* data, size_t element_size) {
  const size_t offset = static_cast<size_t>(tensor_storage_offset(tensor)) * element_size;
  if (C10_LIKELY(reinterpret_cast<size_t>(data) != offset) || tensor_numel(tensor) == 0) return;
  TORCH_CHECK(false, "The tensor has a non-zero number of elements, but its data is not allocated yet.\n"
              "It may be a tensor of torch.compile or of a fake mode, or its storage has been resized to 0.");
}
Handle empty_tensor(int8_t scalar_type, int64_t size) {
  const int64_t stride = 1;
  Handle tensor = nullptr;
  if (interface().aoti_torch_empty_strided(size >= 0, &size, &stride, scalar_type, 0, 0, &tensor) != 0) fail_torch("memory for a tensor");
  return tensor;
}

c10::ScalarType default_dtype() { return python_value<c10::ScalarType>(call_path("torch.get_default_dtype", "")); }

void append(Message& m, const at::Tensor& value) {
  std::ostringstream stream;
  if (void* const function = dlsym(interface().library, kPrintName)) {
    using Print = std::ostream& (*)(std::ostream&, Handle, int64_t);
    const Handle tensor = value.defined() ? value.handle() : interface().undefined;
    call_torch([&] { reinterpret_cast<Print>(function)(stream, tensor, 80); });
  } else {
    Gil gil;
    stream << text_of(checked(PyObject_Str(python(value).get())).get());
  }
  m.append(stream.str().c_str());
}

}  // namespace jitload_torch

namespace at {

using namespace jitload_torch;

// ---- what a tensor is -----------------------------------------------------------------------------------------------

Device Tensor::device() const {
  TORCH_CHECK(defined(), "tensor does not have a device");
  return Device(static_cast<DeviceType>(tensor_device_type(handle_)), tensor_device_index(handle_));
}
bool Tensor::is_same(const Tensor& other) const {
  return python(*this).get() == python(other).get();
}
TensorOptions Tensor::options() const { return TensorOptions(scalar_type()).device(device()).layout(layout()); }
MemoryFormat Tensor::suggest_memory_format() const {
  const MemoryFormat format = dim() == 4 ? MemoryFormat::ChannelsLast : MemoryFormat::ChannelsLast3d;
  if (layout() != kStrided || dim() < 4 || dim() > 5) return MemoryFormat::Contiguous;
  const Object has_channels_last = call_path("torch.ops.aten.is_strides_like_format", "", *this, format);
  return python_value<bool>(has_channels_last) ? format : MemoryFormat::Contiguous;
}
bool Tensor::is_contiguous(MemoryFormat format) const {
  if (format == MemoryFormat::Contiguous) return tensor_is_contiguous(handle_);
  return python_value<bool>(call_path(".is_contiguous", "memory_format ", *this, format));
}
int64_t Tensor::wrap(int64_t index) const {
  const int64_t count = dim();
  if (index < -count || index >= count) fail_dimension(index, count);
  return index < 0 ? index + count : index;
}
int64_t Tensor::property(const char* path) const {
  const Object value = call_path(path, "", *this);
  return is_none(value.get()) ? 0 : python_value<int64_t>(value);
}
bool Tensor::is_alias_of(const Tensor& other) const {
  for (const Tensor* const tensor : {this, &other}) call_path(".untyped_storage", "", *tensor); /* throws torch's error */
  return python_value<bool>(call_path("torch._C._is_alias_of", "", *this, other));
}
void Tensor::set_data(const Tensor& data) const { call_path("torch.Tensor.data.__set__", "", *this, data); }
const Tensor& Tensor::set_requires_grad(bool value) const {
  if (!defined() || interface().torch_set_requires_grad(handle_, value) != 0) fail_method(handle_, "requires_grad_");
  return *this;
}
Tensor& Tensor::requires_grad_(bool value) const {
  if (!value && !is_leaf()) call_path(".requires_grad_", "requires_grad ", *this, value); /* throws torch's error */
  return const_cast<Tensor&>(set_requires_grad(value));
}
const Tensor Tensor::grad() const {
  Object gradient = call_path(".grad", "", *this);
  return is_none(gradient.get()) ? Tensor() : Tensor(gradient);
}
void Tensor::backward(const Tensor& gradient, OptionalArg<bool> retain_graph, bool create_graph,
                      OptionalArg<TensorList> inputs) const {
  call_path(".backward", "", *this, gradient, retain_graph, create_graph, inputs);
}
Tensor Tensor::data() const { return Tensor(call_path(".data", "", *this)); }

// ---- indexing -------------------------------------------------------------------------------------------------------

indexing::TensorIndex::TensorIndex(const char* text) : object_(borrow(&_Py_EllipsisObject)) {
  TORCH_CHECK_VALUE(strcmp(text, "...") == 0, "Expected \"...\" to represent an ellipsis index, but got \"", text, "\"");
}
indexing::TensorIndex::TensorIndex(const Slice& slice) {
  Gil gil;
  static constexpr int64_t kLeast = -(int64_t{1} << 62); /* Python warns of less */
  const auto end = [](const OptionalArg<int64_t>& value) { return python(value.value_or(0) < kLeast ? OptionalArg<int64_t>(kLeast) : value); };
  object_ = checked(PySlice_New(end(slice.start).get(), end(slice.stop).get(), python(slice.step).get()));
}
indexing::TensorIndex::TensorIndex(const Tensor& tensor) : tensor_bits_(tensor.defined() ? 1 : 2) {
  object_ = tensor.defined() ? python(tensor) : TensorIndex(Slice()).to_python(); /* as in torch */
}
/* The number as a tensor on the CPU with the dtype of `x`, to which torch would convert it, made by no operator. Undefined for bools
 * and numbers that overflow, which operators may treat differently, and on a GPU for divisors that a float rounds, because torch
 * rounds their reciprocals instead, and for `+ - *`, which are faster otherwise. index_put_, which modes see with a tensor, has no symbol. */
static Tensor number_like(const Tensor& x, const Scalar& number, const char* symbol) {
  const bool is_for_gpu = *symbol == '/' ? static_cast<float>(number.real()) == number.real() : *symbol == '*' ? symbol[1] == '=' : strchr("%<>=!", *symbol) != nullptr && *symbol != '\0';
  if (number.isBoolean() || !number.is_double() || !(x.is_cpu() || (is_for_gpu && x.is_cuda()))) return {};
  const bool fits = __builtin_fabs(number.real()) <= __FLT_MAX__ || number.real() - number.real() != 0, is_double = x.scalar_type() == kDouble;
  if ((!is_double && !(x.scalar_type() == kFloat && fits)) || (*symbol != '\0' && is_observed(x))) return {};
  const Tensor result(empty_tensor(static_cast<int8_t>(x.scalar_type())));
  if (is_double) *static_cast<double*>(result.data_ptr()) = number.real();
  else *static_cast<float*>(result.data_ptr()) = static_cast<float>(number.real());
  return result;
}
/* In torch, undefined tensors as indices are full slices only beside a tensor. */
static void check_indices(ArrayRef<indexing::TensorIndex> indices, const char* name) {
  TORCH_CHECK_INDEX(!indices.empty(), "Passing an empty index list to Tensor::", name, "() is not valid syntax");
  int bits = 0;
  for (const indexing::TensorIndex& index : indices) bits |= index.tensor_bits();
  TORCH_CHECK_INDEX(bits != 2, "at least one index must be provided");
}
/* Python has another error for x[(0,)] than for x[0], if x has no dimensions. */
static Object subscript(ArrayRef<indexing::TensorIndex> indices) { return indices.size() == 1 ? python(indices[0]) : python(indices); }
Tensor Tensor::index(ArrayRef<indexing::TensorIndex> indices) const {
  check_indices(indices, "index");
  return Tensor(call_path(".__getitem__", "", *this, subscript(indices)));
}
Tensor& Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor& value, bool accumulate) {
  check_indices(indices, "index_put_");
  accumulate ? call_path(".index_put_", "", *this, indices, value, true) : call_path(".__setitem__", "", *this, subscript(indices), value);
  return *this;
}
Tensor& Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar& value) {
  if (const Tensor number = number_like(*this, value, ""); number.defined()) return index_put_(indices, number);
  check_indices(indices, "index_put_");
  return call_path(".__setitem__", "", *this, subscript(indices), value), *this;
}
Tensor Tensor::index_put(ArrayRef<indexing::TensorIndex> indices, const Tensor& value, bool accumulate) const {
  return Tensor(call_path(".index_put", "", *this, indices, value, accumulate));
}
Tensor Tensor::operator[](int64_t index) const {
  static Operator op{"aten::select", "int", "dim index ", "t"};
  return call<Tensor>(op, *this, int64_t(0), index);
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
  const ScalarType type = defined() ? scalar_type() : ScalarType::Undefined;
  double number = 0;
  int64_t integer = 0;
  bool flag = false;
  if (isFloatingType(type) && interface().aoti_torch_item_float64(handle_, &number) == 0) return number;
  if (isIntegralType(type, false) && interface().aoti_torch_item_int64(handle_, &integer) == 0) return integer;
  if (type == kBool && interface().aoti_torch_item_bool(handle_, &flag) == 0) return flag;
  return python_value<Scalar>(call_path(".item", "", *this)); /* or throws torch's error */
}
Tensor Tensor::contiguous(MemoryFormat format) const {
  static Operator op{"aten::contiguous", "", "memory_format ", "t"};
  return is_contiguous(format) ? *this : call<Tensor>(op, *this, format);
}
Tensor& Tensor::assign(const Tensor& other) {
  static Operator op{"aten::copy_", "", "src non_blocking ", "_"};
  return call<void>(op, *this, other, false), *this;
}
Tensor& Tensor::operator=(const Scalar& value) && {
  static Operator op{"aten::fill_", "Scalar", "value ", "_", JITLOAD_TORCH_ABI, false, 's'};
  return call<void>(op, *this, value), *this;
}
Tensor Tensor::convert(const TensorOptions& options) const {
  static Operator op{"aten::to", "dtype_layout", "dtype layout device pin_memory non_blocking copy memory_format ", "t"};
  return call<Tensor>(op, *this, options.dtype_opt(), options.layout_opt(), options.device_opt(), options.pinned_memory_opt(),
                      false, false, options.memory_format_opt());
}
Tensor Tensor::cpu() const { return convert(options().device(kCPU)); }
Tensor Tensor::cuda() const { return convert(options().device(kCUDA)); }
Tensor Tensor::toType(ScalarType type) const { return type == scalar_type() ? *this : convert(options().dtype(type)); }

// ---- operators ------------------------------------------------------------------------------------------------------

#define JITLOAD_TORCH_SHORTCUT_Tensor_(x, symbol, other)
#define JITLOAD_TORCH_SHORTCUT_Scalar_(x, symbol, number) \
  if (const Tensor tensor = number_like(x, number, #symbol); tensor.defined()) return x symbol tensor;
#define JITLOAD_TORCH_CHANGE_(Other, symbol, name, has_alpha)                                      \
  Tensor& Tensor::operator symbol(const Other & other) {                                           \
    JITLOAD_TORCH_SHORTCUT_##Other##_(*this, symbol, other)                                        \
    static Operator op{"aten::" name, #Other, "other ", "_", JITLOAD_TORCH_ABI, has_alpha};        \
    return call<void>(op, *this, other), *this;                                                    \
  }
#define JITLOAD_TORCH_BINARY_(Other, symbol, name, has_alpha)                                      \
  Tensor operator symbol(const Tensor& a, const Other& b) {                                        \
    JITLOAD_TORCH_SHORTCUT_##Other##_(a, symbol, b)                                                \
    static Operator op{"aten::" name, #Other, "other ", "t", JITLOAD_TORCH_ABI, has_alpha, *#Other == 'S' && strchr("+-*", *#symbol) != nullptr ? *#symbol : '\0'}; \
    return call<Tensor>(op, a, b);                                                                 \
  }
#define X(kind, ...) JITLOAD_TORCH_##kind##_(Tensor, __VA_ARGS__) JITLOAD_TORCH_##kind##_(Scalar, __VA_ARGS__)
/* Sums and differences have a Scalar, alpha, and are called through Python, where it may be left out. */
X(CHANGE, +=, "add_", true) X(BINARY, +, "add", true) X(CHANGE, -=, "sub_", true) X(BINARY, -, "sub", true)
X(CHANGE, *=, "mul_", false) X(BINARY, *, "mul", false) X(CHANGE, /=, "div_", false) X(BINARY, /, "div", false)
X(CHANGE, &=, "bitwise_and_", false) X(CHANGE, |=, "bitwise_or_", false) X(CHANGE, ^=, "bitwise_xor_", false)
X(BINARY, %, "remainder", false)
#undef X
#define X(symbol, name, swapped)                     \
  JITLOAD_TORCH_BINARY_(Tensor, symbol, name, false) \
  JITLOAD_TORCH_BINARY_(Scalar, symbol, name, false) \
  Tensor operator symbol(const Scalar& a, const Tensor& b) { return b swapped a; }
X(<, "lt", >) X(<=, "le", >=) X(>, "gt", <) X(>=, "ge", <=) X(==, "eq", ==) X(!=, "ne", !=)
X(&, "bitwise_and", &) X(|, "bitwise_or", |) X(^, "bitwise_xor", ^)
#undef X
#undef JITLOAD_TORCH_BINARY_
#undef JITLOAD_TORCH_CHANGE_
Tensor operator+(const Scalar& a, const Tensor& b) { return b + a; }
Tensor operator*(const Scalar& a, const Tensor& b) { return b * a; }
/* For operators whose first operand is a number: a new tensor like `other` that is filled with the number. */
static Tensor filled_like(const Scalar& number, const Tensor& other) {
  static Operator op{"aten::empty_like", "", "dtype layout device pin_memory memory_format ", "t"};
  const TensorOptions options(MemoryFormat::Preserve);
  Tensor result = call<Tensor>(op, other, options.dtype_opt(), options.layout_opt(), options.device_opt(),
                               options.pinned_memory_opt(), options.memory_format_opt());
  static_cast<Tensor&&>(result) = number;
  return result;
}
#define X(symbol, name, has_alpha)                                                          \
  Tensor operator symbol(const Scalar& a, const Tensor& b) {                                \
    static Operator op{name, "Tensor", "other ", "_", JITLOAD_TORCH_ABI, has_alpha};        \
    const Tensor result = filled_like(a, b);                                                \
    return call<void>(op, result, b), result;                                               \
  }
X(-, "aten::sub_", true) X(/, "aten::div_", false) X(%, "aten::remainder_", false)
#undef X
#define X(symbol, name) Tensor Tensor::operator symbol() const { static Operator op{name, "", "", "t"}; return call<Tensor>(op, *this); }
X(-, "aten::neg") X(~, "aten::bitwise_not")
#undef X

// ---- tensors from values and memory ---------------------------------------------------------------------------------

detail::TensorDataContainer::TensorDataContainer(ScalarType type, const void* values, int64_t count)
    : type_(type), array_(empty_tensor(static_cast<int8_t>(type), count)) {
  if (count != 0) memcpy(array_.data_ptr(), values, array_.nbytes());
}
detail::TensorDataContainer::TensorDataContainer(std::initializer_list<TensorDataContainer> list)
    : type_(list.begin()->type_), dim_(list.begin()->dim_ + 1), sizes_{static_cast<int64_t>(list.size())} {
  const TensorDataContainer& first = *list.begin();
  size_t count = 1;
  for (size_t i = 1; i < dim_; ++i) count *= static_cast<size_t>(sizes_[i] = first.sizes_[i - 1]);
  numbers_ = new Scalar[count * list.size()];
  for (const TensorDataContainer& element : list) {
    TORCH_CHECK(!element.array_.defined(), "TensorDataContainer is already a Tensor type, `fill_tensor` should not be called");
    TORCH_CHECK(IntArrayRef(element.sizes_, element.dim_) == IntArrayRef(first.sizes_, first.dim_),
                "Expected all sub-lists to have sizes: ", IntArrayRef(first.sizes_, first.dim_),
                " (e.g. ", "...", "), but got sub-list with sizes: ", IntArrayRef(element.sizes_, element.dim_));
    TORCH_CHECK(element.type_ == type_, "Expected all elements of the tensor to have the same scalar type: ", type_,
                ", but got element of scalar type: ", element.type_);
    for (size_t i = 0; i < count; ++i) numbers_[count * static_cast<size_t>(&element - &first) + i] = element.numbers_[i];
  }
}
Tensor detail::TensorDataContainer::to_tensor(const TensorOptions& options, bool is_plain) const {
  TensorOptions given = options.memory_format({}); /* which both ignore */
  const bool is_usual = type_ == kFloat || type_ == kDouble;
  if (!is_plain && !options.has_dtype()) given = given.dtype(is_usual ? jitload_torch::default_dtype() : type_ == kInt ? kLong : type_);
  if (array_.defined()) return with_options(array_.convert(given), options);
  if (!is_plain) return with_options(fill_each(given, IntArrayRef(sizes_, dim_)), options);
  return with_options(fill_each(TensorOptions(type_), IntArrayRef(sizes_, dim_ != 0 ? dim_ : 1)).convert(given), options);
}
/* Calls the operators that torch calls: each number must fit into the dtype, and modes see them. */
Tensor detail::TensorDataContainer::fill_each(const TensorOptions& options, IntArrayRef sizes) const {
  static Operator empty{"aten::empty", "memory_format", "dtype layout device pin_memory memory_format ", "t", JITLOAD_TORCH_ABI, false, 'e'};
  static Operator scalar_tensor{"aten::scalar_tensor", "", "dtype layout device pin_memory ", "t"};
  const auto make = [&](Operator& op, const auto& first, const OptionalArg<Device>& device, const auto&... format) {
    return call<Tensor>(op, first, options.dtype_opt(), options.layout_opt(), device, options.pinned_memory_opt(), format...);
  };
  if (sizes.empty()) return make(scalar_tensor, numbers_[0], options.device_opt());
  const Tensor result = make(empty, sizes, Device(kCPU), options.memory_format_opt());
  switch (is_observed(result) || result.scalar_type() == kHalf || result.scalar_type() == kBFloat16 ? kComplexHalf : result.scalar_type()) { /* halves may overflow */
#define X(T, name, ...) \
  case ScalarType::name: for (int64_t i = 0; i < result.numel(); ++i) static_cast<T*>(result.data_ptr())[i] = numbers_[i].to<T>(); break;
    JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X
    default: for (int64_t i = 0; i < result.numel(); ++i) Tensor(call_path(".view", "", result, -1))[i] = numbers_[i];
  }
  return result.convert(TensorOptions().device(options.device_opt()));
}
Tensor detail::tensor_over(void* data, IntArrayRef sizes, const int64_t* strides, const TensorOptions& options,
                           void (*release)(void*, void*), void* context) {
  using Owner = std::pair<void (*)(void*, void*), void*>;
  const auto free = [](void* memory, void* argument) {
    const GilNote note(false); /* torch may have released the GIL */
    const Owner owner = *static_cast<Owner*>(argument);
    delete static_cast<Owner*>(argument);
    owner.first(memory, owner.second);
  };
  std::vector<int64_t> contiguous(sizes.size() + 1, 1);
  for (size_t i = sizes.size(); i-- > 1;) contiguous[i - 1] = contiguous[i] * (sizes[i] > 1 ? sizes[i] : 1);
  if (strides == nullptr) strides = contiguous.data();
  const auto dim = static_cast<int64_t>(sizes.size());
  const auto type = static_cast<int32_t>(options.dtype().toScalarType());
  const auto device = static_cast<int32_t>(options.device().type()), index = static_cast<int32_t>(options.device_index());
  Handle tensor = nullptr;
  int32_t status = 0;
  if (release == nullptr) {
    status = interface().aoti_torch_create_tensor_from_blob(data, dim, sizes.data(), strides, 0, type, device, index, &tensor);
  } else if (interface().from_blob != nullptr) {
    status = interface().from_blob(data, dim, sizes.data(), strides, 0, type, device, index, &tensor, 0, nullptr, 0, free,
                                   new Owner{release, context});
  } else {
    fail(ErrorKind::NotImplementedError, "from_blob with a deleter needs torch 2.11 or newer");
  }
  if (status != 0) fail_torch("from_blob");
  return with_options(Tensor(tensor), options);
}

// ---- torch's state --------------------------------------------------------------------------------------------------

int get_num_threads() { return python_value<int>(call_path("torch.get_num_threads", "")); }
void manual_seed(uint64_t seed) { call_path("torch.manual_seed", "", seed); }
OptionalArg<Device> device_of(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() ? OptionalArg<Device>(tensor.device()) : OptionalArg<Device>();
}

}  // namespace at

namespace c10 {
namespace {
struct Dtype {
  const char *name, *cpp;
  size_t size;
};
Dtype dtype_of(ScalarType type) {
  switch (type) {
#define X(T, name, number, python, cpp) \
  case ScalarType::name: return {#name, cpp, sizeof(T)};
    JITLOAD_TORCH_ALL_SCALAR_TYPES(X)
#undef X
    default: return {"UNKNOWN_SCALAR", type == ScalarType::Undefined ? "nullptr (uninitialized)" : "UNKNOWN_SCALAR", 0};
  }
}
}  // namespace
const char* toString(ScalarType type) { return dtype_of(type).name; }
size_t elementSize(ScalarType type) {
  return dtype_of(type).size != 0 ? dtype_of(type).size : throw Error(jitload_torch::ErrorKind::Error, "Unknown ScalarType");
}
const char* TypeMeta::name() const { return dtype_of(type_).cpp; }

namespace impl {
OptionalArg<MemoryFormat> check_tensor_options_and_extract_memory_format(const TensorOptions& options,
                                                                         const OptionalArg<MemoryFormat>& argument) {
  TORCH_CHECK(!options.requires_grad(), "Operators taking TensorOptions cannot take a TensorOptions with "
              "options.requires_grad set as true. This isn't implemented yet.");
  TORCH_CHECK(!options.memory_format_opt().has_value() || !argument.has_value(),
              "Cannot set memory_format both in TensorOptions and explicit argument; please delete the redundant setter.");
  return argument.has_value() ? argument : options.memory_format_opt();
}
}  // namespace impl

using namespace jitload_torch;

Device::Device(const char* text) {
  uint32_t type = 0;
  int32_t index = 0;
  if (interface().torch_parse_device_string(text, &type, &index) != 0) fail_torch("a device");
  *this = Device(static_cast<DeviceType>(type), static_cast<DeviceIndex>(index));
}

// ---- numbers --------------------------------------------------------------------------------------------------------

void Scalar::check_range(const char* type, double low, double high, bool is_float) const {
  const bool wraps = low == 0 && !has_float(); /* negative integers become unsigned ones */
  const double value = real();
  const bool is_in_range = (value >= (wraps ? -high : low) && value <= high) || (is_float && value - value != 0);
  if (!is_in_range || (isComplex() && imaginary() != 0)) throw std::runtime_error(c10::str("value cannot be converted to type ", type, " without overflow"));
}
Scalar Scalar::operator-() const {
  TORCH_CHECK(!isBoolean(), "torch boolean negative, the `-` operator, is not supported.");
  return isComplex() ? complex(-float_, -imaginary()) : isFloatingPoint() ? Scalar(-float_) : Scalar(-integer_);
}

// ---- guards ---------------------------------------------------------------------------------------------------------

OptionalDeviceGuard::OptionalDeviceGuard(OptionalArg<Device> device) {
  if (!device.has_value() || !device->is_cuda() || !device->has_index()) return;
  original = python_value<int>(call_path("torch.cuda.current_device", ""));
  call_path("torch.cuda.set_device", "", static_cast<int>(device->index()));
}
OptionalDeviceGuard::~OptionalDeviceGuard() {
  if (original >= 0) call_path("torch.cuda.set_device", "", original);
}

}  // namespace c10
