// One thread for each row. The backward kernels write the gradient of the input.
#define ROW(n) int row = blockIdx.x * blockDim.x + threadIdx.x; if (row >= rows) return; const int start = row * n
__global__ void layer_norm(const float* x, float* y, float* scale, int rows, int n) {
  ROW(n);
  float mean = 0, variance = 0;
  for (int i = 0; i < n; ++i) mean += x[start + i] / n;
  for (int i = 0; i < n; ++i) variance += (x[start + i] - mean) * (x[start + i] - mean) / n;
  scale[row] = rsqrtf(variance + 1e-5f);
  for (int i = 0; i < n; ++i) y[start + i] = (x[start + i] - mean) * scale[row];
}
__global__ void layer_norm_back(const float* grad, const float* y, const float* scale, float* dx, int rows, int n) {
  ROW(n);
  float mean = 0, product = 0;
  for (int i = 0; i < n; ++i) { mean += grad[start + i] / n; product += grad[start + i] * y[start + i] / n; }
  for (int i = 0; i < n; ++i) dx[start + i] = (grad[start + i] - mean - y[start + i] * product) * scale[row];
}
__global__ void softmax(const float* x, float* y, int rows, int n) {
  ROW(n);
  float high = x[start], sum = 0;
  for (int i = 1; i < n; ++i) high = fmaxf(high, x[start + i]);
  for (int i = 0; i < n; ++i) sum += y[start + i] = expf(x[start + i] - high);
  for (int i = 0; i < n; ++i) y[start + i] /= sum;
}
__global__ void softmax_back(const float* grad, const float* y, float* dx, int rows, int n) {
  ROW(n);
  float product = 0;
  for (int i = 0; i < n; ++i) product += grad[start + i] * y[start + i];
  for (int i = 0; i < n; ++i) dx[start + i] = (grad[start + i] - product) * y[start + i];
}
