/* The small types: devices, array references, scalars, optional values and tensor options. */
#pragma once

#include "dtypes.h"

namespace std {
struct nullopt_t;
template <class T>
class optional;
}  // namespace std

namespace jitload_torch {
c10::ScalarType default_dtype(); /* what torch.set_default_dtype has set */
template <class T>
T&& value_of() noexcept;
template <class T>
void accept(T);
void accept_text(const char*);
template <class T>
struct identity {
  using type = T;
};
}  // namespace jitload_torch

namespace c10 {

// ---- devices and layouts ------------------------------------------------------------------------------------------

#define JITLOAD_TORCH_DEVICES_(X) \
  X(CPU, 0, "cpu") X(CUDA, 1, "cuda") X(HIP, 6, "hip") X(XPU, 12, "xpu") X(MPS, 13, "mps") X(Meta, 14, "meta") \
  X(PrivateUse1, 20, "privateuseone")
#define X(name, number, text) name = number,
enum class DeviceType : int8_t { JITLOAD_TORCH_DEVICES_(X) COMPILE_TIME_MAX_DEVICE_TYPES };
#undef X
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kMeta = DeviceType::Meta;
using DeviceIndex = int8_t;

inline const char* device_name(DeviceType type, bool is_lower = true) {
#define X(name, number, text) type == DeviceType::name ? (is_lower ? text : #name):
  return JITLOAD_TORCH_DEVICES_(X) "privateuseone";
#undef X
}

struct Device {
  Device(DeviceType type = kCPU, DeviceIndex index = -1) : type_(type), index_(index) {}
  Device(const char* text); /* as torch reads it */
  template <class TextArg, class = decltype(jitload_torch::value_of<const TextArg&>().c_str())>
  Device(const TextArg& text) : Device(text.c_str()) {}
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ != -1; }
  void set_index(DeviceIndex index) { index_ = index; }
  bool is_cuda() const { return type_ == kCUDA; }
  bool is_cpu() const { return type_ == kCPU; }
  bool is_meta() const { return type_ == kMeta; }
#if defined(_GLIBCXX_STRING)
  std::string str() const;
#endif
  friend bool operator==(const Device& a, const Device& b) { return a.type_ == b.type_ && a.index_ == b.index_; }
  friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }

 private:
  DeviceType type_;
  DeviceIndex index_;
};

enum class Layout : int8_t { Strided, Sparse, SparseCsr, Mkldnn, SparseCsc, SparseBsr, SparseBsc, Jagged };
constexpr Layout kStrided = Layout::Strided, kSparse = Layout::Sparse, kSparseCsr = Layout::SparseCsr,
                 kMkldnn = Layout::Mkldnn, kSparseCsc = Layout::SparseCsc, kSparseBsr = Layout::SparseBsr,
                 kSparseBsc = Layout::SparseBsc, kJagged = Layout::Jagged;
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };

// ---- references and optional values -------------------------------------------------------------------------------

template <class T>
class ArrayRef {
 public:
  using value_type = T;
  using iterator = const T*;
  using const_iterator = const T*;
  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T& element) : data_(&element), size_(1) {}
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), size_(static_cast<size_t>(end - begin)) {}
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
#endif
  constexpr ArrayRef(const std::initializer_list<T>& list) : data_(list.begin()), size_(list.size()) {}
#pragma GCC diagnostic pop
  template <size_t N>
  constexpr ArrayRef(const T (&array)[N]) : data_(array), size_(N) {}
  template <class C, class = decltype(jitload_torch::accept<const T*>(jitload_torch::value_of<const C&>().data())),
            class = decltype(jitload_torch::value_of<const C&>().size())>
  ArrayRef(const C& container) : data_(container.data()), size_(container.size()) {}
  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + size_; }
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](size_t index) const { return data_[index]; }
  const T& at(size_t index) const {
    if (index >= size_) jitload_torch::fail(jitload_torch::ErrorKind::Error, "ArrayRef: invalid index");
    return data_[index];
  }
  const T& front() const { return at(0); }
  const T& back() const { return at(size_ - 1); }
  constexpr ArrayRef slice(size_t start, size_t count) const {
    if (start + count > size_) jitload_torch::fail(jitload_torch::ErrorKind::Error, "ArrayRef: invalid slice");
    return ArrayRef(data_ + start, count);
  }
  constexpr ArrayRef slice(size_t start) const { return slice(start, start < size_ ? size_ - start : 0); }
  bool equals(ArrayRef other) const {
    if (size_ != other.size_) return false;
    for (size_t i = 0; i < size_; ++i)
      if (!(data_[i] == other.data_[i])) return false;
    return true;
  }
  /* Also for what converts to an array, such as a vector. */
  friend bool operator==(const ArrayRef& a, const ArrayRef& b) { return a.equals(b); }
  friend bool operator!=(const ArrayRef& a, const ArrayRef& b) { return !a.equals(b); }
#if defined(_GLIBCXX_VECTOR)
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
#endif

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};
using IntArrayRef = ArrayRef<int64_t>;
using IntList = IntArrayRef;

/* A parameter that may be left out, without the cost of <optional>, which converts to it. */
template <class T>
class OptionalArg {
 public:
  OptionalArg() = default;
  OptionalArg(const std::nullopt_t&) {}
  template <class U, class = decltype(jitload_torch::accept<T>(jitload_torch::value_of<const U&>()))>
  OptionalArg(const U& value) : has_value_(true), value_(value) {}
  template <class U>
  OptionalArg(const std::optional<U>& value) : has_value_(value.has_value()), value_(value.has_value() ? T(*value) : T()) {}
  bool has_value() const { return has_value_; }
  explicit operator bool() const { return has_value_; }
  const T& value() const {
    if (!has_value_) jitload_torch::fail(jitload_torch::ErrorKind::Error, "bad optional access");
    return value_;
  }
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }
  T value_or(T other) const { return has_value_ ? value_ : other; }

 private:
  bool has_value_ = false;
  T value_{};
};

class OptionalIntArrayRef : public OptionalArg<IntArrayRef> {
 public:
  OptionalIntArrayRef() = default;
  OptionalIntArrayRef(const std::nullopt_t&) {}
  OptionalIntArrayRef(const int64_t& element) : OptionalArg(IntArrayRef(element)) {}
  OptionalIntArrayRef(const std::initializer_list<int64_t>& list) : OptionalArg(IntArrayRef(list)) {}
  template <class C, class = decltype(IntArrayRef(jitload_torch::value_of<const C&>())),
            class = decltype(jitload_torch::value_of<const C&>().size())>
  OptionalIntArrayRef(const C& container) : OptionalArg(IntArrayRef(container)) {}
};

/* A parameter for a text: a C string, or an object with c_str(). */
class TextArg {
 public:
  TextArg() = default;
  /* Not for a literal 0, which means a number where a parameter may be a text or a number. */
  template <class C, class = decltype(jitload_torch::accept_text(static_cast<C*>(nullptr))), class = C[sizeof(C) == 1]>
  TextArg(C* text) : data_(text), size_(__builtin_strlen(text)) {}
  template <class S, class = decltype(jitload_torch::value_of<const S&>().c_str())>
  TextArg(const S& text) : data_(text.c_str()), size_(text.size()) {}
  const char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const char* data_ = "";
  size_t size_ = 0;
};

#if defined(_GLIBCXX_OPTIONAL)
using std::make_optional, std::nullopt, std::nullopt_t, std::optional;
#endif

// ---- scalars ------------------------------------------------------------------------------------------------------

class Scalar {
 public:
  enum class Tag : int8_t { floating, integer, boolean, complex };
  Scalar() : Scalar(static_cast<int64_t>(0)) {}
  Scalar(double value) : tag_(Tag::floating), float_(value), integer_(0) {}
  Scalar(float value) : Scalar(static_cast<double>(value)) {}
  Scalar(Half value) : Scalar(static_cast<double>(static_cast<float>(value))) {}
  Scalar(BFloat16 value) : Scalar(static_cast<double>(static_cast<float>(value))) {}
  Scalar(long value) : tag_(Tag::integer), float_(0), integer_(value) {}
  Scalar(long long value) : Scalar(static_cast<long>(value)) {}
  Scalar(unsigned long value) : Scalar(static_cast<long>(value)) {
    if (integer_ < 0) jitload_torch::fail(jitload_torch::ErrorKind::Error, "jitload's headers for torch do not support integers of 2**63 or more");
  }
#define X(T) \
  Scalar(T value) : Scalar(static_cast<long>(value)) {}
  X(unsigned) X(int) X(short) X(signed char) X(unsigned char)
#undef X
  template <class T, int (*)[__is_same(T, bool) ? 1 : -1] = nullptr> /* no pointers */ Scalar(T value) : tag_(Tag::boolean), float_(0), integer_(value) {}
  static Scalar complex(double real, double imaginary) {
    Scalar result(real);
    result.tag_ = Tag::complex;
    __builtin_memcpy(&result.integer_, &imaginary, sizeof imaginary);
    return result;
  }
  Tag tag() const { return tag_; }
  bool isFloatingPoint() const { return tag_ == Tag::floating; }
  bool isIntegral(bool include_bool) const { return tag_ == Tag::integer || (include_bool && isBoolean()); }
  bool isBoolean() const { return tag_ == Tag::boolean; }
  bool isComplex() const { return tag_ == Tag::complex; }
  ScalarType type() const {
    return tag_ == Tag::floating ? kDouble : tag_ == Tag::integer ? kLong : tag_ == Tag::boolean ? kBool : kComplexDouble;
  }
  template <class T>
  T to() const = delete; /* but for the types below */
#define X(T, name) \
  template <class Result = T> \
  Result name() const { return to<Result>(); }
  X(double, toDouble) X(float, toFloat) X(int64_t, toLong) X(int, toInt)
#undef X
  /* Whether a double holds the number. */
  bool is_double() const { return isFloatingPoint() || (!isComplex() && __builtin_fabs(real()) < 9007199254740992); }
  bool toBool() const { return isComplex() ? float_ != 0 || imaginary() != 0 : isFloatingPoint() ? float_ != 0 : integer_ != 0; }
  Scalar operator-() const;
  double real() const { return has_float() ? float_ : static_cast<double>(integer_); }
  double imaginary() const {
    double value;
    __builtin_memcpy(&value, &integer_, sizeof value);
    return value;
  }

 private:
  bool has_float() const { return isFloatingPoint() || isComplex(); }
  template <class T>
  T convert() const { return has_float() ? static_cast<T>(float_) : static_cast<T>(integer_); }
  /* Throws torch's error for a number that a type of C++ does not hold. */
  void check_range(const char* type, double low, double high, bool is_float) const;
  Tag tag_;
  double float_; /* the real part of a complex number, whose other part is in integer_ */
  long integer_;
};
template <>
inline bool Scalar::to<bool>() const { return toBool(); }
#define X(T)                                                               \
  template <>                                                              \
  inline T Scalar::to<T>() const {                                         \
    using Limits = std::numeric_limits<T>;                                 \
    check_range(#T, static_cast<double>(Limits::min()), static_cast<double>(Limits::max()), false); \
    return convert<T>();                                                   \
  }
X(uint8_t) X(int8_t) X(int16_t) X(int) X(int64_t) X(uint16_t) X(uint32_t) X(uint64_t)
#undef X
#define X(T, name, high)                \
  template <>                           \
  inline T Scalar::to<T>() const {      \
    check_range(name, -high, high, true); \
    return convert<T>();                \
  }
X(float, "float", __FLT_MAX__) X(double, "double", __DBL_MAX__) X(Half, "c10::Half", 65504)
X(BFloat16, "c10::BFloat16", 3.3895313892515355e38)
#undef X

// ---- options ------------------------------------------------------------------------------------------------------

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(TypeMeta type) : dtype_(type.toScalarType()) {}
  TensorOptions(Layout layout) : layout_(layout) {}
  TensorOptions(MemoryFormat format) : memory_format_(format) {}
  template <class D, class = decltype(Device(jitload_torch::value_of<D>()))>
  TensorOptions(const D& device) : device_(Device(device)) {}

  /* A copy with another value of a member, and the member. */
#define X(T, name)                                                                                              \
  TensorOptions name(OptionalArg<T> value) const { return with(&TensorOptions::name##_, value); }               \
  const OptionalArg<T>& name##_opt() const { return name##_; }
  X(ScalarType, dtype) X(Device, device) X(Layout, layout) X(bool, requires_grad) X(bool, pinned_memory)
  X(MemoryFormat, memory_format)
#undef X
  TensorOptions dtype(ScalarType type) const { return dtype(OptionalArg<ScalarType>(type)); }
  TensorOptions dtype(TypeMeta type) const { return dtype(type.toScalarType()); }
  template <class T>
  TensorOptions dtype() const { return dtype(CppTypeToScalarType<T>::value); }
  TensorOptions device(DeviceType type, DeviceIndex index) const { return device(Device(type, index)); }

  TypeMeta dtype() const { return dtype_.has_value() ? *dtype_ : jitload_torch::default_dtype(); }
  Device device() const { return device_.value_or(Device(kCPU)); }
  DeviceIndex device_index() const { return device().index(); }
  Layout layout() const { return layout_.value_or(kStrided); }
  bool requires_grad() const { return requires_grad_.value_or(false); }
  bool pinned_memory() const { return pinned_memory_.value_or(false); }
  bool is_cuda() const { return device().is_cuda(); }
  bool has_dtype() const { return dtype_.has_value(); }

 private:
  template <class T>
  TensorOptions with(OptionalArg<T> TensorOptions::*member, const OptionalArg<T>& value) const {
    TensorOptions result = *this;
    result.*member = value;
    return result;
  }
  OptionalArg<ScalarType> dtype_;
  OptionalArg<Device> device_;
  OptionalArg<Layout> layout_;
  OptionalArg<bool> requires_grad_, pinned_memory_;
  OptionalArg<MemoryFormat> memory_format_;
};
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions dtype(TypeMeta type) { return TensorOptions(type); }
inline TensorOptions device(Device device) { return TensorOptions(device); }
inline TensorOptions layout(Layout layout) { return TensorOptions(layout); }
inline TensorOptions requires_grad(bool value = true) { return TensorOptions().requires_grad(value); }

template <class T>
struct scalar_value_type : jitload_torch::identity<T> {};

}  // namespace c10

namespace at {
using namespace c10;
namespace Reduction {
enum Reduction { None, Mean, Sum, END };
}
template <class T>
struct OpMathType : jitload_torch::identity<T> {};
#define X(T) \
  template <> \
  struct OpMathType<T> : jitload_torch::identity<float> {};
X(Half) X(BFloat16) X(Float8_e4m3fn) X(Float8_e5m2) X(Float8_e4m3fnuz) X(Float8_e5m2fnuz) X(Float8_e8m0fnu)
#undef X
template <class T>
using opmath_type = typename OpMathType<T>::type;
}  // namespace at

namespace torch {
using namespace at;
using Dtype = at::ScalarType;
constexpr Dtype kU8 = kByte, kI8 = kChar, kI16 = kShort, kI32 = kInt, kI64 = kLong, kF16 = kHalf, kF32 = kFloat, kF64 = kDouble;
}  // namespace torch
