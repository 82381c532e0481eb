// <stdlib.h>. malloc, free and the functions for absolute values are built into NVRTC.
#pragma once
#include "_jitload/config.h"

#ifndef NULL
#define NULL 0
#endif
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define RAND_MAX 2147483647

typedef struct { int quot, rem; } div_t;
typedef struct { long quot, rem; } ldiv_t;
typedef struct { long long quot, rem; } lldiv_t;

extern "C++" {  // a text may include this header within extern "C"
inline _JITLOAD_HD div_t div(int a, int b) { return div_t{a / b, a % b}; }
inline _JITLOAD_HD ldiv_t div(long a, long b) { return ldiv_t{a / b, a % b}; }
inline _JITLOAD_HD lldiv_t div(long long a, long long b) { return lldiv_t{a / b, a % b}; }
inline _JITLOAD_HD ldiv_t ldiv(long a, long b) { return div(a, b); }
inline _JITLOAD_HD lldiv_t lldiv(long long a, long long b) { return div(a, b); }
}
