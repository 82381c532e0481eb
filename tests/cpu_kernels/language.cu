// C++ as people write it in kernels.
#include <cuda/std/array>
#include <cuda/std/type_traits>
#include <cuda/std/utility>

namespace tools {
template <class T, int N> struct Vec {
  T data[N];
  __host__ __device__ T& operator[](int i) { return data[i]; }
  __device__ T dot(const Vec& other) const {
    T sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += data[i] * other.data[i];
    return sum;
  }
};
template <int N> __device__ __forceinline__ int fibonacci(int n);
template <> __device__ __forceinline__ int fibonacci<1>(int n) { return n < 2 ? n : -1; }
__device__ __noinline__ int recursive(int n) { return n < 2 ? n : recursive(n - 1) + recursive(n - 2); }
struct Shape {
  __device__ virtual float area() const { return 0; }
};
struct Square : Shape {
  float side;
  __device__ Square(float s) : side(s) {}
  __device__ float area() const override { return side * side; }
};
struct Circle : Shape {
  float radius;
  __device__ Circle(float r) : radius(r) {}
  __device__ float area() const override { return 3 * radius * radius; }
};
template <class F> __device__ void each(int n, F f) {
  for (int i = 0; i < n; ++i) f(i);
}
typedef float (*Function)(float);
__device__ float twice(float x) { return 2 * x; }
__device__ float square(float x) { return x * x; }
__device__ Function table[2] = {twice, square};
}  // namespace tools

struct Settings { float scale; int shift; char tag; double bias; };
#define clamp(v, low, high) ((v) < (low) ? (low) : (v) > (high) ? (high) : (v))
static inline __device__ int loop(int kernel, int x) { return kernel + x; }

extern "C" __global__ void __launch_bounds__(64) language(const float* in, float* out, int n, Settings settings) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i], *row = out + 10 * i;
  tools::Vec<float, 4> v = {{x, x + 1, x + 2, x + 3}};
  row[0] = v.dot(v);
  row[1] = tools::recursive(i % 12) + tools::fibonacci<1>(1);
  tools::Square square(x);
  tools::Circle circle(x);
  const tools::Shape* shapes[2] = {&square, &circle};
  row[2] = shapes[i % 2]->area();
  row[3] = tools::table[i % 2](x);
  float sum = 0;
  tools::each(5, [&sum, x](int j) { sum += x * j; });
  row[4] = sum;
  row[5] = x * settings.scale + (1 << settings.shift) + settings.tag + (float)settings.bias;
  row[6] = clamp(x, 0.0f, 1.0f) + loop(1, i);
  cuda::std::array<float, 3> three = {x, 2 * x, 3 * x};
  row[7] = three[0] + three[1] + three[2] + cuda::std::is_same<float, decltype(x)>::value;
  float4 quad = make_float4(x, x, x, 1);
  row[8] = quad.x + quad.y + quad.z + quad.w;
  double2 pair = {x, 2.0};
  row[9] = (float)(pair.x * pair.y) + sizeof(float3) + alignof(float4);
}

template <class T> __global__ void axpy(T a, const T* x, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void vectors(const float4* x, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 v = __ldg(&x[i]);
  __stcs(&out[i], make_float4(v.w, v.z, v.y, v.x));
}

extern "C" __global__ void references(const float& scale, const int (&x)[8], float* out, float4& last) {
  int i = threadIdx.x;
  out[i] = scale * x[i];
  if (i == 3) last.w = x[i];
}
