/* TORCH_CHECK and similar macros, and the messages that they put together. */
#ifndef JITLOAD_TORCH_CHECK_H_
#define JITLOAD_TORCH_CHECK_H_

#include "core.h"

namespace jitload_torch {

inline void append(Message& m, const char* value) { m.append(value); }
inline void append(Message& m, char value) { m.append(&value, 1); }
inline void append(Message& m, signed char value) { m.append(reinterpret_cast<const char*>(&value), 1); }
inline void append(Message& m, unsigned char value) { m.append(reinterpret_cast<const char*>(&value), 1); }
inline void append(Message& m, bool value) { m.append_integer(value); }
inline void append(Message& m, short value) { m.append_integer(value); }
inline void append(Message& m, int value) { m.append_integer(value); }
inline void append(Message& m, long value) { m.append_integer(value); }
inline void append(Message& m, long long value) { m.append_integer(value); }
inline void append(Message& m, unsigned short value) { m.append_unsigned(value); }
inline void append(Message& m, unsigned value) { m.append_unsigned(value); }
inline void append(Message& m, unsigned long value) { m.append_unsigned(value); }
inline void append(Message& m, unsigned long long value) { m.append_unsigned(value); }
inline void append(Message& m, float value) { m.append_float(value); }
inline void append(Message& m, double value) { m.append_float(value); }
inline void append(Message& m, const void* value) { m.append_pointer(value); }
inline void append(Message& m, c10::Half value) { m.append_float(value); }
inline void append(Message& m, c10::BFloat16 value) { m.append_float(value); }
inline void append(Message& m, c10::ScalarType value) { m.append(c10::toString(value)); }
inline void append(Message& m, c10::TypeMeta value) { m.append(value.name()); }
inline void append(Message& m, c10::DeviceType value) { m.append(c10::device_name(value)); }
inline void append(Message& m, const c10::Device& value) {
  m.append(c10::device_name(value.type()));
  if (!value.has_index()) return;
  m.append(":");
  m.append_integer(value.index());
}
inline void append(Message& m, c10::Layout value) {
  static const char* const names[] = {"Strided",   "Sparse",    "SparseCsr", "Mkldnn",
                                      "SparseCsc", "SparseBsr", "SparseBsc", "Jagged"};
  m.append(names[static_cast<int>(value)]);
}
void append(Message& m, const c10::Scalar& value);
inline void append(Message& m, c10::MemoryFormat value) {
  static const char* const names[] = {"Contiguous", "Preserve", "ChannelsLast", "ChannelsLast3d"};
  m.append(names[static_cast<int>(value)]);
}
void append(Message& m, const c10::TensorOptions& value);
template <class T>
void append(Message& m, c10::ArrayRef<T> values) {
  const char* separator = "[";
  for (const T& value : values) {
    m.append(separator);
    append(m, value);
    separator = ", ";
  }
  m.append(values.empty() ? "[]" : "]");
}
#if defined(_GLIBCXX_STRING)
inline void append(Message& m, const std::string& value) { m.append(value.data(), value.size()); }
#endif
#if defined(_GLIBCXX_STRING_VIEW)
inline void append(Message& m, std::string_view value) { m.append(value.data(), value.size()); }
#endif
#if defined(_GLIBCXX_VECTOR)
template <class T>
void append(Message& m, const std::vector<T>& values) {
  const char* separator = "";
  for (const T& value : values) {
    m.append(separator);
    append(m, value);
    separator = " ";
  }
}
#endif
inline void append_all(Message&) {}
template <class T, class... Rest>
void append_all(Message& m, const T& value, const Rest&... rest) {
  append(m, value);
  append_all(m, rest...);
}

template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_check(ErrorKind kind, const char*, const Parts&... parts) {
  Message message;
  append_all(message, parts...);
  fail(kind, message.text());
}
/* The names of c10's error classes. */
namespace error_kinds {
constexpr ErrorKind Error = ErrorKind::runtime, IndexError = ErrorKind::index, ValueError = ErrorKind::value,
                    TypeError = ErrorKind::type, NotImplementedError = ErrorKind::not_implemented,
                    LinAlgError = ErrorKind::linear_algebra;
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_check(ErrorKind kind, const char* condition) {
  Message message;
  append_all(message, "Expected ", condition,
             " to be true, but got false.  (Could this error message be improved?  If so, please report an "
             "enhancement request to PyTorch.)");
  fail(kind, message.text());
}
template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_assert(const char* condition, const char* file, int line,
                                                              const Parts&... parts) {
  Message message;
  append_all(message, parts...);
  fail_internal(condition, file, line, message.text());
}
/* A failed TORCH_CHECK_EQ, whose message may be extended with <<. */
class Comparison {
 public:
  template <class A, class B>
  __attribute__((noinline, cold)) Comparison(const char* file, int line, const char* condition, const A& a, const B& b)
      : file_(file), line_(line) {
    append_all(message_, "Check failed: ", condition, " (", a, " vs. ", b, "). ");
  }
  ~Comparison() noexcept(false) { fail_comparison(file_, line_, message_.text()); }
  template <class T>
  Comparison& operator<<(const T& value) {
    append(message_, value);
    return *this;
  }

 private:
  const char* file_;
  int line_;
  Message message_;
};
template <class... Parts>
void warn_with(const char* file, int line, const Parts&... parts) {
  Message message;
  append_all(message, parts...);
  warn(file, line, message.text());
}
}  // namespace jitload_torch

/* As in torch, these need no semicolon. */
#define JITLOAD_TORCH_CHECK_(kind, condition, ...)                                                    \
  if (C10_UNLIKELY(!(condition))) {                                                                   \
    ::jitload_torch::fail_check(::jitload_torch::ErrorKind::kind, #condition, ##__VA_ARGS__);         \
  }
#define TORCH_CHECK(condition, ...) JITLOAD_TORCH_CHECK_(runtime, condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) JITLOAD_TORCH_CHECK_(index, condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) JITLOAD_TORCH_CHECK_(value, condition, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(condition, ...) JITLOAD_TORCH_CHECK_(type, condition, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) JITLOAD_TORCH_CHECK_(not_implemented, condition, ##__VA_ARGS__)
#define TORCH_CHECK_LINALG(condition, ...) JITLOAD_TORCH_CHECK_(linear_algebra, condition, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...)                                                         \
  if (C10_UNLIKELY(!(condition))) {                                                                   \
    ::jitload_torch::fail_assert(#condition, __FILE__, __LINE__, ##__VA_ARGS__);                      \
  }
#if defined(NDEBUG)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) \
  while (false) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#else
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#endif
#define TORCH_CHECK_WITH(type, condition, ...)                                                        \
  do {                                                                                                \
    if (C10_UNLIKELY(!(condition)))                                                                   \
      ::jitload_torch::fail_check(::jitload_torch::error_kinds::type, #condition, ##__VA_ARGS__);     \
  } while (false)
#define TORCH_CHECK_ARG(condition, number, ...) \
  TORCH_CHECK(condition, "invalid argument ", number, ": ", ##__VA_ARGS__)
#define TORCH_CHECK_IF_NOT_ON_CUDA(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_ASSERT(condition, ...) TORCH_INTERNAL_ASSERT(condition, ##__VA_ARGS__)
#define AT_ASSERTM(condition, ...) TORCH_INTERNAL_ASSERT(condition, ##__VA_ARGS__)
#define AT_ERROR(...) ::jitload_torch::fail_check(::jitload_torch::ErrorKind::runtime, "", ##__VA_ARGS__)
#define C10_THROW_ERROR(type, ...) ::jitload_torch::fail_check(::jitload_torch::error_kinds::type, "", __VA_ARGS__)
#define TORCH_WARN(...) ::jitload_torch::warn_with(__FILE__, __LINE__, ##__VA_ARGS__)
#define TORCH_WARN_ONCE(...)                                                                          \
  do {                                                                                                \
    static bool is_first = true;                                                                      \
    if (is_first) TORCH_WARN(__VA_ARGS__);                                                            \
    is_first = false;                                                                                 \
  } while (false)
#define JITLOAD_TORCH_COMPARE_(a, op, b)  \
  while (C10_UNLIKELY(!((a)op(b)))) ::jitload_torch::Comparison(__FILE__, __LINE__, #a " " #op " " #b, (a), (b))
#define TORCH_CHECK_EQ(a, b) JITLOAD_TORCH_COMPARE_(a, ==, b)
#define TORCH_CHECK_NE(a, b) JITLOAD_TORCH_COMPARE_(a, !=, b)
#define TORCH_CHECK_LT(a, b) JITLOAD_TORCH_COMPARE_(a, <, b)
#define TORCH_CHECK_LE(a, b) JITLOAD_TORCH_COMPARE_(a, <=, b)
#define TORCH_CHECK_GT(a, b) JITLOAD_TORCH_COMPARE_(a, >, b)
#define TORCH_CHECK_GE(a, b) JITLOAD_TORCH_COMPARE_(a, >=, b)
#if defined(NDEBUG)
#define JITLOAD_TORCH_DEBUG_COMPARE_(a, op, b) \
  while (false) JITLOAD_TORCH_COMPARE_(a, op, b)
#else
#define JITLOAD_TORCH_DEBUG_COMPARE_(a, op, b) JITLOAD_TORCH_COMPARE_(a, op, b)
#endif
#define TORCH_DCHECK_EQ(a, b) JITLOAD_TORCH_DEBUG_COMPARE_(a, ==, b)
#define TORCH_DCHECK_NE(a, b) JITLOAD_TORCH_DEBUG_COMPARE_(a, !=, b)
#define TORCH_DCHECK_LT(a, b) JITLOAD_TORCH_DEBUG_COMPARE_(a, <, b)
#define TORCH_DCHECK_LE(a, b) JITLOAD_TORCH_DEBUG_COMPARE_(a, <=, b)
#define TORCH_DCHECK_GT(a, b) JITLOAD_TORCH_DEBUG_COMPARE_(a, >, b)
#define TORCH_DCHECK_GE(a, b) JITLOAD_TORCH_DEBUG_COMPARE_(a, >=, b)

namespace c10 {
#if defined(__EXCEPTION_H)
/* The exception that failed checks and torch's operators throw. */
class Error : public std::exception {
 public:
  Error(jitload_torch::ErrorKind kind, const char* text);
  Error(const Error& other) noexcept;
  ~Error() override;
  const char* what() const noexcept override { return text_; }
  const char* what_without_backtrace() const noexcept { return text_; }
#if defined(_GLIBCXX_STRING)
  std::string msg() const { return text_; }
#endif

 protected:
  jitload_torch::ErrorKind kind_;

 private:
  char* text_;
};
#endif
#if defined(_GLIBCXX_STRING)
template <class... Parts>
std::string str(const Parts&... parts) {
  jitload_torch::Message message;
  jitload_torch::append_all(message, parts...);
  return std::string(message.text(), message.size());
}
inline std::string Device::str() const { return c10::str(*this); }
#endif
#if defined(_GLIBCXX_OSTREAM)
#define JITLOAD_TORCH_STREAM_(T)                                          \
  inline std::ostream& operator<<(std::ostream& stream, const T& value) { \
    jitload_torch::Message message;                                       \
    jitload_torch::append(message, value);                                \
    return stream << message.text();                                      \
  }
JITLOAD_TORCH_STREAM_(ScalarType)
JITLOAD_TORCH_STREAM_(TypeMeta)
JITLOAD_TORCH_STREAM_(DeviceType)
JITLOAD_TORCH_STREAM_(Device)
JITLOAD_TORCH_STREAM_(Layout)
JITLOAD_TORCH_STREAM_(Scalar)
JITLOAD_TORCH_STREAM_(IntArrayRef)
JITLOAD_TORCH_STREAM_(TensorOptions)
#undef JITLOAD_TORCH_STREAM_
#endif
}  // namespace c10
namespace torch {
#if defined(_GLIBCXX_STRING)
using c10::str;
#endif
}  // namespace torch

#endif  // JITLOAD_TORCH_CHECK_H_
