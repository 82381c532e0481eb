// size_t, ptrdiff_t, wchar_t and NULL are built into NVRTC; the rest of <stddef.h> is here.
#ifndef JITLOAD_NVRTC_STDDEF_H
#define JITLOAD_NVRTC_STDDEF_H
#include "_jitload/config.h"

#ifndef NULL
#define NULL 0
#endif
#include "_jitload/offsetof.h"

using std::nullptr_t;
typedef struct {
  alignas(16) long long __integer;
  alignas(16) double __floating[2];
} max_align_t;

#endif
