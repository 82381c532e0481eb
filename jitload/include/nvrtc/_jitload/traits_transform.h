// Third part of <type_traits>: types made from types.
#ifndef JITLOAD_NVRTC_TRAITS_TRANSFORM_H
#define JITLOAD_NVRTC_TRAITS_TRANSFORM_H
#include "traits_basic.h"

namespace std {
template <class T> struct add_const { typedef const T type; };
template <class T> struct add_volatile { typedef volatile T type; };
template <class T> struct add_cv { typedef const volatile T type; };
template <class T> struct remove_extent { typedef T type; };
template <class T> struct remove_extent<T[]> { typedef T type; };
template <class T, size_t n> struct remove_extent<T[n]> { typedef T type; };
template <class T> struct remove_all_extents { typedef T type; };
template <class T> struct remove_all_extents<T[]> : remove_all_extents<T> {};
template <class T, size_t n> struct remove_all_extents<T[n]> : remove_all_extents<T> {};
template <class T> struct __remove_pointer { typedef T type; };
template <class T> struct __remove_pointer<T*> { typedef T type; };
template <class T> struct remove_pointer
    : conditional<is_pointer<T>::value, __remove_pointer<typename remove_cv<T>::type>, __identity<T>>::type {};
template <class T, class = void> struct __add_pointer { typedef T type; };
template <class T> struct __add_pointer<T, typename __void<typename remove_reference<T>::type*>::type> {
  typedef typename remove_reference<T>::type* type;
};
template <class T> struct add_pointer : __add_pointer<T> {};

template <class T, bool = __is_enum(T)> struct __underlying { typedef __underlying_type(T) type; };
template <class T> struct __underlying<T, false> {};
template <class T> struct underlying_type : __underlying<T> {};

template <class T, bool is_array_type = is_array<T>::value, bool is_function_type = is_function<T>::value>
struct __decay { typedef typename remove_cv<T>::type type; };
template <class T> struct __decay<T, true, false> { typedef typename remove_extent<T>::type* type; };
template <class T> struct __decay<T, false, true> { typedef typename add_pointer<T>::type type; };
template <class T> struct decay { typedef typename __decay<typename remove_reference<T>::type>::type type; };

// To's value with From's const and volatile.
template <class From, class To> struct __copy_cv { typedef To type; };
template <class From, class To> struct __copy_cv<const From, To> { typedef const To type; };
template <class From, class To> struct __copy_cv<volatile From, To> { typedef volatile To type; };
template <class From, class To> struct __copy_cv<const volatile From, To> { typedef const volatile To type; };

template <size_t bytes> struct __integer_of_size {};
template <> struct __integer_of_size<1> { typedef signed char s; typedef unsigned char u; };
template <> struct __integer_of_size<2> { typedef short s; typedef unsigned short u; };
template <> struct __integer_of_size<4> { typedef int s; typedef unsigned int u; };
template <> struct __integer_of_size<8> { typedef long s; typedef unsigned long u; };
// Enumerations and character types go by their size; the integers proper keep their rank.
template <class T> struct __integer_pair : __integer_of_size<sizeof(T)> {};
template <> struct __integer_pair<bool> {};
#define _JITLOAD_PAIR(S, U) \
  template <> struct __integer_pair<S> { typedef S s; typedef U u; }; \
  template <> struct __integer_pair<U> { typedef S s; typedef U u; };
_JITLOAD_PAIR(signed char, unsigned char)
_JITLOAD_PAIR(short, unsigned short)
_JITLOAD_PAIR(int, unsigned int)
_JITLOAD_PAIR(long, unsigned long)
_JITLOAD_PAIR(long long, unsigned long long)
#ifdef __CUDACC_RTC_INT128__
_JITLOAD_PAIR(__int128, unsigned __int128)
#endif
#undef _JITLOAD_PAIR
template <class T> struct make_signed {
  static_assert(is_integral<T>::value || is_enum<T>::value, "make_signed needs an integer or an enumeration");
  typedef typename __copy_cv<T, typename __integer_pair<typename remove_cv<T>::type>::s>::type type;
};
template <class T> struct make_unsigned {
  static_assert(is_integral<T>::value || is_enum<T>::value, "make_unsigned needs an integer or an enumeration");
  typedef typename __copy_cv<T, typename __integer_pair<typename remove_cv<T>::type>::u>::type type;
};

template <class A, class B> using __ternary = decltype(false ? declval<A>() : declval<B>());
template <class A, class B, class = void> struct __common_pair {};
template <class A, class B> struct __common_pair<A, B, typename __void<__ternary<A, B>>::type> {
  typedef typename decay<__ternary<A, B>>::type type;
};
template <class...> struct common_type {};
template <class A, class B, class X = typename decay<A>::type, class Y = typename decay<B>::type>
struct __common_decayed : common_type<X, Y> {};
template <class A, class B> struct __common_decayed<A, B, A, B> : __common_pair<A, B> {};
template <class Void, class... T> struct __common_fold {};
template <class A, class B, class... Rest>
struct __common_fold<typename __void<typename common_type<A, B>::type>::type, A, B, Rest...>
    : common_type<typename common_type<A, B>::type, Rest...> {};
template <class T> struct common_type<T> : common_type<T, T> {};
template <class A, class B> struct common_type<A, B> : __common_decayed<A, B> {};
template <class A, class B, class C, class... Rest>
struct common_type<A, B, C, Rest...> : __common_fold<void, A, B, C, Rest...> {};

template <size_t n> struct __alignment_for {
  static constexpr size_t value = n >= 16 ? 16 : n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
};
template <size_t n, size_t align = __alignment_for<n>::value> struct aligned_storage {
  struct type { alignas(align) unsigned char __data[n]; };
};
template <size_t a, size_t... rest> struct __greatest { static constexpr size_t value = a; };
template <size_t a, size_t b, size_t... rest>
struct __greatest<a, b, rest...> : __greatest<(a > b ? a : b), rest...> {};
template <size_t n, class... T> struct aligned_union {
  static constexpr size_t alignment_value = __greatest<alignof(T)...>::value;
  typedef typename aligned_storage<__greatest<n, sizeof(T)...>::value, alignment_value>::type type;
};

#if __cplusplus >= 201402L
template <bool v, class T = void> using enable_if_t = typename enable_if<v, T>::type;
template <bool v, class A, class B> using conditional_t = typename conditional<v, A, B>::type;
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> using add_const_t = typename add_const<T>::type;
template <class T> using add_volatile_t = typename add_volatile<T>::type;
template <class T> using add_cv_t = typename add_cv<T>::type;
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using add_lvalue_reference_t = typename add_lvalue_reference<T>::type;
template <class T> using add_rvalue_reference_t = typename add_rvalue_reference<T>::type;
template <class T> using make_signed_t = typename make_signed<T>::type;
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> using remove_extent_t = typename remove_extent<T>::type;
template <class T> using remove_all_extents_t = typename remove_all_extents<T>::type;
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using add_pointer_t = typename add_pointer<T>::type;
template <size_t n, size_t align = __alignment_for<n>::value>
using aligned_storage_t = typename aligned_storage<n, align>::type;
template <size_t n, class... T> using aligned_union_t = typename aligned_union<n, T...>::type;
template <class T> using decay_t = typename decay<T>::type;
template <class... T> using common_type_t = typename common_type<T...>::type;
template <class T> using underlying_type_t = typename underlying_type<T>::type;
#endif
#if __cplusplus >= 201703L
template <class... T> using void_t = typename __void<T...>::type;
#endif
#if __cplusplus >= 202002L
template <class T> struct remove_cvref { typedef remove_cv_t<remove_reference_t<T>> type; };
template <class T> using remove_cvref_t = typename remove_cvref<T>::type;
template <class T> struct type_identity { typedef T type; };
template <class T> using type_identity_t = T;
#endif
#if __cplusplus >= 202302L
template <class T, bool = __is_enum(T)> struct is_scoped_enum : false_type {};
template <class T> struct is_scoped_enum<T, true> : __bool<!__is_convertible<T, underlying_type_t<T>>::value> {};
#endif
}  // namespace std
#endif
