/* Keywords of GNU C++ that nvcc knows and NVRTC does not. */
#pragma once

template <class T>
struct __jitload_typeof {
  typedef __remove_reference(T) type;
};

#define __extension__
#define __asm asm
#define __asm__ asm
#define __const const
#define __signed__ signed
#define __typeof(...) typename __jitload_typeof<decltype(__VA_ARGS__)>::type
#define __typeof__(...) typename __jitload_typeof<decltype(__VA_ARGS__)>::type
