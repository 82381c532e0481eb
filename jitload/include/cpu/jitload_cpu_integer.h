/* CUDA's integer intrinsics: bits, wide products, dot products, and several small numbers in one word. */
#pragma once

__JITLOAD_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
__JITLOAD_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__JITLOAD_INLINE int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
__JITLOAD_INLINE int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
__JITLOAD_INLINE int __ffs(int x) { return __builtin_ffs(x); }
__JITLOAD_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
__JITLOAD_INLINE unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
__JITLOAD_INLINE unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
__JITLOAD_INLINE unsigned short __nv_bswap16(unsigned short x) { return __builtin_bswap16(x); }
__JITLOAD_INLINE unsigned __nv_bswap32(unsigned x) { return __builtin_bswap32(x); }
__JITLOAD_INLINE unsigned long long __nv_bswap64(unsigned long long x) { return __builtin_bswap64(x); }
__JITLOAD_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 15u;
    unsigned byte = (unsigned)(both >> (8 * (pick & 7u))) & 255u;
    if (pick & 8u) byte = byte & 128u ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
__JITLOAD_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  by &= 31u;
  return by == 0 ? high : high << by | low >> (32 - by);
}
__JITLOAD_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  by &= 31u;
  return by == 0 ? low : low >> by | high << (32 - by);
}
__JITLOAD_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
__JITLOAD_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
__JITLOAD_INLINE long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
__JITLOAD_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
__JITLOAD_INLINE int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
__JITLOAD_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }

__JITLOAD_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
  return by >= 32 ? low : __funnelshift_l(low, high, by);
}
__JITLOAD_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
  return by >= 32 ? high : __funnelshift_r(low, high, by);
}
__JITLOAD_INLINE unsigned __fns(unsigned mask, unsigned base, int offset) {
  if (base > 31) return 0xffffffffu;
  if (offset == 0) return mask >> base & 1 ? base : 0xffffffffu;
  const int step = offset > 0 ? 1 : -1;
  int left = offset > 0 ? offset : -offset;
  for (int at = (int)base; at >= 0 && at < 32; at += step) {
    if ((mask >> at & 1) && --left == 0) return (unsigned)at;
  }
  return 0xffffffffu;
}

/* ---- sums and means without overflow --------------------------------------------------------------------------- */

__JITLOAD_INLINE unsigned __sad(int a, int b, unsigned c) {
  return c + (a > b ? (unsigned)a - (unsigned)b : (unsigned)b - (unsigned)a);
}
__JITLOAD_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
__JITLOAD_INLINE int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
__JITLOAD_INLINE int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
__JITLOAD_INLINE unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
__JITLOAD_INLINE unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1) >> 1); }

/* ---- dot products ----------------------------------------------------------------------------------------------- */

template <class __jitload_a, class __jitload_b>
__JITLOAD_INLINE unsigned __jitload_dot(unsigned a, int first, unsigned b, int bytes, unsigned sum) {
  for (int i = 0; i < bytes; ++i) {
    const int width = (int)sizeof(__jitload_a) * 8;
    sum += (unsigned)((int)(__jitload_a)(a >> (width * i)) * (int)(__jitload_b)(b >> (8 * (i + first))));
  }
  return sum;
}
__JITLOAD_INLINE int __dp4a(int a, int b, int c) {
  return (int)__jitload_dot<signed char, signed char>((unsigned)a, 0, (unsigned)b, 4, (unsigned)c);
}
__JITLOAD_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return __jitload_dot<unsigned char, unsigned char>(a, 0, b, 4, c);
}
__JITLOAD_INLINE int __dp2a_lo(int a, int b, int c) {
  return (int)__jitload_dot<short, signed char>((unsigned)a, 0, (unsigned)b, 2, (unsigned)c);
}
__JITLOAD_INLINE int __dp2a_hi(int a, int b, int c) {
  return (int)__jitload_dot<short, signed char>((unsigned)a, 2, (unsigned)b, 2, (unsigned)c);
}
__JITLOAD_INLINE unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) {
  return __jitload_dot<unsigned short, unsigned char>(a, 0, b, 2, c);
}
__JITLOAD_INLINE unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c) {
  return __jitload_dot<unsigned short, unsigned char>(a, 2, b, 2, c);
}
__JITLOAD_INLINE int __dp4a(char4 a, char4 b, int c) { return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__JITLOAD_INLINE unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
  return c + (unsigned)(a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w);
}
__JITLOAD_INLINE int __dp2a_lo(short2 a, char4 b, int c) { return c + a.x * b.x + a.y * b.y; }
__JITLOAD_INLINE int __dp2a_hi(short2 a, char4 b, int c) { return c + a.x * b.z + a.y * b.w; }
__JITLOAD_INLINE unsigned __dp2a_lo(ushort2 a, uchar4 b, unsigned c) { return c + (unsigned)(a.x * b.x + a.y * b.y); }
__JITLOAD_INLINE unsigned __dp2a_hi(ushort2 a, uchar4 b, unsigned c) { return c + (unsigned)(a.x * b.z + a.y * b.w); }

/* ---- four bytes, or two halves, of a word ------------------------------------------------------------------------ */

template <class __jitload_t, class __jitload_f>
__JITLOAD_INLINE unsigned __jitload_lanes(unsigned a, unsigned b, __jitload_f compute) {
  const unsigned width = 8 * sizeof(__jitload_t), mask = (1u << width) - 1;
  unsigned result = 0;
  for (unsigned at = 0; at < 32; at += width) {
    result |= ((unsigned)compute((int)(__jitload_t)(a >> at), (int)(__jitload_t)(b >> at)) & mask) << at;
  }
  return result;
}
template <class __jitload_t, class __jitload_f>
__JITLOAD_INLINE unsigned __jitload_total(unsigned a, unsigned b, __jitload_f compute) {
  unsigned sum = 0;
  for (unsigned at = 0; at < 32; at += 8 * sizeof(__jitload_t)) {
    sum += (unsigned)compute((int)(__jitload_t)(a >> at), (int)(__jitload_t)(b >> at));
  }
  return sum;
}
template <class __jitload_t>
__JITLOAD_INLINE int __jitload_clamp(int value) {
  const int bits = 8 * (int)sizeof(__jitload_t);
  const int least = (__jitload_t)-1 < 0 ? -(1 << (bits - 1)) : 0;
  const int most = (__jitload_t)-1 < 0 ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  return value < least ? least : value > most ? most : value;
}
#define __JITLOAD_WORD(name, type, ...)                                                  \
  __JITLOAD_INLINE unsigned name(unsigned a, unsigned b) {                               \
    return __jitload_lanes<type>(a, b, [](int x, int y) -> int { return __VA_ARGS__; }); \
  }
#define __JITLOAD_UNARY(name, type, ...)                                               \
  __JITLOAD_INLINE unsigned name(unsigned a) {                                         \
    return __jitload_lanes<type>(a, 0, [](int x, int) -> int { return __VA_ARGS__; }); \
  }
#define __JITLOAD_COMPARE(n, s, u, name, type, test)       \
  __JITLOAD_WORD(__vcmp##name##n, type, x test y ? -1 : 0) \
  __JITLOAD_WORD(__vset##name##n, type, x test y ? 1 : 0)
#define __JITLOAD_WORDS(n, s, u)                                                         \
  __JITLOAD_WORD(__vadd##n, u, x + y)                                                    \
  __JITLOAD_WORD(__vsub##n, u, x - y)                                                    \
  __JITLOAD_WORD(__vaddss##n, s, __jitload_clamp<s>(x + y))                              \
  __JITLOAD_WORD(__vaddus##n, u, __jitload_clamp<u>(x + y))                              \
  __JITLOAD_WORD(__vsubss##n, s, __jitload_clamp<s>(x - y))                              \
  __JITLOAD_WORD(__vsubus##n, u, __jitload_clamp<u>(x - y))                              \
  __JITLOAD_WORD(__vavgs##n, s, (x + y + (x + y >= 0)) >> 1)                             \
  __JITLOAD_WORD(__vavgu##n, u, (x + y + 1) >> 1)                                        \
  __JITLOAD_WORD(__vhaddu##n, u, (x + y) >> 1)                                           \
  __JITLOAD_WORD(__vmaxs##n, s, x > y ? x : y)                                           \
  __JITLOAD_WORD(__vmaxu##n, u, x > y ? x : y)                                           \
  __JITLOAD_WORD(__vmins##n, s, x < y ? x : y)                                           \
  __JITLOAD_WORD(__vminu##n, u, x < y ? x : y)                                           \
  __JITLOAD_WORD(__vabsdiffs##n, s, x > y ? x - y : y - x)                               \
  __JITLOAD_WORD(__vabsdiffu##n, u, x > y ? x - y : y - x)                               \
  __JITLOAD_UNARY(__vabs##n, s, x < 0 ? -x : x)                                          \
  __JITLOAD_UNARY(__vabsss##n, s, __jitload_clamp<s>(x < 0 ? -x : x))                    \
  __JITLOAD_UNARY(__vneg##n, s, -x)                                                      \
  __JITLOAD_UNARY(__vnegss##n, s, __jitload_clamp<s>(-x))                                \
  __JITLOAD_COMPARE(n, s, u, eq, u, ==)                                                  \
  __JITLOAD_COMPARE(n, s, u, ne, u, !=)                                                  \
  __JITLOAD_COMPARE(n, s, u, ges, s, >=)                                                 \
  __JITLOAD_COMPARE(n, s, u, geu, u, >=)                                                 \
  __JITLOAD_COMPARE(n, s, u, gts, s, >)                                                  \
  __JITLOAD_COMPARE(n, s, u, gtu, u, >)                                                  \
  __JITLOAD_COMPARE(n, s, u, les, s, <=)                                                 \
  __JITLOAD_COMPARE(n, s, u, leu, u, <=)                                                 \
  __JITLOAD_COMPARE(n, s, u, lts, s, <)                                                  \
  __JITLOAD_COMPARE(n, s, u, ltu, u, <)                                                  \
  __JITLOAD_INLINE unsigned __vsads##n(unsigned a, unsigned b) {                         \
    return __jitload_total<s>(a, b, [](int x, int y) { return x > y ? x - y : y - x; }); \
  }                                                                                      \
  __JITLOAD_INLINE unsigned __vsadu##n(unsigned a, unsigned b) {                         \
    return __jitload_total<u>(a, b, [](int x, int y) { return x > y ? x - y : y - x; }); \
  }
__JITLOAD_WORDS(4, signed char, unsigned char)
__JITLOAD_WORDS(2, short, unsigned short)
#undef __JITLOAD_WORDS
#undef __JITLOAD_COMPARE
#undef __JITLOAD_UNARY
#undef __JITLOAD_WORD
