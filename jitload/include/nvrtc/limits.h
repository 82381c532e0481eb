// <limits.h> of Linux LP64.
#ifndef JITLOAD_NVRTC_LIMITS_H
#define JITLOAD_NVRTC_LIMITS_H
#include "_jitload/limits_macros.h"
#endif
