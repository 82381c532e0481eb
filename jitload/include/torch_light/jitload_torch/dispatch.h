/* AT_DISPATCH_…: a switch over the dtype, with `scalar_t` in each case. */
#ifndef JITLOAD_TORCH_DISPATCH_H_
#define JITLOAD_TORCH_DISPATCH_H_

#include "parallel.h"
#include "tensor.h"

namespace jitload_torch {
[[noreturn]] inline void fail_dispatch(const char* name, c10::ScalarType type) {
  Message message;
  append_all(message, '"', name, "\" not implemented for '", type, "'");
  fail(ErrorKind::not_implemented, message.text());
}
}  // namespace jitload_torch

#define AT_DISPATCH_CASE(type_, ...)                                       \
  case type_: {                                                            \
    using scalar_t [[maybe_unused]] = ::c10::ScalarTypeToCPPTypeT<type_>;  \
    return __VA_ARGS__();                                                  \
  }
#define AT_PRIVATE_CASE_TYPE_USING_HINT(type_, hint, ...)              \
  case type_: {                                                        \
    using hint [[maybe_unused]] = ::c10::ScalarTypeToCPPTypeT<type_>;  \
    return __VA_ARGS__();                                              \
  }
#define AT_DISPATCH_SWITCH(type_, name_, ...)                    \
  [&] {                                                          \
    const ::c10::ScalarType dispatched_type_ = (type_);          \
    switch (dispatched_type_) {                                  \
      __VA_ARGS__                                                \
      default:                                                   \
        ::jitload_torch::fail_dispatch(name_, dispatched_type_); \
    }                                                            \
  }()

#define AT_DISPATCH_CASE_ALL_TYPES(...) \
  AT_DISPATCH_CASE(::c10::ScalarType::Byte, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Char, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Int, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Long, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Short, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Double, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES(type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(::c10::ScalarType::Double, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...) \
  AT_DISPATCH_CASE(::c10::ScalarType::Byte, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Char, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Int, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Long, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Short, __VA_ARGS__)
#define AT_DISPATCH_INTEGRAL_TYPES(type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::BFloat16, __VA_ARGS__)
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_CASE_ALL_TYPES_AND(t1_, ...) \
  AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND(t1_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_ALL_TYPES_AND(t1_, __VA_ARGS__))
#define AT_DISPATCH_CASE_ALL_TYPES_AND2(t1_, t2_, ...) \
  AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND2(t1_, t2_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_ALL_TYPES_AND2(t1_, t2_, __VA_ARGS__))
#define AT_DISPATCH_CASE_ALL_TYPES_AND3(t1_, t2_, t3_, ...) \
  AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__) AT_DISPATCH_CASE(t3_, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND3(t1_, t2_, t3_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_ALL_TYPES_AND3(t1_, t2_, t3_, __VA_ARGS__))
#define AT_DISPATCH_CASE_ALL_TYPES_AND4(t1_, t2_, t3_, t4_, ...) \
  AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__) AT_DISPATCH_CASE(t3_, __VA_ARGS__) AT_DISPATCH_CASE(t4_, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND4(t1_, t2_, t3_, t4_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_ALL_TYPES_AND4(t1_, t2_, t3_, t4_, __VA_ARGS__))
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND(t1_, ...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND(t1_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_FLOATING_TYPES_AND(t1_, __VA_ARGS__))
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND2(t1_, t2_, ...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND2(t1_, t2_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_FLOATING_TYPES_AND2(t1_, t2_, __VA_ARGS__))
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND3(t1_, t2_, t3_, ...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__) AT_DISPATCH_CASE(t3_, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND3(t1_, t2_, t3_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_FLOATING_TYPES_AND3(t1_, t2_, t3_, __VA_ARGS__))
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND4(t1_, t2_, t3_, t4_, ...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__) AT_DISPATCH_CASE(t3_, __VA_ARGS__) AT_DISPATCH_CASE(t4_, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND4(t1_, t2_, t3_, t4_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_FLOATING_TYPES_AND4(t1_, t2_, t3_, t4_, __VA_ARGS__))
#define AT_DISPATCH_CASE_INTEGRAL_TYPES_AND(t1_, ...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__)
#define AT_DISPATCH_INTEGRAL_TYPES_AND(t1_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_INTEGRAL_TYPES_AND(t1_, __VA_ARGS__))
#define AT_DISPATCH_CASE_INTEGRAL_TYPES_AND2(t1_, t2_, ...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__)
#define AT_DISPATCH_INTEGRAL_TYPES_AND2(t1_, t2_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_INTEGRAL_TYPES_AND2(t1_, t2_, __VA_ARGS__))
#define AT_DISPATCH_CASE_INTEGRAL_TYPES_AND3(t1_, t2_, t3_, ...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__) AT_DISPATCH_CASE(t3_, __VA_ARGS__)
#define AT_DISPATCH_INTEGRAL_TYPES_AND3(t1_, t2_, t3_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_INTEGRAL_TYPES_AND3(t1_, t2_, t3_, __VA_ARGS__))
#define AT_DISPATCH_CASE_INTEGRAL_TYPES_AND4(t1_, t2_, t3_, t4_, ...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(t1_, __VA_ARGS__) AT_DISPATCH_CASE(t2_, __VA_ARGS__) AT_DISPATCH_CASE(t3_, __VA_ARGS__) AT_DISPATCH_CASE(t4_, __VA_ARGS__)
#define AT_DISPATCH_INTEGRAL_TYPES_AND4(t1_, t2_, t3_, t4_, type_, name_, ...) \
  AT_DISPATCH_SWITCH(type_, name_, AT_DISPATCH_CASE_INTEGRAL_TYPES_AND4(t1_, t2_, t3_, t4_, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type_, name_, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND(::c10::ScalarType::Half, type_, name_, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_HALF(type_, name_, ...) \
  AT_DISPATCH_ALL_TYPES_AND(::c10::ScalarType::Half, type_, name_, __VA_ARGS__)
#define AT_DISPATCH_INDEX_TYPES(type_, name_, ...)                                                           \
  AT_DISPATCH_SWITCH(type_, name_,                                                                           \
                     AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Int, index_t, __VA_ARGS__)           \
                         AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Long, index_t, __VA_ARGS__))

#endif  // JITLOAD_TORCH_DISPATCH_H_
