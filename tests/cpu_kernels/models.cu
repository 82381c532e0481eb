// The kernels that models are made of, without tensor cores.
__device__ float block_max(float value, float* scratch) {
  for (int by = 16; by > 0; by /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, by));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int i = 1; i < blockDim.x / 32; ++i) value = fmaxf(value, scratch[i]);
  __syncthreads();
  return value;
}
__device__ float block_total(float value, float* scratch) {
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(0xffffffffu, value, by);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int i = 0; i < blockDim.x / 32; ++i) value += scratch[i];
  __syncthreads();
  return value;
}

extern "C" __global__ void softmax(const float* x, float* out, int columns) {
  __shared__ float scratch[32];
  const float* row = x + blockIdx.x * columns;
  float highest = -3e38f, sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) highest = fmaxf(highest, row[i]);
  highest = block_max(highest, scratch);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += __expf(row[i] - highest);
  sum = block_total(sum, scratch);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[blockIdx.x * columns + i] = __expf(row[i] - highest) / sum;
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[16][16], right[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int at = 0; at < k; at += 16) {
    left[threadIdx.y][threadIdx.x] = row < m && at + threadIdx.x < k ? a[row * k + at + threadIdx.x] : 0;
    right[threadIdx.y][threadIdx.x] = column < n && at + threadIdx.y < k ? b[(at + threadIdx.y) * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

// One block for a query, one thread for an element of the head; softmax as it goes along.
extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* out, int keys, float scale) {
  __shared__ float scratch[32];
  int width = blockDim.x, t = threadIdx.x;
  float query = q[blockIdx.x * width + t] * scale, highest = -3e38f, sum = 0, result = 0;
  for (int key = 0; key < keys; ++key) {
    float score = block_total(query * k[key * width + t], scratch);
    float next = fmaxf(highest, score), keep = expf(highest - next), weight = expf(score - next);
    sum = sum * keep + weight;
    result = result * keep + weight * v[key * width + t];
    highest = next;
  }
  out[blockIdx.x * width + t] = result / sum;
}
