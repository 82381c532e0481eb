// Fourth part of <type_traits>: what a call of a callable gives. std::invoke itself is in <functional>.
#ifndef JITLOAD_NVRTC_TRAITS_INVOKE_H
#define JITLOAD_NVRTC_TRAITS_INVOKE_H
#include "traits_query.h"
#include "traits_transform.h"

namespace std {
template <class T> class reference_wrapper;
template <class T> struct __is_reference_wrapper : false_type {};
template <class T> struct __is_reference_wrapper<reference_wrapper<T>> : true_type {};

// What make_pair and make_tuple store: a reference for a reference_wrapper, a copy for the rest.
template <class T, class D = typename decay<T>::type> struct __unwrapped { typedef D type; };
template <class T, class R> struct __unwrapped<T, reference_wrapper<R>> { typedef R& type; };
#if __cplusplus >= 202002L
template <class T> struct unwrap_reference { typedef T type; };
template <class T> struct unwrap_reference<reference_wrapper<T>> { typedef T& type; };
template <class T> using unwrap_reference_t = typename unwrap_reference<T>::type;
template <class T> struct unwrap_ref_decay : unwrap_reference<decay_t<T>> {};
template <class T> using unwrap_ref_decay_t = typename unwrap_ref_decay<T>::type;
#endif

// The object a member pointer is applied to: itself, what a reference_wrapper refers to, or what a pointer points to.
template <class C, class T, class D = typename decay<T>::type>
_JITLOAD_HD constexpr typename enable_if<is_base_of<C, D>::value, T&&>::type __target(T&& x) {
  return static_cast<T&&>(x);
}
template <class C, class T, class D = typename decay<T>::type>
_JITLOAD_HD constexpr auto __target(T&& x) ->
    typename enable_if<!is_base_of<C, D>::value && __is_reference_wrapper<D>::value, decltype(x.get())>::type {
  return x.get();
}
template <class C, class T, class D = typename decay<T>::type>
_JITLOAD_HD constexpr auto __target(T&& x) ->
    typename enable_if<!is_base_of<C, D>::value && !__is_reference_wrapper<D>::value,
                       decltype(*static_cast<T&&>(x))>::type {
  return *static_cast<T&&>(x);
}

template <class F, class... A>
_JITLOAD_HD constexpr auto __invoke(F&& f, A&&... a) noexcept(noexcept(static_cast<F&&>(f)(static_cast<A&&>(a)...)))
    -> typename enable_if<!is_member_pointer<typename decay<F>::type>::value,
                          decltype(static_cast<F&&>(f)(static_cast<A&&>(a)...))>::type {
  return static_cast<F&&>(f)(static_cast<A&&>(a)...);
}
template <class M, class C, class T, class... A>
_JITLOAD_HD constexpr auto __invoke(M C::*m, T&& x, A&&... a) noexcept(
    noexcept((__target<C>(static_cast<T&&>(x)).*m)(static_cast<A&&>(a)...)))
    -> typename enable_if<is_function<M>::value,
                          decltype((__target<C>(static_cast<T&&>(x)).*m)(static_cast<A&&>(a)...))>::type {
  return (__target<C>(static_cast<T&&>(x)).*m)(static_cast<A&&>(a)...);
}
template <class M, class C, class T>
_JITLOAD_HD constexpr auto __invoke(M C::*m, T&& x) noexcept ->
    typename enable_if<!is_function<M>::value, decltype((__target<C>(static_cast<T&&>(x)).*m))>::type {
  return __target<C>(static_cast<T&&>(x)).*m;
}

template <class Void, class F, class... A> struct __call {
  static constexpr bool possible = false;
  static constexpr bool nothrow = false;
};
template <class F, class... A>
struct __call<typename __void<decltype(__invoke(declval<F>(), declval<A>()...))>::type, F, A...> {
  typedef decltype(__invoke(declval<F>(), declval<A>()...)) type;
  static constexpr bool possible = true;
  static constexpr bool nothrow = noexcept(__invoke(declval<F>(), declval<A>()...));
};

#if __cplusplus < 202002L
template <class> struct result_of;
template <class F, class... A> struct result_of<F(A...)> : __call<void, F, A...> {};
#if __cplusplus >= 201402L
template <class T> using result_of_t = typename result_of<T>::type;
#endif
#endif

#if __cplusplus >= 201703L
template <class F, class... A> struct invoke_result : __call<void, F, A...> {};
template <class F, class... A> using invoke_result_t = typename invoke_result<F, A...>::type;
template <class F, class... A> struct is_invocable : __bool<__call<void, F, A...>::possible> {};
template <class F, class... A> struct is_nothrow_invocable : __bool<__call<void, F, A...>::nothrow> {};

template <class R, class C, bool = C::possible, bool = is_void<R>::value> struct __call_gives : false_type {
  static constexpr bool nothrow = false;
};
template <class R, class C> struct __call_gives<R, C, true, true> : true_type {
  static constexpr bool nothrow = C::nothrow;
};
template <class R, class C> struct __call_gives<R, C, true, false>
    : __bool<__is_convertible<typename C::type, R>::value> {
  static constexpr bool nothrow = C::nothrow && __is_convertible<typename C::type, R>::nothrow;
};
template <class R, class F, class... A>
struct is_invocable_r : __bool<__call_gives<R, __call<void, F, A...>>::value> {};
template <class R, class F, class... A>
struct is_nothrow_invocable_r : __bool<__call_gives<R, __call<void, F, A...>>::nothrow> {};
#endif
}  // namespace std
#endif
