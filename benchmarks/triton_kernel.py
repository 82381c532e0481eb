"""The trivial kernel in Triton, in a file of its own: Triton reads its text and the globals around it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add_one(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  Triton's form
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1.0, mask=i < n)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def fifteen(x, y, out, a, b, c, d, e, f, g, h, i, j, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  Triton's form
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = a + b + c + d + e + f + g + h + i + j
    value = tl.load(x + k, mask=k < n) * factor + tl.load(y + k, mask=k < n) + total
    tl.store(out + k, value, mask=k < n)


@triton.autotune(  # type: ignore[untyped-decorator, unused-ignore]
    [
        triton.Config({"BM": rows, "BN": columns, "BK": depth, "GROUP": 8}, num_stages=stages, num_warps=warps)
        for rows, columns, depth, stages, warps in (
            (128, 256, 64, 3, 8),
            (256, 128, 64, 3, 8),
            (128, 256, 64, 4, 8),
            (128, 128, 64, 4, 4),
            (128, 128, 64, 3, 8),
            (64, 256, 32, 4, 4),
            (128, 64, 32, 4, 4),
        )
    ],
    key=["m", "n", "k"],
)
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def product(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  Triton's form
    """Compute c = a @ b.T for (m, k) and (n, k). Programs go through groups of rows for the sake of the L2 cache."""
    program, high, wide = tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN)
    first = program // (GROUP * wide) * GROUP
    height = min(high - first, GROUP)
    rows = (first + program % height) * BM + tl.arange(0, BM)
    columns = program % (GROUP * wide) // height * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    a_tile = a + (rows % m)[:, None] * k + depth[None, :]
    b_tile = b + (columns % n)[None, :] * k + depth[:, None]
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a_tile, mask=depth[None, :] < k - start, other=0.0)
        right = tl.load(b_tile, mask=depth[:, None] < k - start, other=0.0)
        sums = tl.dot(left, right, sums)
        a_tile += BK
        b_tile += BK
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], sums.to(tl.bfloat16), mask=inside)


@triton.autotune(  # type: ignore[untyped-decorator, unused-ignore]
    [
        triton.Config({"B": block}, num_warps=warps, num_stages=stages)
        for block in (512, 1024, 2048, 4096)
        for warps in (2, 4, 8)
        for stages in (1, 3)
    ],
    key=["columns"],
)
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def row_sum(x, sums, columns, B: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  Triton's form
    row = tl.program_id(0)
    total = tl.zeros((B,), tl.float32)
    for first in range(0, columns, B):
        at = first + tl.arange(0, B)
        total += tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    tl.store(sums + row, tl.sum(total, 0))
