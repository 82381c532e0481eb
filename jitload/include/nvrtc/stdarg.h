// va_list, va_start, va_arg, va_end and va_copy are built into NVRTC.
#ifndef JITLOAD_NVRTC_STDARG_H
#define JITLOAD_NVRTC_STDARG_H
#include "_jitload/config.h"
#endif
