// <float.h> of Linux LP64.
#ifndef JITLOAD_NVRTC_FLOAT_H
#define JITLOAD_NVRTC_FLOAT_H
#include "_jitload/float_macros.h"
#endif
