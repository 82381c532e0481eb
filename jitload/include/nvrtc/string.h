// <string.h>. memcpy and memset are built into NVRTC.
#pragma once
#include "_jitload/config.h"

#ifndef NULL
#define NULL 0
#endif

extern "C++" {  // a text may include this header within extern "C"
inline _JITLOAD_HD void* memmove(void* to, const void* from, size_t n) {
  unsigned char* d = static_cast<unsigned char*>(to);
  const unsigned char* s = static_cast<const unsigned char*>(from);
  if (d <= s) {
    for (size_t i = 0; i < n; ++i) d[i] = s[i];
  } else {
    while (n--) d[n] = s[n];
  }
  return to;
}
inline _JITLOAD_HD int memcmp(const void* a, const void* b, size_t n) {
  const unsigned char* p = static_cast<const unsigned char*>(a);
  const unsigned char* q = static_cast<const unsigned char*>(b);
  for (size_t i = 0; i < n; ++i) {
    if (p[i] != q[i]) return p[i] < q[i] ? -1 : 1;
  }
  return 0;
}
inline _JITLOAD_HD const void* memchr(const void* a, int c, size_t n) {
  const unsigned char* p = static_cast<const unsigned char*>(a);
  for (size_t i = 0; i < n; ++i) {
    if (p[i] == static_cast<unsigned char>(c)) return p + i;
  }
  return nullptr;
}
inline _JITLOAD_HD void* memchr(void* a, int c, size_t n) {
  return const_cast<void*>(memchr(static_cast<const void*>(a), c, n));
}
inline _JITLOAD_HD size_t strlen(const char* s) {
  size_t n = 0;
  while (s[n]) ++n;
  return n;
}
inline _JITLOAD_HD int strncmp(const char* a, const char* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    unsigned char p = static_cast<unsigned char>(a[i]), q = static_cast<unsigned char>(b[i]);
    if (p != q) return p < q ? -1 : 1;
    if (!p) break;
  }
  return 0;
}
inline _JITLOAD_HD int strcmp(const char* a, const char* b) { return strncmp(a, b, ~size_t(0)); }
inline _JITLOAD_HD char* strcpy(char* to, const char* from) {
  char* d = to;
  while ((*d++ = *from++)) {}
  return to;
}
inline _JITLOAD_HD char* strncpy(char* to, const char* from, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    to[i] = *from;
    if (*from) ++from;
  }
  return to;
}
}
