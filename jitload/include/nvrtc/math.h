// Device functions come from NVRTC; <cmath> adds the overloads for integers and mixed types, in both namespaces.
#ifndef JITLOAD_NVRTC_MATH_H
#define JITLOAD_NVRTC_MATH_H
#include "_jitload/math_functions.h"
#include "_jitload/math_macros.h"
#endif
