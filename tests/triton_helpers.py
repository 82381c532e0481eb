"""Functions that the kernels of triton_zoo call from another module, where they have globals of their own."""

import triton
import triton.language as tl

SHIFT = tl.constexpr(3)
SCALE = tl.constexpr(2)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def halve(x):
    return x * 0.5


@triton.jit
def shift(x, by: tl.constexpr = SHIFT):
    return x + by


@triton.jit
def apply(x, function: tl.constexpr, scale=2.0):
    return shift(function(x)) * scale
