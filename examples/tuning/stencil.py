"""Mean of each point and its four neighbours: the shape of the block, and the rows of a thread, a macro."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jitload import Launch, Tune

SOURCE = r"""
extern "C" __global__ void smooth(const float* x, float* y, int rows, int columns) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    int first = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    #pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        int i = first + k;
        if (i >= rows || j >= columns) return;
        size_t at = size_t(i) * columns + j;
        float sum = x[at];
        if (i > 0) sum += x[at - columns];
        if (i + 1 < rows) sum += x[at + columns];
        if (j > 0) sum += x[at - 1];
        if (j + 1 < columns) sum += x[at + 1];
        y[at] = 0.2f * sum;
    }
}
"""
FUNCTIONS = {
    "smooth": Launch(
        grid=("ceil_div(columns, BX)", "ceil_div(rows, BY * R)"),
        block=("BX", "BY"),
        args={"rows": "x.shape[0]", "columns": "x.shape[1]"},
        tune=Tune(BX=(32, 64, 128), BY=(1, 2, 4, 8), R=(1, 2, 4, 8), key=("rows", "columns")),
    )
}
OPTIONS = ["-DROWS={R}"]


def arguments(device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the arguments of a call for each key."""
    for rows, columns in ((2048, 2048), (16384, 8192)) if device == "cuda" else ((30, 40),):
        x = torch.rand(rows, columns, device=device)
        yield x, torch.empty_like(x)


def reference(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]], device=x.device)
    return torch.nn.functional.conv2d(x[None, None], weights[None, None], padding=1)[0, 0]


def flop(args: tuple[torch.Tensor, ...]) -> int:
    """Return the number of additions and multiplications."""
    return 5 * args[0].numel()
