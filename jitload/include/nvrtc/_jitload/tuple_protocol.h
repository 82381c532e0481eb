// std::tuple_size and std::tuple_element, which structured bindings ask. A source that has CCCL too needs in both what
// CCCL declares under NVRTC: before 3.2 variadic templates; from 3.2 on plain ones, with the forms for const T, so that
// ours are then for our own types only.
#ifndef JITLOAD_NVRTC_TUPLE_PROTOCOL_H
#define JITLOAD_NVRTC_TUPLE_PROTOCOL_H
#include "config.h"

#if __has_include(<cuda/std/__cccl/version.h>)
#include <cuda/std/__cccl/version.h>
#endif

namespace std {
#if defined(CCCL_VERSION) && CCCL_VERSION < 3002000
template <class... T> struct tuple_size;
template <size_t i, class... T> struct tuple_element;
#else
template <class T> struct tuple_size;
template <size_t i, class T> struct tuple_element;
#endif

#if defined(CCCL_VERSION) && CCCL_VERSION >= 3002000
#define _JITLOAD_TUPLE_CONST(parameters, ...) \
  template <_JITLOAD_UNPAREN parameters> struct tuple_size<const __VA_ARGS__> : tuple_size<__VA_ARGS__> {}; \
  template <size_t i, _JITLOAD_UNPAREN parameters> struct tuple_element<i, const __VA_ARGS__> { \
    typedef const typename tuple_element<i, __VA_ARGS__>::type type; \
  };
#define _JITLOAD_UNPAREN(...) __VA_ARGS__
#else
#define _JITLOAD_TUPLE_CONST(parameters, ...)
template <class T> struct tuple_size<const T> { static constexpr size_t value = tuple_size<T>::value; };
template <size_t i, class T> struct tuple_element<i, const T> {
  typedef const typename tuple_element<i, T>::type type;
};
#endif
template <size_t i, class T> using tuple_element_t = typename tuple_element<i, T>::type;

// Declared here for pair, which can be made from two tuples.
template <class... T> class tuple;
template <size_t i, class... T> _JITLOAD_HD constexpr tuple_element_t<i, tuple<T...>>& get(tuple<T...>& t) noexcept;
#if __cplusplus >= 201703L
template <class T> inline constexpr size_t tuple_size_v = tuple_size<T>::value;
#endif
}  // namespace std
#endif
