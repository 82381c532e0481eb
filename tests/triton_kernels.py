"""Triton kernels of the kinds people write, for the tests; importable with Triton alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

SCALE = tl.constexpr(3)


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Add two vectors."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def square_kernel(X_ptr, Y_ptr, n, BLOCK: tl.constexpr = 1024):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(X_ptr + offsets, mask=mask, other=0.0)
    tl.store(Y_ptr + offsets, x * x, mask=mask)


@triton.jit
def softmax(x_ptr, out_ptr, x_stride, out_stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Fused softmax over rows, each program taking several where there are fewer programs than rows."""
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * out_stride + columns, e / tl.sum(e, axis=0), mask=mask)


@triton.jit
def histogram(values_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    bins = tl.load(values_ptr + offsets, mask=mask, other=0)
    tl.atomic_add(counts_ptr + bins, 1, mask=mask)


@triton.jit
def persistent_matmul(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Multiply a (M, K) by the transpose of b (N, K) through tensor descriptors; each program does several tiles."""
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), rows * columns, PROGRAMS):
        at_m = (tile // columns) * BLOCK_M
        at_n = (tile % columns) * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([at_m, step * BLOCK_K])
            b = b_desc.load([at_n, step * BLOCK_K])
            total = tl.dot(a, b.T, total)
        c_desc.store([at_m, at_n], total.to(tl.float16))


@triton.jit
def device_descriptor_copy(x_ptr, y_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Copy through descriptors made on the device: the kernel asks for global scratch."""
    x_desc = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    y_desc = tl.make_tensor_descriptor(y_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    at_m, at_n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    y_desc.store([at_m, at_n], x_desc.load([at_m, at_n]))


@triton.jit
def scalars(out_ptr, flag, small, n, big, huge, x, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = small.to(tl.float32) + n.to(tl.float32) + big.to(tl.float32) + huge.to(tl.float32) + x
    value = tl.where(flag, value, 0.0)
    tl.store(out_ptr + offsets, value * SCALE)


@triton.jit
def of_a_tuple(pair, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(pair[1] + offsets, tl.load(pair[0] + offsets, mask=mask) * pair[2], mask=mask)


@triton.jit
def optional_bias(x_ptr, bias_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets * stride, mask=mask)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x, mask=mask)


@triton.jit(do_not_specialize=["seed"], do_not_specialize_on_alignment=["n"])
def unspecialised(x_ptr, seed, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.rand(seed, offsets), mask=offsets < n)


def _renamed(specialization):
    return f"renamed_{specialization.constants.get('BLOCK', 0)}" if hasattr(specialization, "constants") else "renamed"


@triton.jit(repr=_renamed)
def with_repr(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, 1.0, mask=offsets < n)


@triton.jit
def two_blocks(x_ptr, n, HALF: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, HALF, mask=offsets < n)


@triton.jit
def copy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))


@triton.jit
def store_scalar(out_ptr, x):
    tl.store(out_ptr, x.to(tl.float64))


@triton.jit
def broken(x_ptr):
    tl.store(x_ptr + tl.arange(0, 3), 1.0)


@triton.jit
def specialised_matmul(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply one tile a program, with warps that load beside warps that multiply."""
    at_m, at_n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(tl.cdiv(K, BLOCK_K), warp_specialize=True):
        a = a_desc.load([at_m, step * BLOCK_K])
        b = b_desc.load([at_n, step * BLOCK_K])
        total = tl.dot(a, b.T, total)
    c_desc.store([at_m, at_n], total.to(tl.float16))


@triton.jit
def staged(x_ptr, out_ptr, n, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    """Has a constexpr of an option's name, as the softmax of Triton's tutorial has."""
    for start in tl.range(0, n, BLOCK, num_stages=num_stages):
        offsets = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def decided(x_ptr, bias_ptr, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Has constexprs as `@triton.heuristics` decides them."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    if HAS_BIAS:
        x += tl.load(bias_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, x, mask=offsets < n)


class Pair(NamedTuple):
    """Arguments that a kernel takes by name."""

    source: Any
    target: Any
    scale: Any


@triton.jit
def of_a_sized_tuple(pair, n):
    offsets = tl.program_id(0) * pair[2] + tl.arange(0, pair[2])
    mask = offsets < n
    tl.store(pair[1] + offsets, tl.load(pair[0] + offsets, mask=mask), mask=mask)


@triton.jit
def with_a_default_of_an_option(x_ptr, num_warps: tl.constexpr = 8):
    """Has a default that is not an option unless a call passes it."""
    tl.store(x_ptr + tl.arange(0, 64), num_warps)


def tuned(*configs: triton.Config) -> Callable[[Any], Any]:
    """Return the decorator for a kernel tuned for its sizes."""

    def decorate(kernel: Any) -> Any:
        sizes = [name for name in kernel.arg_names if name in ("n", "M")]
        return triton.autotune(list(configs), sizes)(kernel)

    return decorate


@tuned(triton.Config({"BLOCK": 512}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8))
@triton.jit
def tuned_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)
