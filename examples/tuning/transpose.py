"""Transpose of a matrix: the tile in shared memory, its padding, and the rows of threads that copy it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jitload import Launch, Tune

SOURCE = r"""
template <int T, int R, int P>
__global__ void transpose(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[T][T + P];
    int column = blockIdx.x * T + threadIdx.x;
    for (int i = threadIdx.y; i < T; i += R) {
        int row = blockIdx.y * T + i;
        if (row < rows && column < columns) tile[i][threadIdx.x] = x[size_t(row) * columns + column];
    }
    __syncthreads();
    int row = blockIdx.y * T + threadIdx.x;
    for (int i = threadIdx.y; i < T; i += R) {
        int column = blockIdx.x * T + i;
        if (row < rows && column < columns) y[size_t(column) * rows + row] = tile[threadIdx.x][i];
    }
}
"""
FUNCTIONS = {
    "transpose": Launch(
        kernel="transpose<{T}, {R}, {P}>",
        grid=("ceil_div(columns, T)", "ceil_div(rows, T)"),
        block=("T", "R"),
        args={"rows": "x.shape[0]", "columns": "x.shape[1]"},
        tune=Tune(T=(16, 32, 64), R=(4, 8, 16, 32), P=(0, 1), when="R <= T and T * R <= 1024", key=("rows", "columns")),
    )
}
OPTIONS: list[str] = []


def arguments(device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the arguments of a call for each key."""
    for rows, columns in ((8192, 8192), (1024, 65536)) if device == "cuda" else ((50, 70),):
        yield torch.rand(rows, columns, device=device), torch.empty(columns, rows, device=device)


def reference(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


def flop(_: tuple[torch.Tensor, ...]) -> None:
    """Return None: nothing is computed."""
