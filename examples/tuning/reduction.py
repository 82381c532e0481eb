"""Sum of each row: threads per row, and elements that a thread adds in each step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jitload import Launch, Tune

SOURCE = r"""
template <int B, int V>
__global__ void __launch_bounds__(B) row_sum(const float* x, float* sums, int columns) {
    __shared__ float partial[B];
    const float* row = x + size_t(blockIdx.x) * columns;
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += B * V) {
        #pragma unroll
        for (int j = 0; j < V; ++j)
            if (i + j * B < columns) sum += row[i + j * B];
    }
    partial[threadIdx.x] = sum;
    for (int width = B / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}
"""
FUNCTIONS = {
    "row_sum": Launch(
        kernel="row_sum<{B}, {V}>",
        grid="x.shape[0]",
        block="B",
        args={"columns": "x.shape[1]"},
        tune=Tune(B=(32, 64, 128, 256, 512, 1024), V=(1, 2, 4, 8), key="next_power_of_2(columns)", nearest="log2"),
    )
}
OPTIONS: list[str] = []


def arguments(device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the arguments of a call for each key."""
    for rows, columns in ((65536, 256), (4096, 8192), (132, 1 << 20)) if device == "cuda" else ((8, 100),):
        yield torch.rand(rows, columns, device=device), torch.empty(rows, device=device)


def reference(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x.double().sum(1).float()


def flop(args: tuple[torch.Tensor, ...]) -> int:
    """Return the number of additions."""
    return args[0].numel()
