// Second part of <type_traits>: properties of types and relations between them, mostly asked of the compiler.
#ifndef JITLOAD_NVRTC_TRAITS_QUERY_H
#define JITLOAD_NVRTC_TRAITS_QUERY_H
#include "traits_basic.h"

namespace std {
template <class T> struct is_trivial : __bool<__is_trivial(T)> {};
template <class T> struct is_trivially_copyable : __bool<__is_trivially_copyable(T)> {};
template <class T> struct is_standard_layout : __bool<__is_standard_layout(T)> {};
template <class T> struct is_pod : __bool<__is_pod(T)> {};
#if __cplusplus < 202002L
template <class T> struct is_literal_type : __bool<__is_literal_type(T)> {};
#endif
template <class T> struct is_empty : __bool<__is_empty(T)> {};
template <class T> struct is_polymorphic : __bool<__is_polymorphic(T)> {};
template <class T> struct is_abstract : __bool<__is_abstract(T)> {};
template <class T> struct has_virtual_destructor : __bool<__has_virtual_destructor(T)> {};
#if __cplusplus >= 201402L
template <class T> struct is_final : __bool<__is_final(T)> {};
#endif
#if __cplusplus >= 201703L
template <class T> struct is_aggregate : __bool<__is_aggregate(typename remove_cv<T>::type)> {};
template <class T> struct has_unique_object_representations : __bool<__has_unique_object_representations(T)> {};
#endif

template <class T, class... A> struct is_constructible : __bool<__is_constructible(T, A...)> {};
template <class T, class... A> struct is_trivially_constructible : __bool<__is_trivially_constructible(T, A...)> {};
template <class T, class... A> struct is_nothrow_constructible : __bool<__is_nothrow_constructible(T, A...)> {};
template <class T> struct __const_lvalue { typedef typename add_lvalue_reference<const T>::type type; };
#define _JITLOAD_CONSTRUCTIBLE(kind, how) \
  template <class T> struct is_##how##default_constructible : is_##how##constructible<T> {}; \
  template <class T> struct is_##how##copy_constructible \
      : is_##how##constructible<T, typename __const_lvalue<T>::type> {}; \
  template <class T> struct is_##how##move_constructible \
      : is_##how##constructible<T, typename add_rvalue_reference<T>::type> {}; \
  template <class A, class B> struct is_##how##assignable : __bool<__is_##how##assignable(A, B)> {}; \
  template <class T> struct is_##how##copy_assignable \
      : is_##how##assignable<typename add_lvalue_reference<T>::type, typename __const_lvalue<T>::type> {}; \
  template <class T> struct is_##how##move_assignable \
      : is_##how##assignable<typename add_lvalue_reference<T>::type, typename add_rvalue_reference<T>::type> {}; \
  template <class T> struct is_##how##destructible : __bool<__is_##how##destructible(T)> {};
_JITLOAD_CONSTRUCTIBLE(, )
_JITLOAD_CONSTRUCTIBLE(, trivially_)
_JITLOAD_CONSTRUCTIBLE(, nothrow_)
#undef _JITLOAD_CONSTRUCTIBLE

template <class A, class B> struct is_base_of : __bool<__is_base_of(A, B)> {};

template <class From, class To, bool = is_void<From>::value || is_function<To>::value || is_array<To>::value>
struct __is_convertible : is_void<To> { static constexpr bool nothrow = is_void<To>::value; };
template <class From, class To> struct __is_convertible<From, To, false> {
  template <class T> _JITLOAD_HD static void take(T) noexcept;
  template <class F, class T, class = decltype(take<T>(declval<F>()))>
  _JITLOAD_HD static __bool<noexcept(take<T>(declval<F>()))> test(int);
  template <class, class> _JITLOAD_HD static void test(...);
  typedef decltype(test<From, To>(0)) result;
  static constexpr bool value = !is_void<result>::value;
  static constexpr bool nothrow = is_same<result, true_type>::value;
};
template <class From, class To> struct is_convertible : __bool<__is_convertible<From, To>::value> {};
#if __cplusplus >= 202002L
template <class From, class To> struct is_nothrow_convertible : __bool<__is_convertible<From, To>::nothrow> {};
#endif

template <class T> struct alignment_of : integral_constant<size_t, alignof(T)> {};
template <class T> struct rank : integral_constant<size_t, 0> {};
template <class T> struct rank<T[]> : integral_constant<size_t, rank<T>::value + 1> {};
template <class T, size_t n> struct rank<T[n]> : integral_constant<size_t, rank<T>::value + 1> {};
template <class T, unsigned i = 0> struct extent : integral_constant<size_t, 0> {};
template <class T> struct extent<T[], 0> : integral_constant<size_t, 0> {};
template <class T, unsigned i> struct extent<T[], i> : extent<T, i - 1> {};
template <class T, size_t n> struct extent<T[n], 0> : integral_constant<size_t, n> {};
template <class T, size_t n, unsigned i> struct extent<T[n], i> : extent<T, i - 1> {};

#if __cplusplus >= 202002L
template <class T> struct is_bounded_array : false_type {};
template <class T, size_t n> struct is_bounded_array<T[n]> : true_type {};
template <class T> struct is_unbounded_array : false_type {};
template <class T> struct is_unbounded_array<T[]> : true_type {};
_JITLOAD_HD constexpr bool is_constant_evaluated() noexcept { return __builtin_is_constant_evaluated(); }
#endif

// std::swap is part of <utility>, but these traits must know its constraints, and an array is as its elements are.
template <class A, class B> struct __can_swap;
template <class T>
_JITLOAD_HD _JITLOAD_CONSTEXPR14
    typename enable_if<is_move_constructible<T>::value && is_move_assignable<T>::value>::type
    swap(T& a, T& b) noexcept(is_nothrow_move_constructible<T>::value && is_nothrow_move_assignable<T>::value);
template <class T, size_t n>
_JITLOAD_HD _JITLOAD_CONSTEXPR14 typename enable_if<__can_swap<T&, T&>::value>::type
    swap(T (&a)[n], T (&b)[n]) noexcept(__can_swap<T&, T&>::nothrow);
template <class A, class B> struct __can_swap {
  template <class X, class Y, class = decltype(swap(declval<X>(), declval<Y>()))>
  _JITLOAD_HD static __bool<noexcept(swap(declval<X>(), declval<Y>()))> test(int);
  template <class, class> _JITLOAD_HD static void test(...);
  typedef decltype(test<A, B>(0)) result;
  static constexpr bool value = !is_void<result>::value;
  static constexpr bool nothrow = is_same<result, true_type>::value;
};
#if __cplusplus >= 201703L
template <class A, class B> struct is_swappable_with
    : __bool<__can_swap<A, B>::value && __can_swap<B, A>::value> {};
template <class A, class B> struct is_nothrow_swappable_with
    : __bool<__can_swap<A, B>::nothrow && __can_swap<B, A>::nothrow> {};
template <class T, class = void> struct is_swappable : false_type {};
template <class T> struct is_swappable<T, typename __void<T&>::type> : is_swappable_with<T&, T&> {};
template <class T, class = void> struct is_nothrow_swappable : false_type {};
template <class T> struct is_nothrow_swappable<T, typename __void<T&>::type> : is_nothrow_swappable_with<T&, T&> {};
#endif
}  // namespace std
#endif
