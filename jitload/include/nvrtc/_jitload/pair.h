// std::pair, the second half of <utility>.
#ifndef JITLOAD_NVRTC_PAIR_H
#define JITLOAD_NVRTC_PAIR_H
#include "../type_traits"
#include "tuple_protocol.h"

namespace std {
template <class A, class B> struct pair {
  typedef A first_type;
  typedef B second_type;
  A first;
  B second;

  pair() = default;
  pair(const pair&) = default;
  pair(pair&&) = default;
  _JITLOAD_HD constexpr pair(const A& a, const B& b) : first(a), second(b) {}
  template <class X, class Y,
            class = typename enable_if<is_constructible<A, X>::value && is_constructible<B, Y>::value>::type>
  _JITLOAD_HD constexpr pair(X&& x, Y&& y) : first(static_cast<X&&>(x)), second(static_cast<Y&&>(y)) {}
  template <class X, class Y> _JITLOAD_HD constexpr pair(const pair<X, Y>& p) : first(p.first), second(p.second) {}
  template <class X, class Y>
  _JITLOAD_HD constexpr pair(pair<X, Y>&& p)
      : first(static_cast<X&&>(p.first)), second(static_cast<Y&&>(p.second)) {}
  template <class... X, class... Y>
  _JITLOAD_HD pair(piecewise_construct_t, tuple<X...> x, tuple<Y...> y)
      : pair(x, y, index_sequence_for<X...>(), index_sequence_for<Y...>()) {}

  pair& operator=(const pair&) = default;
  pair& operator=(pair&&) = default;
  template <class X, class Y> _JITLOAD_HD _JITLOAD_CONSTEXPR14 pair& operator=(const pair<X, Y>& p) {
    first = p.first;
    second = p.second;
    return *this;
  }
  template <class X, class Y> _JITLOAD_HD _JITLOAD_CONSTEXPR14 pair& operator=(pair<X, Y>&& p) {
    first = static_cast<X&&>(p.first);
    second = static_cast<Y&&>(p.second);
    return *this;
  }
  _JITLOAD_HD _JITLOAD_CONSTEXPR14 void swap(pair& p) {
    using std::swap;
    swap(first, p.first);
    swap(second, p.second);
  }

 private:
  template <class X, class Y, size_t... i, size_t... j>
  _JITLOAD_HD pair(X& x, Y& y, index_sequence<i...>, index_sequence<j...>)
      : first(static_cast<tuple_element_t<i, X>&&>(get<i>(x))...),
        second(static_cast<tuple_element_t<j, Y>&&>(get<j>(y))...) {}
};
#if __cplusplus >= 201703L
template <class A, class B> pair(A, B) -> pair<A, B>;
#endif

template <class A, class B>
_JITLOAD_HD constexpr pair<typename __unwrapped<A>::type, typename __unwrapped<B>::type> make_pair(A&& a, B&& b) {
  return pair<typename __unwrapped<A>::type, typename __unwrapped<B>::type>(static_cast<A&&>(a), static_cast<B&&>(b));
}
template <class A, class B> _JITLOAD_HD _JITLOAD_CONSTEXPR14 void swap(pair<A, B>& a, pair<A, B>& b) { a.swap(b); }

template <class A, class B> _JITLOAD_HD constexpr bool operator==(const pair<A, B>& p, const pair<A, B>& q) {
  return p.first == q.first && p.second == q.second;
}
template <class A, class B> _JITLOAD_HD constexpr bool operator<(const pair<A, B>& p, const pair<A, B>& q) {
  return p.first < q.first || (!(q.first < p.first) && p.second < q.second);
}
template <class A, class B> _JITLOAD_HD constexpr bool operator!=(const pair<A, B>& p, const pair<A, B>& q) {
  return !(p == q);
}
template <class A, class B> _JITLOAD_HD constexpr bool operator>(const pair<A, B>& p, const pair<A, B>& q) {
  return q < p;
}
template <class A, class B> _JITLOAD_HD constexpr bool operator<=(const pair<A, B>& p, const pair<A, B>& q) {
  return !(q < p);
}
template <class A, class B> _JITLOAD_HD constexpr bool operator>=(const pair<A, B>& p, const pair<A, B>& q) {
  return !(p < q);
}

template <class A, class B> struct tuple_size<pair<A, B>> : integral_constant<size_t, 2> {};
template <class A, class B> struct tuple_element<0, pair<A, B>> { typedef A type; };
template <class A, class B> struct tuple_element<1, pair<A, B>> { typedef B type; };
_JITLOAD_TUPLE_CONST((class A, class B), pair<A, B>)

template <size_t i> struct __pair_get;
template <> struct __pair_get<0> {
  template <class P> _JITLOAD_HD static constexpr auto of(P& p) noexcept -> decltype((p.first)) { return p.first; }
};
template <> struct __pair_get<1> {
  template <class P> _JITLOAD_HD static constexpr auto of(P& p) noexcept -> decltype((p.second)) { return p.second; }
};
template <size_t i, class A, class B>
_JITLOAD_HD constexpr tuple_element_t<i, pair<A, B>>& get(pair<A, B>& p) noexcept { return __pair_get<i>::of(p); }
template <size_t i, class A, class B>
_JITLOAD_HD constexpr const tuple_element_t<i, pair<A, B>>& get(const pair<A, B>& p) noexcept {
  return __pair_get<i>::of(p);
}
template <size_t i, class A, class B>
_JITLOAD_HD constexpr tuple_element_t<i, pair<A, B>>&& get(pair<A, B>&& p) noexcept {
  return static_cast<tuple_element_t<i, pair<A, B>>&&>(__pair_get<i>::of(p));
}
template <class T, class B> _JITLOAD_HD constexpr T& get(pair<T, B>& p) noexcept { return p.first; }
template <class T, class B> _JITLOAD_HD constexpr const T& get(const pair<T, B>& p) noexcept { return p.first; }
template <class T, class A> _JITLOAD_HD constexpr T& get(pair<A, T>& p) noexcept { return p.second; }
template <class T, class A> _JITLOAD_HD constexpr const T& get(const pair<A, T>& p) noexcept { return p.second; }
}  // namespace std
#endif
