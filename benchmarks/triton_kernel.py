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
