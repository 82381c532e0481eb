"""A tiled matrix product with 64 KiB of dynamic shared memory: `shared_bytes` is all there is to say."""

from __future__ import annotations

import torch

import jitload

SOURCE = r"""
// c = a @ b; each block of 16x16 threads makes a 64x64 tile of c, each thread 4x4 of it.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int TILE = 64, DEPTH = 128;
    extern __shared__ float tiles[];
    float (*left)[DEPTH] = reinterpret_cast<float (*)[DEPTH]>(tiles);
    float (*right)[TILE] = reinterpret_cast<float (*)[TILE]>(tiles + TILE * DEPTH);
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE, me = threadIdx.y * 16 + threadIdx.x;
    float sums[4][4] = {};
    for (int start = 0; start < k; start += DEPTH) {
        for (int i = me; i < TILE * DEPTH; i += 256) {
            const int r = row + i / DEPTH, p = start + i % DEPTH, q = start + i / TILE, s = column + i % TILE;
            left[i / DEPTH][i % DEPTH] = r < m && p < k ? a[(size_t)r * k + p] : 0;
            right[i / TILE][i % TILE] = q < k && s < n ? b[(size_t)q * n + s] : 0;
        }
        __syncthreads();
        for (int p = 0; p < DEPTH; ++p)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j)
                    sums[i][j] += left[threadIdx.y + 16 * i][p] * right[p][threadIdx.x + 16 * j];
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            const int r = row + threadIdx.y + 16 * i, s = column + threadIdx.x + 16 * j;
            if (r < m && s < n) c[(size_t)r * n + s] = sums[i][j];
        }
}"""

LAUNCH = jitload.Launch(
    grid=("ceil_div(n, 64)", "ceil_div(m, 64)"),
    block=(16, 16),
    shared_bytes=2 * 64 * 128 * 4,
    args={"m": "a.shape[0]", "k": "a.shape[1]", "n": "b.shape[1]"},
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU the same source runs on the CPU
mod = jitload.load_inline("matmul", cuda_sources=SOURCE, functions={"matmul": LAUNCH})
registers = mod.matmul.kernel.registers or "no"
print(f"{mod.matmul.kernel}: {registers} registers, {LAUNCH.shared_bytes} bytes of shared memory")
a, b = torch.randn(700, 513, device=DEVICE), torch.randn(513, 900, device=DEVICE)
c = torch.empty(700, 900, device=DEVICE)
mod.matmul(a, b, c)
torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)
print(f"matmul: equal to torch's result on {tuple(a.shape)} @ {tuple(b.shape)}")
