// First part of <type_traits>: constants, logic, and the traits that say what kind of type a type is.
#ifndef JITLOAD_NVRTC_TRAITS_BASIC_H
#define JITLOAD_NVRTC_TRAITS_BASIC_H
#include "config.h"

namespace std {
template <class T, T v> struct integral_constant {
  static constexpr T value = v;
  typedef T value_type;
  typedef integral_constant type;
  _JITLOAD_HD constexpr operator value_type() const noexcept { return v; }
  _JITLOAD_HD constexpr value_type operator()() const noexcept { return v; }
};
#if __cplusplus < 201703L
template <class T, T v> constexpr T integral_constant<T, v>::value;
#endif
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <bool v> using __bool = integral_constant<bool, v>;
#if __cplusplus >= 201703L
template <bool v> using bool_constant = integral_constant<bool, v>;
#endif

template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <class...> struct __void { typedef void type; };
template <class T> struct __identity { typedef T type; };

template <class...> struct __and : true_type {};
template <class T> struct __and<T> : T {};
template <class T, class... Rest> struct __and<T, Rest...> : conditional<bool(T::value), __and<Rest...>, T>::type {};
template <class...> struct __or : false_type {};
template <class T> struct __or<T> : T {};
template <class T, class... Rest> struct __or<T, Rest...> : conditional<bool(T::value), T, __or<Rest...>>::type {};
#if __cplusplus >= 201703L
template <class... T> struct conjunction : __and<T...> {};
template <class... T> struct disjunction : __or<T...> {};
template <class T> struct negation : __bool<!bool(T::value)> {};
#endif

template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_cv { typedef T type; };
template <class T> struct remove_cv<const T> { typedef T type; };
template <class T> struct remove_cv<volatile T> { typedef T type; };
template <class T> struct remove_cv<const volatile T> { typedef T type; };
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };

template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};

template <class T> struct is_const : false_type {};
template <class T> struct is_const<const T> : true_type {};
template <class T> struct is_volatile : false_type {};
template <class T> struct is_volatile<volatile T> : true_type {};
template <class T> struct is_void : is_same<void, typename remove_cv<T>::type> {};
template <class T> struct is_null_pointer : is_same<decltype(nullptr), typename remove_cv<T>::type> {};

template <class T> struct __is_integral : false_type {};
template <class T> struct __is_floating : false_type {};
#define _JITLOAD_IS(trait, T) template <> struct trait<T> : true_type {};
_JITLOAD_IS(__is_integral, bool)
_JITLOAD_IS(__is_integral, char)
_JITLOAD_IS(__is_integral, signed char)
_JITLOAD_IS(__is_integral, unsigned char)
_JITLOAD_IS(__is_integral, wchar_t)
_JITLOAD_IS(__is_integral, char16_t)
_JITLOAD_IS(__is_integral, char32_t)
#ifdef __cpp_char8_t
_JITLOAD_IS(__is_integral, char8_t)
#endif
_JITLOAD_IS(__is_integral, short)
_JITLOAD_IS(__is_integral, unsigned short)
_JITLOAD_IS(__is_integral, int)
_JITLOAD_IS(__is_integral, unsigned int)
_JITLOAD_IS(__is_integral, long)
_JITLOAD_IS(__is_integral, unsigned long)
_JITLOAD_IS(__is_integral, long long)
_JITLOAD_IS(__is_integral, unsigned long long)
#ifdef __CUDACC_RTC_INT128__
_JITLOAD_IS(__is_integral, __int128)
_JITLOAD_IS(__is_integral, unsigned __int128)
#endif
_JITLOAD_IS(__is_floating, float)
_JITLOAD_IS(__is_floating, double)
_JITLOAD_IS(__is_floating, long double)
#undef _JITLOAD_IS
template <class T> struct is_integral : __bool<__is_integral<typename remove_cv<T>::type>::value> {};
template <class T> struct is_floating_point : __bool<__is_floating<typename remove_cv<T>::type>::value> {};
template <class T> struct is_arithmetic : __or<is_integral<T>, is_floating_point<T>> {};

template <class T> struct is_array : false_type {};
template <class T> struct is_array<T[]> : true_type {};
template <class T, size_t n> struct is_array<T[n]> : true_type {};
template <class T> struct __is_pointer : false_type {};
template <class T> struct __is_pointer<T*> : true_type {};
template <class T> struct is_pointer : __is_pointer<typename remove_cv<T>::type> {};
template <class T> struct is_lvalue_reference : false_type {};
template <class T> struct is_lvalue_reference<T&> : true_type {};
template <class T> struct is_rvalue_reference : false_type {};
template <class T> struct is_rvalue_reference<T&&> : true_type {};
template <class T> struct is_reference : __or<is_lvalue_reference<T>, is_rvalue_reference<T>> {};
template <class T> struct is_enum : __bool<__is_enum(T)> {};
template <class T> struct is_union : __bool<__is_union(T)> {};
template <class T> struct is_class : __bool<__is_class(T)> {};
// Only functions and references take no const.
template <class T> struct is_function : __bool<!is_const<const T>::value && !is_reference<T>::value> {};

template <class T> struct __is_member_pointer : false_type {};
template <class T, class C> struct __is_member_pointer<T C::*> : true_type {};
template <class T> struct __is_member_function : false_type {};
template <class T, class C> struct __is_member_function<T C::*> : is_function<T> {};
template <class T> struct is_member_pointer : __is_member_pointer<typename remove_cv<T>::type> {};
template <class T> struct is_member_function_pointer : __is_member_function<typename remove_cv<T>::type> {};
template <class T>
struct is_member_object_pointer : __bool<is_member_pointer<T>::value && !is_member_function_pointer<T>::value> {};

template <class T> struct is_fundamental : __or<is_arithmetic<T>, is_void<T>, is_null_pointer<T>> {};
template <class T> struct is_compound : __bool<!is_fundamental<T>::value> {};
template <class T>
struct is_scalar : __or<is_arithmetic<T>, is_enum<T>, is_pointer<T>, is_member_pointer<T>, is_null_pointer<T>> {};
template <class T>
struct is_object : __bool<!is_function<T>::value && !is_reference<T>::value && !is_void<T>::value> {};

template <class T, bool = is_arithmetic<T>::value> struct __is_signed : false_type {};
template <class T> struct __is_signed<T, true> : __bool<(T(-1) < T(0))> {};
template <class T> struct is_signed : __bool<__is_signed<typename remove_cv<T>::type>::value> {};
template <class T> struct is_unsigned : __bool<is_arithmetic<T>::value && !is_signed<T>::value> {};

// T& and T&& where such a reference exists, otherwise T.
template <class T, class = void> struct __add_reference { typedef T lvalue; typedef T rvalue; };
template <class T> struct __add_reference<T, typename __void<T&>::type> { typedef T& lvalue; typedef T&& rvalue; };
template <class T> struct add_lvalue_reference { typedef typename __add_reference<T>::lvalue type; };
template <class T> struct add_rvalue_reference { typedef typename __add_reference<T>::rvalue type; };
template <class T> _JITLOAD_HD typename add_rvalue_reference<T>::type declval() noexcept;
}  // namespace std
#endif
