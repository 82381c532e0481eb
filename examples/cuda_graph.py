"""Launches in a CUDA graph: captured on torch's stream, the very first call included, and replayed."""

from __future__ import annotations

import torch

import jitload

SOURCE = r"""
// One step of x towards the solution of cos(x) = x.
extern "C" __global__ void step(const float* x, float* next, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) next[i] = x[i] - (cosf(x[i]) - x[i]) / (-sinf(x[i]) - 1);
}"""

LAUNCH = jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})
ARCH = "native" if torch.cuda.is_available() else "sm_90a"
mod = jitload.load_inline("cuda_graph", cuda_sources=SOURCE, functions={"step": LAUNCH}, arch=ARCH)
print(f"{mod.step.kernel}: {mod.step.kernel.registers or 'no'} registers")

if torch.cuda.is_available():
    x = torch.empty(10_000, device="cuda")
    next_x = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):  # no warm-up: these are the first calls there are
            mod.step(x, next_x)
            mod.step(next_x, x)
    for start in (0.0, 0.5, 1.0):
        x.fill_(start)
        graph.replay()
        assert torch.allclose(x, torch.cos(x), atol=1e-6)
    print(f"graph of 8 launches, replayed 3 times: cos(x) = x at {x[0].item():.6f}")
else:
    print("no GPU here: launching needs one")
