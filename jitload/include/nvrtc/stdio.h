// printf is built into NVRTC and is all of <stdio.h> that device code has.
#ifndef JITLOAD_NVRTC_STDIO_H
#define JITLOAD_NVRTC_STDIO_H
#include "_jitload/config.h"

#ifndef NULL
#define NULL 0
#endif
#define EOF (-1)

#endif
