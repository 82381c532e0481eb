// The kernels of stub_kernels.sm_90.cubin, which the tests of the stub driver read: NVRTC 13.0, -arch=sm_90.
struct Box {
    float a;
    double b;
    char c;
};

extern "C" {
__constant__ int coefficients[4] = {1, 2, 3, 4};
__device__ float table[8];
__device__ double seeded = 2.5;

__global__ void empty() {}

__global__ void add_one(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + coefficients[i & 3] + table[i & 7] + (float)seeded;
}

__global__ void mixed(bool flag, short s, const Box box, long long n, float* y) {
    __shared__ float t[32];
    t[threadIdx.x & 31] = s;
    __syncthreads();
    if (flag) y[n] = t[(threadIdx.x + 1) & 31] + box.a + (float)box.b + box.c;
}

__global__ void __launch_bounds__(128) __cluster_dims__(2, 1, 1) bounded(float* y) { y[0] = 1; }
}
