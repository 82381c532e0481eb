// What the lanes of a warp do together.
extern "C" __global__ void shuffles(const int* x, int* out) {
  int t = threadIdx.x, v = x[t], n = blockDim.x;
  out[t] = __shfl_sync(0xffffffffu, v, 5);
  out[n + t] = __shfl_up_sync(0xffffffffu, v, 3);
  out[2 * n + t] = __shfl_down_sync(0xffffffffu, v, 7);
  out[3 * n + t] = __shfl_xor_sync(0xffffffffu, v, 9);
  out[4 * n + t] = __shfl_up_sync(0xffffffffu, v, 2, 8);
  out[5 * n + t] = __shfl_down_sync(0xffffffffu, v, 2, 8);
  out[6 * n + t] = __shfl_xor_sync(0xffffffffu, v, 12, 8);
  out[7 * n + t] = __shfl_sync(0xffffffffu, v, 19, 16);
  long long wide = __shfl_xor_sync(0xffffffffu, (long long)v << 33, 1);
  double real = __shfl_down_sync(0xffffffffu, v * 0.5, 1);
  out[8 * n + t] = (int)(wide >> 33) + (int)(real * 2);
}

extern "C" __global__ void votes(const int* x, unsigned* out) {
  int t = threadIdx.x, n = blockDim.x, v = x[t];
  out[t] = __ballot_sync(0xffffffffu, v & 1);
  out[n + t] = __any_sync(0xffffffffu, v > 90) * 2 + __all_sync(0xffffffffu, v >= 0);
  out[2 * n + t] = __match_any_sync(0xffffffffu, v % 5);
  int same;
  out[3 * n + t] = __match_all_sync(0xffffffffu, v / 1000, &same) + same;
  unsigned mask = __ballot_sync(0xffffffffu, v & 2);
  out[4 * n + t] = v & 2 ? __popc(__ballot_sync(mask, v & 4)) + 100 : __popc(__ballot_sync(~mask, v & 4));
}

extern "C" __global__ void active(const int* x, unsigned* out) {
  out[threadIdx.x] = 0;
  if (x[threadIdx.x] & 1) {
    out[threadIdx.x] = __activemask();
  }
  __syncwarp();
}

extern "C" __global__ void reductions(const int* x, unsigned* out) {
  int t = threadIdx.x, n = blockDim.x, v = x[t] - 50;
  out[t] = __reduce_add_sync(0xffffffffu, v);
  out[n + t] = __reduce_min_sync(0xffffffffu, v);
  out[2 * n + t] = __reduce_max_sync(0xffffffffu, v);
  out[3 * n + t] = __reduce_and_sync(0xffffffffu, (unsigned)x[t]);
  out[4 * n + t] = __reduce_or_sync(0xffffffffu, (unsigned)x[t]);
  out[5 * n + t] = __reduce_xor_sync(0xffffffffu, (unsigned)x[t]);
  out[6 * n + t] = __reduce_max_sync(0xffffffffu, (unsigned)v);
}
