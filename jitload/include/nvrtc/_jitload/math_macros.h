// The macros of <math.h>, with infinity and NaN as constant expressions. It has no guard: CCCL defines some of
// these macros differently, and this header is read again after CCCL's to define them again.
#pragma nv_diagnostic push
#pragma nv_diag_suppress 47
#define INFINITY (__builtin_bit_cast(float, 0x7f800000u))
#define NAN (__builtin_bit_cast(float, 0x7fc00000u))
#define HUGE_VALF INFINITY
#define HUGE_VAL (__builtin_bit_cast(double, 0x7ff0000000000000ull))
#define FP_NAN 0
#define FP_INFINITE 1
#define FP_ZERO 2
#define FP_SUBNORMAL 3
#define FP_NORMAL 4
#ifndef FP_ILOGB0
#define FP_ILOGB0 (-2147483647 - 1)
#define FP_ILOGBNAN (-2147483647 - 1)
#define MATH_ERRNO 1
#define MATH_ERREXCEPT 2
#define math_errhandling 0
#endif
#ifndef M_PI
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
#ifndef M_PIf
#define M_Ef 2.7182818284590452354F
#define M_LOG2Ef 1.4426950408889634074F
#define M_LOG10Ef 0.43429448190325182765F
#define M_LN2f 0.69314718055994530942F
#define M_LN10f 2.30258509299404568402F
#define M_PIf 3.14159265358979323846F
#define M_PI_2f 1.57079632679489661923F
#define M_PI_4f 0.78539816339744830962F
#define M_1_PIf 0.31830988618379067154F
#define M_2_PIf 0.63661977236758134308F
#define M_2_SQRTPIf 1.12837916709551257390F
#define M_SQRT2f 1.41421356237309504880F
#define M_SQRT1_2f 0.70710678118654752440F
#endif
#ifndef MAXFLOAT
#define MAXFLOAT 3.40282346638528859811704183484516925e+38F
#endif
#pragma nv_diagnostic pop
