// Atomics of every type, and threads that wait for each other through memory.
extern "C" __global__ void integer_atomics(const int* x, int* i, unsigned* u, unsigned long long* w, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= n) return;
  int v = x[at];
  atomicAdd(&i[0], v), atomicSub(&i[1], v), atomicMin(&i[2], v), atomicMax(&i[3], v);
  atomicAnd(&i[4], v | 0xff00), atomicOr(&i[5], v), atomicXor(&i[6], v);
  atomicAdd_block(&i[7], 1), atomicAdd_system(&i[8], 1);
  atomicAdd(&u[0], v), atomicInc(&u[1], 10), atomicDec(&u[2], 10), atomicMax(&u[3], v), atomicMin(&u[4], v);
  atomicAdd(&w[0], 1ull << 33), atomicMax(&w[1], (unsigned long long)v << 40), atomicOr(&w[2], 1ull << (v % 64));
  atomicXor(&w[3], (unsigned long long)v << 20), atomicMin(&w[4], (unsigned long long)v << 33);
}

extern "C" __global__ void float_atomics(const float* x, float* f, double* d, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= n) return;
  atomicAdd(f, x[at]);
  atomicAdd(d, (double)x[at]);
  int* bits = (int*)(f + 1);
  int old = *bits, seen;
  do {
    seen = old;
    if (__int_as_float(seen) >= x[at]) break;
    old = atomicCAS(bits, seen, __float_as_int(x[at]));
  } while (old != seen);
}

extern "C" __global__ void last_block(const float* x, float* parts, float* out, unsigned* done) {
  __shared__ bool is_last;
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += x[(blockIdx.x * blockDim.x + threadIdx.x) * 64 + i];
  parts[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last || threadIdx.x != 0) return;
  float total = 0;
  for (int i = 0; i < gridDim.x * blockDim.x; ++i) total += parts[i];
  *out = total;
}
