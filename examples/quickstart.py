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
    arch="native" if torch.cuda.is_available() else "sm_90a",
)
print(mod)
print(f"{mod.axpy.kernel}: {mod.axpy.kernel.registers} registers")

try:
    mod.axpy(2.0, torch.ones(4), torch.ones(4), torch.ones(4))  # tensors on the CPU
except ValueError as error:
    print(f"refused: {error}")

if torch.cuda.is_available():
    x, y = torch.randn(2, 100_000, device="cuda")
    out = torch.empty_like(x)
    mod.axpy(2.0, x, y, out)  # on torch's current stream
    torch.testing.assert_close(out, 2 * x + y)
    print("axpy: equal to torch's result on 100000 elements")
else:
    print("no GPU here: launching needs one")
