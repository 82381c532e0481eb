// out = a * x + b, on the GPU and on the CPU. A thread computes V elements.
template <int V>
__global__ void scale(const float* x, float a, float b, float* out, int n) {
    int i = blockIdx.x * blockDim.x * V + threadIdx.x;
    #pragma unroll
    for (int k = 0; k < V; ++k, i += blockDim.x)
        if (i < n) out[i] = a * x[i] + b;
}
