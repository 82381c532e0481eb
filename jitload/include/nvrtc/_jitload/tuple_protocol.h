// std::tuple_size and std::tuple_element, which structured bindings ask. CCCL before 3.1 declares them as variadic
// templates under NVRTC, later ones not at all; a source that has both needs the same declaration in both.
#ifndef JITLOAD_NVRTC_TUPLE_PROTOCOL_H
#define JITLOAD_NVRTC_TUPLE_PROTOCOL_H
#include "config.h"

namespace std {
#if __has_include(<cuda/std/__tuple_dir/structured_bindings.h>)
template <class... T> struct tuple_size;
template <size_t i, class... T> struct tuple_element;
#else
template <class T> struct tuple_size;
template <size_t i, class T> struct tuple_element;
#endif

#define _JITLOAD_TUPLE_CV(cv) \
  template <class T> struct tuple_size<cv T> { static constexpr size_t value = tuple_size<T>::value; }; \
  template <size_t i, class T> struct tuple_element<i, cv T> { typedef cv typename tuple_element<i, T>::type type; };
_JITLOAD_TUPLE_CV(const)
_JITLOAD_TUPLE_CV(volatile)
_JITLOAD_TUPLE_CV(const volatile)
#undef _JITLOAD_TUPLE_CV
template <size_t i, class T> using tuple_element_t = typename tuple_element<i, T>::type;

// Declared here for pair, which can be made from two tuples.
template <class... T> class tuple;
template <size_t i, class... T> _JITLOAD_HD constexpr tuple_element_t<i, tuple<T...>>& get(tuple<T...>& t) noexcept;
#if __cplusplus >= 201703L
template <class T> inline constexpr size_t tuple_size_v = tuple_size<T>::value;
#endif
}  // namespace std
#endif
