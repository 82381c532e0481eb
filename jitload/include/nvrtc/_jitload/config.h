// What the headers of this directory share.
#pragma once

#ifndef __CUDACC_RTC__
#error "jitload/include/nvrtc is for NVRTC only: a host compiler has its own standard headers"
#endif

// NVRTC takes a function without these attributes for a host function, and rejects it.
#define _JITLOAD_HD __host__ __device__
#if __cplusplus >= 201402L
#define _JITLOAD_CONSTEXPR14 constexpr
#else
#define _JITLOAD_CONSTEXPR14 inline
#endif
#define _JITLOAD_FN _JITLOAD_HD _JITLOAD_CONSTEXPR14

// size_t and ptrdiff_t are built in, but only in the global namespace. The declarations are in `extern "C++"`, because
// some texts include headers of C within extern "C".
extern "C++" {
namespace std {
using ::ptrdiff_t;
using ::size_t;
typedef decltype(nullptr) nullptr_t;
}  // namespace std

namespace __jitload {
// kind<T>::value is 1 for integers, 2 for float, and 3 for double. It is 0 for other types. It is an enumerator,
// because a constant would be a variable in each cubin.
template <class T> struct kind { enum { value = 0 }; };
template <> struct kind<float> { enum { value = 2 }; };
template <> struct kind<double> { enum { value = 3 }; };
#define _JITLOAD_INTEGER(T) template <> struct kind<T> { enum { value = 1 }; };
_JITLOAD_INTEGER(bool) _JITLOAD_INTEGER(char) _JITLOAD_INTEGER(signed char) _JITLOAD_INTEGER(unsigned char)
_JITLOAD_INTEGER(wchar_t) _JITLOAD_INTEGER(char16_t) _JITLOAD_INTEGER(char32_t) _JITLOAD_INTEGER(short)
_JITLOAD_INTEGER(unsigned short) _JITLOAD_INTEGER(int) _JITLOAD_INTEGER(unsigned int) _JITLOAD_INTEGER(long)
_JITLOAD_INTEGER(unsigned long) _JITLOAD_INTEGER(long long) _JITLOAD_INTEGER(unsigned long long)
#ifdef __cpp_char8_t
_JITLOAD_INTEGER(char8_t)
#endif
#ifdef __CUDACC_RTC_INT128__
_JITLOAD_INTEGER(__int128) _JITLOAD_INTEGER(unsigned __int128)
#endif
#undef _JITLOAD_INTEGER

// of_integer<R, T>::type is R for an integer T. Otherwise there is no type, which removes the overload.
template <class R, class T, int = kind<T>::value> struct of_integer {};
template <class R, class T> struct of_integer<R, T, 1> { typedef R type; };
}  // namespace __jitload
}
