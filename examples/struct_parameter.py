"""A structure by value from ctypes, and a `__constant__` variable that is written through a tensor."""

from __future__ import annotations

import ctypes

import torch

import jitload

SOURCE = r"""
struct Window { int width; float scale; bool is_mirrored; };
__constant__ float weights[5];

// Weight the five values around each element, within the window's borders.
extern "C" __global__ void smooth(const float* x, float* y, Window window) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= window.width) return;
    float sum = 0;
    for (int k = -2; k <= 2; ++k) {
        int j = i + k;
        if (window.is_mirrored) j = j < 0 ? -j : j >= window.width ? 2 * window.width - 2 - j : j;
        if (j >= 0 && j < window.width) sum += weights[k + 2] * x[j];
    }
    y[i] = window.scale * sum;
}"""


class Window(ctypes.Structure):
    """The structure of the kernel, field by field."""

    _fields_ = (("width", ctypes.c_int), ("scale", ctypes.c_float), ("is_mirrored", ctypes.c_bool))


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU the same source runs on the CPU
LAUNCH = jitload.Launch(grid="ceil_div(x.numel(), 256)", block=256)
mod = jitload.load_inline("struct_parameter", cuda_sources=SOURCE, functions={"smooth": LAUNCH})
print(f"{mod.smooth.kernel}: {mod.smooth.kernel.registers or 'no'} registers; Window has {ctypes.sizeof(Window)} bytes")

weights = torch.tensor([1.0, 4, 6, 4, 1], device=DEVICE)
torch.from_dlpack(jitload.global_tensor(mod, "weights", torch.float32, 5)).copy_(weights)
x = torch.randn(1000, device=DEVICE)
for is_mirrored in (False, True):
    y = torch.empty_like(x)
    mod.smooth(x, y, Window(x.numel(), 1 / 16, is_mirrored))
    padded = torch.nn.functional.pad(x[None, None], (2, 2), "reflect" if is_mirrored else "constant")
    expected = torch.nn.functional.conv1d(padded.double(), weights[None, None].double() / 16)
    torch.testing.assert_close(y.double(), expected.flatten(), rtol=1e-5, atol=1e-5)
print("smooth: equal to torch's convolution, mirrored and not")
