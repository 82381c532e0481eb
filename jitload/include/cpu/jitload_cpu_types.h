/* CUDA's vector types and dim3, laid out as CUDA lays them out. */
#ifndef __VECTOR_TYPES_H__ /* NVIDIA's own guards: its headers take these types for theirs */
#define __VECTOR_TYPES_H__
#define __VECTOR_FUNCTIONS_H__
#define __VECTOR_FUNCTIONS_HPP__

#define __JITLOAD_VECTOR(name, scalar, align2, align4)                                               \
  struct name##1 { scalar x; };                                                                      \
  struct __attribute__((aligned(align2))) name##2 { scalar x, y; };                                  \
  struct name##3 { scalar x, y, z; };                                                                \
  struct __attribute__((aligned(align4))) name##4 { scalar x, y, z, w; };                            \
  __JITLOAD_INLINE name##1 make_##name##1(scalar x) { return name##1{x}; }                           \
  __JITLOAD_INLINE name##2 make_##name##2(scalar x, scalar y) { return name##2{x, y}; }              \
  __JITLOAD_INLINE name##3 make_##name##3(scalar x, scalar y, scalar z) { return name##3{x, y, z}; } \
  __JITLOAD_INLINE name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return name##4{x, y, z, w}; }

__JITLOAD_VECTOR(char, signed char, 2, 4)
__JITLOAD_VECTOR(uchar, unsigned char, 2, 4)
__JITLOAD_VECTOR(short, short, 4, 8)
__JITLOAD_VECTOR(ushort, unsigned short, 4, 8)
__JITLOAD_VECTOR(int, int, 8, 16)
__JITLOAD_VECTOR(uint, unsigned int, 8, 16)
__JITLOAD_VECTOR(long, long, 16, 16)
__JITLOAD_VECTOR(ulong, unsigned long, 16, 16)
__JITLOAD_VECTOR(longlong, long long, 16, 16)
__JITLOAD_VECTOR(ulonglong, unsigned long long, 16, 16)
__JITLOAD_VECTOR(float, float, 8, 16)
__JITLOAD_VECTOR(double, double, 16, 16)
#undef __JITLOAD_VECTOR

#define __JITLOAD_VECTOR4(name, scalar, align)                        \
  struct __attribute__((aligned(align))) name { scalar x, y, z, w; }; \
  __JITLOAD_INLINE name make_##name(scalar x, scalar y, scalar z, scalar w) { return name{x, y, z, w}; }
#define __JITLOAD_VECTOR4S(name, scalar)    \
  __JITLOAD_VECTOR4(name##_16a, scalar, 16) \
  __JITLOAD_VECTOR4(name##_32a, scalar, 32)
__JITLOAD_VECTOR4S(double4, double)
__JITLOAD_VECTOR4S(long4, long)
__JITLOAD_VECTOR4S(ulong4, unsigned long)
__JITLOAD_VECTOR4S(longlong4, long long)
__JITLOAD_VECTOR4S(ulonglong4, unsigned long long)
#undef __JITLOAD_VECTOR4S
#undef __JITLOAD_VECTOR4
#define __NV_SILENCE_DEPRECATION_BEGIN
#define __NV_SILENCE_DEPRECATION_END

/* threadIdx and the like. If the members were adjacent or aligned, the compiler would access several at once through the
 * variable's address, and from then on assume that any pointer may point to it. With sanitize="race", the runtime stores
 * these variables. */
#ifdef __SANITIZE_THREAD__
#define __JITLOAD_PADDING
#else
#define __JITLOAD_PADDING int : 8;
#endif
struct __attribute__((packed)) __jitload_index {
  unsigned int x;
  __JITLOAD_PADDING
  unsigned int y;
  __JITLOAD_PADDING
  unsigned int z;
  constexpr operator uint3() const { return uint3{x, y, z}; }
};

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(__jitload_index v) : x(v.x), y(v.y), z(v.z) {}
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};

#endif /* __VECTOR_TYPES_H__ */
