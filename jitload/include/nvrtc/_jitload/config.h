// What the headers of this directory share.
#ifndef JITLOAD_NVRTC_CONFIG_H
#define JITLOAD_NVRTC_CONFIG_H

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

// The integer types, except char8_t and those of 128 bits.
#define _JITLOAD_INTEGERS(X) \
  X(bool) X(char) X(signed char) X(unsigned char) X(wchar_t) X(char16_t) X(char32_t) X(short) X(unsigned short) X(int) \
  X(unsigned int) X(long) X(unsigned long) X(long long) X(unsigned long long)

// size_t and ptrdiff_t are built in, but only in the global namespace. The declarations are in `extern "C++"`, because
// some texts include headers of C within extern "C".
extern "C++" {
namespace std {
using ::ptrdiff_t;
using ::size_t;
typedef decltype(nullptr) nullptr_t;
}  // namespace std
}

#endif
