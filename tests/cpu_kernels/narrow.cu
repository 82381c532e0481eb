// Half, bfloat16 and fp8.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

extern "C" __global__ void half_arithmetic(const __half* x, const __half* y, __half* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half a = x[i], b = y[i], *row = out + 16 * i;
  row[0] = __hadd(a, b), row[1] = a * b, row[2] = a - b, row[3] = a / b, row[4] = __hfma(a, b, a), row[5] = __hfma_relu(a, b, b);
  row[6] = __hfma_sat(a, b, a), row[7] = __hmax(a, b), row[8] = __hmin(a, b), row[9] = hfloor(a), row[10] = hceil(b);
  row[11] = hrint(a), row[12] = htrunc(b), row[13] = __hneg(__habs(a)), row[14] = __ldg(&x[i]);
  row[15] = __int2half_rn(__half2int_rd(a) + __half2int_ru(b));
}

extern "C" __global__ void half_functions(const __half* x, __half* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half a = x[i], *row = out + 10 * i;
  row[0] = hexp(a), row[1] = hlog(a), row[2] = hsqrt(a), row[3] = hrsqrt(a), row[4] = hrcp(a);
  row[5] = hsin(a), row[6] = hcos(a), row[7] = hexp2(a), row[8] = hlog2(a), row[9] = hexp10(a);
}

extern "C" __global__ void half_pairs(const __half2* x, const __half2* y, __half2* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half2 a = x[i], b = y[i], *row = out + 5 * i, zero = __half2();
  row[0] = __hfma2(a, b, a), row[1] = __hadd2(a, b) + zero, row[2] = h2rint(a), row[3] = __hmax2(a, b), row[4] = h2sqrt(__habs2(a));
}

extern "C" __global__ void half_warp(const __half* x, __half* out, float* sum) {
  __half v = x[threadIdx.x];
  for (int by = 16; by > 0; by /= 2) v = __hadd(v, __shfl_xor_sync(0xffffffffu, v, by));
  out[threadIdx.x] = v;
  __shared__ __half total;
  if (threadIdx.x == 0) total = __float2half(0.0f);
  __syncthreads();
  atomicAdd(&total, x[threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) *sum = __half2float(total);
}

extern "C" __global__ void bfloat_arithmetic(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __nv_bfloat16 a = x[i], b = y[i], *row = out + 6 * i;
  __nv_bfloat162 zero = {};
  row[0] = a + b + zero.y, row[1] = a * b, row[2] = __hfma(a, b, a), row[3] = __hmax(a, b), row[4] = hfloor(a), row[5] = __float2bfloat16(__bfloat162float(a) / 3);
}

extern "C" __global__ void bfloat_integers(const long long* x, __nv_bfloat16* out) {
  long long a = x[threadIdx.x];
  __nv_bfloat16* row = out + 9 * threadIdx.x;
  row[0] = __ll2bfloat16_rz(a), row[1] = __ll2bfloat16_ru(a), row[2] = __ll2bfloat16_rd(a);
  row[3] = __int2bfloat16_rz((int)a), row[4] = __int2bfloat16_ru((int)a), row[5] = __int2bfloat16_rd((int)a);
  unsigned short b = (unsigned short)a;
  row[6] = __ushort2bfloat16_rz(b), row[7] = __ushort2bfloat16_ru(b), row[8] = __ushort2bfloat16_rd(b);
}

extern "C" __global__ void fp8_round_trip(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[2 * i] = float(__nv_fp8_e4m3(x[i]));
  out[2 * i + 1] = float(__nv_fp8_e5m2(x[i]));
}
