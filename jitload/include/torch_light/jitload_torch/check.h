/* TORCH_CHECK and similar macros, and the messages that they put together. */
#pragma once

#include "core.h"

namespace jitload_torch {

inline void append(Message& m, const char* value) { m.append(value); }
template <class R, class... A> void append(Message&, R (*)(A...)) = delete; /* such as std::hex, which is no bool */
#define X(T, function) \
  inline void append(Message& m, T value) { m.function(value); }
X(bool, append_integer) X(short, append_integer) X(int, append_integer) X(long, append_integer) X(long long, append_integer)
X(unsigned short, append_unsigned) X(unsigned, append_unsigned) X(unsigned long, append_unsigned)
X(unsigned long long, append_unsigned) X(float, append_float) X(double, append_float) X(c10::Half, append_float)
X(c10::BFloat16, append_float) X(const void*, append_pointer) X(char, append_character) X(signed char, append_character)
X(unsigned char, append_character)
#undef X
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
template <class T>
void append_items(Message& m, c10::ArrayRef<T> values, const char* separator) {
  const char* before = "";
  for (const T& value : values) {
    m.append(before);
    append(m, value);
    before = separator;
  }
}
template <class T>
void append(Message& m, c10::ArrayRef<T> values) {
  m.append("[");
  append_items(m, values, ", ");
  m.append("]");
}
#if defined(_GLIBCXX_STRING)
inline void append(Message& m, const std::string& value) { m.append(value.data(), value.size()); }
#endif
#if defined(_GLIBCXX_STRING_VIEW)
inline void append(Message& m, std::string_view value) { m.append(value.data(), value.size()); }
#endif
#if defined(_GLIBCXX_VECTOR)
template <class T>
void append(Message& m, const std::vector<T>& values) { append_items(m, c10::ArrayRef<T>(values), " "); }
#endif
template <class... Parts>
void append_all(Message& m, const Parts&... parts) { (append(m, parts), ...); }
struct Text : Message {
  template <class... Parts>
  explicit Text(const Parts&... parts) { append_all(*this, parts...); }
};

template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_check(ErrorKind kind, const char*, const Parts&... parts) {
  fail(kind, Text(parts...).text());
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_check(ErrorKind kind, const char* condition) {
  fail_check(kind, condition, "Expected ", condition,
             " to be true, but got false.  (Could this error message be improved?  If so, please report an "
             "enhancement request to PyTorch.)");
}
template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_assert(const char* condition, const char* file, int line,
                                                              const Parts&... parts) {
  fail(ErrorKind::Error, Text(condition, " INTERNAL ASSERT FAILED at \"", file, "\":", line,
                                ", please report a bug to PyTorch. ", parts...).text());
}
template <class... Parts>
void warn_with(const char* file, int line, const Parts&... parts) { warn(file, line, Text(parts...).text()); }
}  // namespace jitload_torch

/* As in torch, these need no semicolon. */
#define TORCH_CHECK_WITH(type, condition, ...)                                                        \
  if (C10_UNLIKELY(!(condition))) {                                                                   \
    ::jitload_torch::fail_check(::jitload_torch::ErrorKind::type, #condition, ##__VA_ARGS__);       \
  }
#define TORCH_CHECK(condition, ...) TORCH_CHECK_WITH(Error, condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) TORCH_CHECK_WITH(IndexError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) TORCH_CHECK_WITH(ValueError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(condition, ...) TORCH_CHECK_WITH(TypeError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) TORCH_CHECK_WITH(NotImplementedError, condition, ##__VA_ARGS__)
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
#define AT_ASSERT(condition, ...) TORCH_INTERNAL_ASSERT(condition, ##__VA_ARGS__)
#define AT_ASSERTM(condition, ...) TORCH_INTERNAL_ASSERT(condition, ##__VA_ARGS__)
#define AT_ERROR(...) ::jitload_torch::fail_check(::jitload_torch::ErrorKind::Error, "", ##__VA_ARGS__)
#define C10_THROW_ERROR(type, ...) ::jitload_torch::fail_check(::jitload_torch::ErrorKind::type, "", __VA_ARGS__)
#define TORCH_WARN(...) ::jitload_torch::warn_with(__FILE__, __LINE__, ##__VA_ARGS__)
#define TORCH_WARN_ONCE(...)                                                                          \
  do {                                                                                                \
    static bool jitload_is_first_ = true;                                                             \
    if (jitload_is_first_) TORCH_WARN(__VA_ARGS__);                                                   \
    jitload_is_first_ = false;                                                                        \
  } while (false)

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
  jitload_torch::ErrorKind kind() const { return kind_; }
#if defined(_GLIBCXX_STRING)
  std::string msg() const { return text_; }
#endif

 private:
  jitload_torch::ErrorKind kind_;
  char* text_;
};
#endif
#if defined(_GLIBCXX_STRING)
template <class... Parts>
std::string str(const Parts&... parts) {
  const jitload_torch::Text text(parts...);
  return std::string(text.text(), text.size());
}
inline std::string Device::str() const { return c10::str(*this); }
#endif
#if defined(_GLIBCXX_OSTREAM)
#define X(T)                                                              \
  inline std::ostream& operator<<(std::ostream& stream, const T& value) { \
    return stream << jitload_torch::Text(value).text();                   \
  }
X(ScalarType) X(TypeMeta) X(DeviceType) X(Device) X(Layout) X(Scalar) X(IntArrayRef) X(MemoryFormat)
#undef X
#define X(T) \
  inline std::ostream& operator<<(std::ostream& stream, T value) { return stream << static_cast<float>(value); }
X(Half) X(BFloat16)
#undef X
#endif
}  // namespace c10
