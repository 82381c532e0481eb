"""Compile a kernel, call it like a function, and see what a wrong call says."""

from __future__ import annotations

import torch

import jitload

SOURCE = r"""
// Write a*x + y to out.
extern "C" __global__ void axpy(float a, const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}"""

mod = jitload.load_inline(
    "quickstart",
    cuda_sources=SOURCE,
    functions={"axpy": jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})},
)
print(mod)
print(f"{mod.axpy.kernel}: {mod.axpy.kernel.registers or 'no'} registers")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU the same source runs on the CPU
x, y = torch.randn(2, 100_000, device=DEVICE)
out = torch.empty_like(x)
try:
    mod.axpy(2.0, x.half(), y, out)
except TypeError as error:
    print(f"refused: {error}")

mod.axpy(2.0, x, y, out)  # on torch's current stream
torch.testing.assert_close(out, 2 * x + y)
print("axpy: equal to torch's result on 100000 elements")
