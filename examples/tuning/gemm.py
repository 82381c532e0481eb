"""Product of matrices in float32: the tile of a block, its depth, and the tile of a thread."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jitload import Launch, Tune

SOURCE = r"""
template <int M, int N, int K, int TM, int TN>
__global__ void __launch_bounds__((M / TM) * (N / TN))
gemm(const float* a, const float* b, float* c, int rows, int columns, int depth) {
    constexpr int kThreads = (M / TM) * (N / TN);
    __shared__ float left[K][M], right[K][N];
    int x = threadIdx.x % (N / TN), y = threadIdx.x / (N / TN);
    int top = blockIdx.y * M, start = blockIdx.x * N;
    float sums[TM][TN] = {};
    for (int first = 0; first < depth; first += K) {
        for (int i = threadIdx.x; i < M * K; i += kThreads) {
            int row = top + i / K, k = first + i % K;
            left[i % K][i / K] = row < rows && k < depth ? a[size_t(row) * depth + k] : 0.0f;
        }
        for (int i = threadIdx.x; i < K * N; i += kThreads) {
            int k = first + i / N, column = start + i % N;
            right[i / N][i % N] = k < depth && column < columns ? b[size_t(k) * columns + column] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < K; ++k) {
            float from_left[TM], from_right[TN];
            #pragma unroll
            for (int i = 0; i < TM; ++i) from_left[i] = left[k][y * TM + i];
            #pragma unroll
            for (int j = 0; j < TN; ++j) from_right[j] = right[k][x + j * (N / TN)];
            #pragma unroll
            for (int i = 0; i < TM; ++i)
                #pragma unroll
                for (int j = 0; j < TN; ++j) sums[i][j] += from_left[i] * from_right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) {
            int row = top + y * TM + i, column = start + x + j * (N / TN);
            if (row < rows && column < columns) c[size_t(row) * columns + column] = sums[i][j];
        }
    }
}
"""
FUNCTIONS = {
    "gemm": Launch(
        kernel="gemm<{M}, {N}, {K}, {TM}, {TN}>",
        grid=("ceil_div(columns, N)", "ceil_div(rows, M)"),
        block="(M // TM) * (N // TN)",
        args={"rows": "a.shape[0]", "columns": "b.shape[1]", "depth": "a.shape[1]"},
        tune=Tune(
            M=(32, 64, 128),
            N=(32, 64, 128),
            K=(8, 16),
            TM=(4, 8),
            TN=(4, 8),
            when="64 <= (M // TM) * (N // TN) <= 512 and 4 * K * (M + N) <= 49152",
            key=("rows", "columns", "depth"),
            nearest="log2",
        ),
    )
}
OPTIONS: list[str] = []


def arguments(device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the arguments of a call for each key."""
    for m, n, k in ((256, 256, 256), (2048, 2048, 2048)) if device == "cuda" else ((20, 40, 30),):
        matrices = torch.rand(m, k, device=device), torch.rand(k, n, device=device)
        yield *matrices, torch.empty(m, n, device=device)


def reference(a: torch.Tensor, b: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).float()


def flop(args: tuple[torch.Tensor, ...]) -> int:
    """Return the number of additions and multiplications."""
    return 2 * args[0].numel() * args[1].shape[1]
