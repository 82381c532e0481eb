"""GELU of each element: threads per block, and elements that a thread loads at once, for three dtypes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jitload import Launch, Tune

SOURCE = r"""
template <class T, int V> struct alignas(sizeof(T) * V) Pack { T items[V]; };

template <class T, int V>
__global__ void gelu(const T* x, T* y, int n) {
    int start = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (start + V <= n) {
        Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(x + start);
        #pragma unroll
        for (int i = 0; i < V; ++i) {
            float v = float(pack.items[i]);
            pack.items[i] = T(0.5f * v * (1.0f + erff(v * 0.70710678f)));
        }
        *reinterpret_cast<Pack<T, V>*>(y + start) = pack;
    } else {
        for (int i = start; i < n; ++i) y[i] = T(0.5f * float(x[i]) * (1.0f + erff(float(x[i]) * 0.70710678f)));
    }
}
"""
FUNCTIONS = {
    "gelu": Launch(
        kernel="gelu<{x.dtype}, {V}>",
        grid="ceil_div(n, B * V)",
        block="B",
        args={"n": "x.numel()"},
        tune=Tune(B=(64, 128, 256, 512, 1024), V=(1, 2, 4, 8), key="next_power_of_2(n)", nearest="log2"),
    )
}
OPTIONS: list[str] = []


def arguments(device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the arguments of a call for each key and dtype."""
    sizes, dtypes = (
        ((1 << 20, 1 << 26), (torch.float32, torch.bfloat16)) if device == "cuda" else ((5000,), (torch.float32,))
    )
    for dtype in dtypes:
        for size in sizes:
            x = torch.randn(size, device=device, dtype=dtype)
            yield x, torch.empty_like(x)


def reference(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x)


def flop(_: tuple[torch.Tensor, ...]) -> None:
    """Return None: the memory limits this kernel."""
