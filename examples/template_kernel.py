"""Template instantiations, overloads and namespaces: `Launch(kernel=…)` names a kernel as C++ does."""

from __future__ import annotations

import functools

import torch

import jitload

SOURCE = r"""
namespace ops {
struct Square { template <class T> __device__ T operator()(T x) const { return x * x; } };
struct Negate { template <class T> __device__ T operator()(T x) const { return -x; } };

template <class T, class Op, int PER_THREAD>
__global__ void map(const T* x, T* y, int n) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * PER_THREAD;
    for (int i = first; i < min(first + PER_THREAD, n); ++i) y[i] = Op()(x[i]);
}
}  // namespace ops

__global__ void fill(float* x, float value, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value; }
__global__ void fill(int* x, int value, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value; }
"""

Map = functools.partial(jitload.Launch, grid="ceil_div(n, 4 * 128)", block=128, args={"n": "x.numel()"})
Fill = functools.partial(jitload.Launch, grid=1, block=256, args={"n": "x.numel()"})
mod = jitload.load_inline(
    "template_kernel",
    cuda_sources=SOURCE,
    functions={
        "square_float": Map(kernel="ops::map<float, ops::Square, 4>"),
        "square_int": Map(kernel="ops::map<int, ops::Square, 4>"),
        "negate_double": Map(kernel="ops::map<double, ops::Negate, 4>"),
        "fill_float": Fill(kernel="fill(float*, float, int)"),
        "fill_int": Fill(kernel="fill(int*, int, int)"),
    },
)
for name in mod:
    print(f"{name}: {mod[name].kernel}, {mod[name].kernel.registers or 'no'} registers")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU the same source runs on the CPU
for name, dtype in (("square_float", torch.float32), ("square_int", torch.int32), ("negate_double", torch.float64)):
    x = torch.arange(-500, 501, device=DEVICE, dtype=dtype)
    y = torch.empty_like(x)
    mod[name](x, y)
    assert torch.equal(y, -x if name == "negate_double" else x * x)
floats, integers = torch.zeros(1000, device=DEVICE), torch.zeros(1000, dtype=torch.int32, device=DEVICE)
mod.fill_float(floats, 1.5)
mod.fill_int(integers, -3)
assert torch.equal(floats, torch.full_like(floats, 1.5))
assert torch.equal(integers, torch.full_like(integers, -3))
print("all five: equal to torch's results")
