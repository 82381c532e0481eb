// The source of image-*.cubin, which test_elf_cubin.py reads. NVRTC compiled it with -arch alone:
// 12.4 for sm_86 and sm_90a, 12.9 for sm_100a, 13.0 for sm_100f. The order of the kernels is a test.
__device__ int table[4] = {1, 2, 3, 4};
__constant__ double factors[3];
namespace ns { __device__ char flag; }

extern "C" __global__ void first(const float* x, int n, char c, double d) {
    __shared__ float tile[100];
    tile[threadIdx.x] = x[n];
    __syncthreads();
    ((float*)x)[0] = tile[5] + d + c + table[n] + factors[n] + ns::flag;
}

__global__ void __launch_bounds__(64, 2) second(float* x) {
    float frame[100];
    #pragma unroll 1
    for (int i = 0; i < 100; i++) frame[i] = x[i];
    x[0] = frame[(int)x[3]];
}

template <class T> __global__ void instance(T* x) { x[0] = 1; }
template __global__ void instance<float>(float*);

extern "C" __global__ void nothing() {}
