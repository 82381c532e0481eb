// Indices, shared memory, barriers: what a block of threads is.
extern "C" __global__ void indices(int* out) {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
      block * 100000 + threadIdx.z * 10000 + threadIdx.y * 100 + threadIdx.x + warpSize;
}

extern "C" __global__ void block_sum(const float* x, float* out, int n) {
  __shared__ float part[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < n ? x[i] : 0;
  for (int by = blockDim.x / 2; by > 0; by /= 2) {
    __syncthreads();
    if (threadIdx.x < by) part[threadIdx.x] += part[threadIdx.x + by];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

extern "C" __global__ void block_scan(const int* x, int* out) {
  extern __shared__ int row[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  row[threadIdx.x] = x[i];
  for (int by = 1; by < blockDim.x; by *= 2) {
    __syncthreads();
    int before = threadIdx.x >= by ? row[threadIdx.x - by] : 0;
    __syncthreads();
    row[threadIdx.x] += before;
  }
  out[i] = row[threadIdx.x];
}

extern "C" __global__ void transpose(const float* x, float* out, int rows, int columns) {
  __shared__ float tile[16][17];
  int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
  __syncthreads();
  column = blockIdx.y * 16 + threadIdx.x, row = blockIdx.x * 16 + threadIdx.y;
  if (row < columns && column < rows) out[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void several_shared(const float* x, float* out) {
  __shared__ double wide[64];
  __shared__ short narrow[64];
  __shared__ struct { float value; int from; } best;
  extern __shared__ __align__(16) unsigned char raw[];
  float* floats = reinterpret_cast<float*>(raw);
  int* ints = reinterpret_cast<int*>(raw + 64 * sizeof(float));
  int t = threadIdx.x;
  wide[t] = x[t], narrow[t] = t, floats[t] = 2 * x[t], ints[t] = 63 - t;
  if (t == 0) best.value = x[0], best.from = 0;
  __syncthreads();
  if (t == 0) {
    for (int i = 1; i < 64; ++i) if (x[i] > best.value) best.value = x[i], best.from = i;
  }
  __syncthreads();
  out[t] = (float)wide[ints[t]] + floats[63 - t] + narrow[ints[t]] + best.value + best.from;
}

extern "C" __global__ void counting_barriers(const int* x, int* out) {
  int odd = x[threadIdx.x] & 1;
  int count = __syncthreads_count(odd), all = __syncthreads_and(odd), any = __syncthreads_or(odd);
  out[threadIdx.x] = count * 4 + (all != 0) * 2 + (any != 0);
}

extern "C" __global__ void early_return(const float* x, float* out, int n) {
  __shared__ float row[128];
  if (threadIdx.x >= n) return;
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = row[n - 1 - threadIdx.x];
}

__constant__ float taps[5] = {1, 4, 6, 4, 1};
__device__ int calls = 7;
extern "C" __global__ void constants(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int tap = 0; tap < 5; ++tap) {
    int at = i + tap - 2;
    if (at >= 0 && at < n) sum += taps[tap] * x[at];
  }
  out[i] = sum / 16 + calls;
}
