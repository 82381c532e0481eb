"""The modules of the GPU tests, by name: a machine without a GPU builds and loads every one of them, too."""

from typing import Any

import jitload
from jitload import Launch

from . import kernels_hopper as hopper

ROWS: dict[str, Any] = {"grid": "ceil_div(x.numel(), 256)", "block": 256, "args": {"n": "x.numel()"}}
ONE: dict[str, Any] = {"grid": 1, "block": 1}


def load(name: str, arch: str = "native") -> jitload.Module:
    """Compile and load one of `PROGRAMS`."""
    source, functions = PROGRAMS[name]
    return jitload.load_inline(name, cuda_sources=source, functions=functions, arch=arch)


def build(name: str, output: str) -> str:
    """Compile one of `PROGRAMS` into a library."""
    source, functions = PROGRAMS[name]
    return jitload.build_inline(name, cuda_sources=source, functions=functions, output=output)


VECTOR = r"""
// Add one to each element.
extern "C" __global__ void add_one(const float* x, float* y, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}
extern "C" __global__ void add_to_bytes(unsigned char* x, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += (unsigned char)(1 + (i >> 31));
}
extern "C" __global__ void narrow(unsigned char* x, int n) {}
"""
VECTOR_FUNCTIONS = {name: Launch(**ROWS) for name in ("add_one", "add_to_bytes", "narrow")}


ELEMENTS = {
    "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int",
    "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long", "float16": "__half",
    "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double", "bool": "bool",
    "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2",
}  # fmt: skip
COPY = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
template <class T> __global__ void copy(const T* __restrict__ x, T* y, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
"""
COPY_FUNCTIONS = {f"copy_{dtype}": Launch(kernel=f"copy<{type_}>", **ROWS) for dtype, type_ in ELEMENTS.items()}

BLOCK_SIZES = (1, 7, 4096, 32752)
STRUCTS = r"""
struct Pair { float a; int b; };
struct Empty {};
enum class Mode : short { LOW = -3, HIGH = 700 };
template <int N> struct Block { unsigned char data[N]; };
namespace device {
// Sum bytes, each with a weight of its own, so that none can be lost or moved.
template <int N> __global__ void sum_block(const __grid_constant__ Block<N> block, long long* out) {
    long long sum = 0;
    #pragma unroll 1  // the compiler would take seconds
    for (int i = 0; i < N; ++i) sum += block.data[i] * (i % 251 + 1);
    *out = sum;
}
}  // namespace device
extern "C" __global__ void mixed(bool b, float* p, short h, Pair s, unsigned char c, double d, Empty, Mode m, int i,
                                 Block<3> o, long long l, double* out) {
    const double values[] = {double(b), *p, double(h), s.a, double(s.b), double(c), d, double(short(m)), double(i),
                             double(o.data[0]), double(o.data[2]), double(l)};
    for (int k = 0; k < 12; ++k) out[k] = values[k];
}
extern "C" __global__ void sum_pairs(const Pair* pairs, float* out, int n) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += pairs[i].a * pairs[i].b;
    *out = sum;
}
"""
STRUCT_FUNCTIONS = {
    **{f"sum_block_{size}": Launch(kernel=f"device::sum_block<{size}>", **ONE) for size in BLOCK_SIZES},
    "mixed": Launch(**ONE),
    "sum_pairs": Launch(**ONE),
}


STREAMS = r"""
__device__ int flag;
__device__ int seen;
extern "C" __global__ void look() { seen = flag; }
"""
VARIABLES = r"""
namespace filter { __constant__ float coefficients[4] = {1, 2, 3, 4}; }
__device__ long long counter = 5;
__device__ float samples[4] = {1, 10, 100, 1000};
extern "C" __global__ void apply(const float* x, float* out) {
    float sum = 0;
    if (x == nullptr) x = samples;
    for (int i = 0; i < 4; ++i) sum += filter::coefficients[i] * x[i];
    *out = sum;
    counter += 10;
}
"""
BOUNDED = r"""
extern "C" __global__ void __launch_bounds__(64) bounded(float* x) { x[threadIdx.x] = threadIdx.x; }
extern "C" __global__ void wild(float* address) { *address = 1.0f; }
extern "C" __global__ void fine(float* x) { *x = 2.0f; }
"""
TALK = r"""
#include <cassert>
#include <cstdio>
extern "C" __global__ void talk(int number, float value) {
    if (threadIdx.x == 0) printf("number %d, value %.2f\n", number, value);
}
extern "C" __global__ void demand(const int* x, int* out, int least) {
    assert(*x >= least);
    *out = *x;
}
"""
FACTS = r"""
extern "C" __global__ void __launch_bounds__(256) facts(const float* x, float* y, int n) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[255 - threadIdx.x] * n;
}
extern "C" __global__ void spills(const int* order, float* y, int n) {
    float local[96];
    for (int i = 0; i < n; ++i) local[order[i]] = i;
    for (int i = 0; i < n; ++i) y[i] = local[order[n - 1 - i]];
}
"""
# The float array of `spilling` is in registers, of which there are too few.
SPILLS = r"""
__device__ __forceinline__ void mix(float* x) {
    float values[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) values[i] = x[i * 7];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 128; ++i) x[i] = values[i] * values[127 - i];
}
__device__ __noinline__ void mix_in_function(float* x) { mix(x); }
extern "C" __global__ __launch_bounds__(1024, 2) void spilling(float* x) { mix(x); }
extern "C" __global__ __launch_bounds__(1024, 2) void spilling_function(float* x) { mix_in_function(x); }
extern "C" __global__ void local_array(const int* order, int* y) {
    int values[64];
    for (int i = 0; i < 64; ++i) values[order[i]] = i;
    y[0] = values[order[1]];
}
extern "C" __global__ void plain(float* x) { x[0] = 1; }
"""
PROGRAMS: dict[str, tuple[str, dict[str, Launch] | None]] = {
    "vector": (VECTOR, VECTOR_FUNCTIONS),
    "elements": (COPY, COPY_FUNCTIONS),
    "structs": (STRUCTS, STRUCT_FUNCTIONS),
    "streams": (STREAMS, {"look": Launch(**ONE)}),
    "variables": (VARIABLES, {"apply": Launch(**ONE, nullable="x")}),
    "bounded": (
        BOUNDED,
        {"bounded": Launch(), "wild": Launch(**ONE, raw_pointers="address"), "fine": Launch(**ONE)},
    ),
    "talk": (TALK, {"talk": Launch(grid=1, block=32), "demand": Launch(**ONE)}),
    "facts": (FACTS, None),
    "shared": (hopper.SHARED, hopper.SHARED_FUNCTIONS),
    "tensor_map": (hopper.TENSOR_MAP, hopper.TENSOR_MAP_FUNCTIONS),
}

# For the checks of calls: one kernel with a race, and one that writes outside a tensor if `n` is too large.
CHECKED = r"""
extern "C" __global__ void reverse(const float* x, float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void shift(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}"""
