// Arithmetic: intrinsics, conversions, rounding, functions.
extern "C" __global__ void bits(const unsigned* x, const unsigned* y, unsigned* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned a = x[i], b = y[i], *row = out + 40 * i;
  unsigned long long wide = (unsigned long long)a << 32 | b;
  int at = 0;
  row[at++] = __popc(a), row[at++] = __popcll(wide), row[at++] = __clz(a), row[at++] = __clzll(wide);
  row[at++] = __ffs(a), row[at++] = __ffsll(wide), row[at++] = __brev(a), row[at++] = (unsigned)(__brevll(wide) >> 7);
  row[at++] = __byte_perm(a, b, 0x5140), row[at++] = __funnelshift_l(a, b, b & 63), row[at++] = __funnelshift_r(a, b, b & 63);
  row[at++] = __funnelshift_lc(a, b, b & 63), row[at++] = __funnelshift_rc(a, b, b & 63);
  row[at++] = __mulhi((int)a, (int)b), row[at++] = __umulhi(a, b), row[at++] = (unsigned)__umul64hi(wide, wide);
  row[at++] = (unsigned)__mul64hi((long long)wide, (long long)a), row[at++] = __mul24((int)a, (int)b), row[at++] = __umul24(a, b);
  row[at++] = __sad((int)a, (int)b, 5u), row[at++] = __usad(a, b, 5u);
  row[at++] = __hadd((int)a, (int)b), row[at++] = __rhadd((int)a, (int)b), row[at++] = __uhadd(a, b), row[at++] = __urhadd(a, b);
  row[at++] = __dp4a((int)a, (int)b, 7), row[at++] = __dp4a(a, b, 7u), row[at++] = __dp2a_lo((int)a, (int)b, 7), row[at++] = __dp2a_hi(a, b, 7u);
  row[at++] = umin(a, b) ^ umax(a, 5u), row[at++] = (unsigned)(ullmin(wide, a) ^ ullmax(wide, b));
  row[at++] = (unsigned)(llmin((long long)wide, a) ^ llmax((long long)wide, b) >> 32), row[at++] = (unsigned)min((long long)wide, wide + 1);
  row[at++] = (unsigned)(max((long)(int)a, 7ul) >> 16), row[at++] = (unsigned)(labs((long)wide) ^ llabs((long long)wide) >> 32);
  row[at++] = __nv_bswap32(a) ^ __nv_bswap16(b), row[at++] = (unsigned)(__nv_bswap64(wide) >> 8);
}

extern "C" __global__ void words(const unsigned* x, const unsigned* y, unsigned* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned a = x[i], b = y[i], *row = out + 64 * i;
  int at = 0;
#define BOTH(name) row[at++] = name##4(a, b), row[at++] = name##2(a, b)
  BOTH(__vadd), BOTH(__vsub), BOTH(__vaddss), BOTH(__vaddus), BOTH(__vsubss), BOTH(__vsubus), BOTH(__vavgs), BOTH(__vavgu);
  BOTH(__vhaddu), BOTH(__vmaxs), BOTH(__vmaxu), BOTH(__vmins), BOTH(__vminu), BOTH(__vabsdiffs), BOTH(__vabsdiffu);
  BOTH(__vcmpeq), BOTH(__vcmpgts), BOTH(__vcmpltu), BOTH(__vsetges), BOTH(__vsetne), BOTH(__vsads), BOTH(__vsadu);
  row[at++] = __vabs4(a), row[at++] = __vabsss2(a), row[at++] = __vneg4(a), row[at++] = __vnegss2(a);
}

extern "C" __global__ void conversions(const float* x, const double* y, long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float a = x[i];
  double b = y[i];
  long long* row = out + 48 * i;
  int at = 0;
#define ALL(name, value) row[at++] = name##_rn(value), row[at++] = name##_rz(value), row[at++] = name##_ru(value), row[at++] = name##_rd(value)
  ALL(__float2int, a), ALL(__float2uint, a), ALL(__float2ll, a), ALL(__float2ull, a);
  ALL(__double2int, b), ALL(__double2uint, b), ALL(__double2ll, b), ALL(__double2ull, b);
  if (isnan(b)) b = 0;  // the bits of a NaN are the processor's own
  row[at++] = __float_as_int(__double2float_rn(b)), row[at++] = __float_as_int(__double2float_rz(b));
  row[at++] = __float_as_int(__double2float_ru(b)), row[at++] = __float_as_int(__double2float_rd(b));
  row[at++] = __double2hiint(b), row[at++] = __double2loint(b);
  row[at++] = __double_as_longlong(__hiloint2double(__double2hiint(b), __double2loint(b)));
}

extern "C" __global__ void rounding(const float* x, const float* y, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float a = x[i], b = y[i];
  int* row = out + 44 * i;
  int at = 0;
#define EACH(name, ...)                                                                                       \
  row[at++] = __float_as_int(name##_rn(__VA_ARGS__)), row[at++] = __float_as_int(name##_rz(__VA_ARGS__)), \
  row[at++] = __float_as_int(name##_ru(__VA_ARGS__)), row[at++] = __float_as_int(name##_rd(__VA_ARGS__))
  EACH(__fadd, a, b), EACH(__fsub, a, b), EACH(__fmul, a, b), EACH(__fdiv, a, b), EACH(__fmaf, a, b, a);
  EACH(__frcp, a), EACH(__fsqrt, fabsf(a)), EACH(__int2float, __float_as_int(a)), EACH(__ull2float, __float_as_uint(b) * 123456789ull);
  row[at++] = __float_as_int(__fmul_rn(a, b) + a);
  row[at++] = __float_as_int(__fadd_rn(__fmul_rn(a, b), -a));
  row[at++] = __float_as_int(fmaf(a, b, a));
  row[at++] = __float_as_int(__saturatef(a));
  row[at++] = __float_as_int(__fmaf_ieee_rn(a, b, a));
}

extern "C" __global__ void functions(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float a = x[i], *row = out + 48 * i, other;
  int at = 0, power;
  row[at++] = expf(a), row[at++] = exp2f(a), row[at++] = exp10f(a), row[at++] = expm1f(a), row[at++] = logf(a), row[at++] = log2f(a);
  row[at++] = log10f(a), row[at++] = log1pf(a), row[at++] = sinf(a), row[at++] = cosf(a), row[at++] = tanf(a), row[at++] = tanhf(a);
  row[at++] = sinhf(a), row[at++] = coshf(a), row[at++] = asinhf(a), row[at++] = atanf(a), row[at++] = atan2f(a, 2), row[at++] = powf(a, 1.5f);
  row[at++] = sqrtf(a), row[at++] = rsqrtf(a), row[at++] = cbrtf(a), row[at++] = rcbrtf(a), row[at++] = hypotf(a, 3), row[at++] = rhypotf(a, 3);
  row[at++] = norm3df(a, 1, 2), row[at++] = rnorm4df(a, 1, 2, 3), row[at++] = sinpif(a), row[at++] = cospif(a);
  row[at++] = erff(a), row[at++] = erfcf(a), row[at++] = erfinvf(a / 8), row[at++] = erfcinvf(a / 4), row[at++] = erfcxf(a);
  row[at++] = normcdff(a), row[at++] = normcdfinvf(a / 8), row[at++] = tgammaf(a), row[at++] = lgammaf(a);
  row[at++] = cyl_bessel_i0f(a), row[at++] = cyl_bessel_i1f(a), row[at++] = j0f(a), row[at++] = fmodf(a, 0.7f);
  row[at++] = frexpf(a, &power) + power, row[at++] = ldexpf(a, 3), row[at++] = modff(a, &other) + other;
  sincospif(a, &row[at], &row[at + 1]);
}

extern "C" __global__ void extremes(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float* row = out + 8 * i;
  row[0] = fminf(x[i], y[i]), row[1] = fmaxf(x[i], y[i]), row[2] = min(x[i], y[i]), row[3] = max(x[i], y[i]);
  row[4] = fdimf(x[i], y[i]), row[5] = copysignf(x[i], y[i]), row[6] = roundf(x[i]) + rintf(y[i]);
  row[7] = isnan(x[i]) + 2 * isinf(x[i]) + 4 * signbit(y[i]) + 8 * isfinite(y[i]);
}
