"""Small kernels, each with something that the others have not, of the kinds that serve and train models."""

from enum import IntEnum

import triton
import triton.language as tl
import triton_helpers as helpers
from triton.language.extra import libdevice
from triton_helpers import silu


class Mode(IntEnum):
    SKIP = 1
    FILL = 2


@triton.jit
def add_bias(
    x_ptr, more_ptr, x_step: tl.int64, n, bias: tl.float32,
    HAS_MORE: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr = tl.bfloat16,
):  # fmt: skip
    """Annotated types, a pointer that may be None, a type as a constexpr with a default."""
    offsets = tl.program_id(0).to(tl.int64) * x_step + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    if HAS_MORE:
        x += tl.load(more_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    tl.store(x_ptr + offsets, (x + bias).to(DTYPE), mask=offsets < n)


@triton.jit
def fill(x_ptr, mask_ptr, value, is_inverse: tl.int1, n, BLOCK: tl.constexpr):
    """A pointer of one-bit numbers, and one as a scalar."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(mask_ptr + offsets, mask=offsets < n, other=0).to(tl.int1) ^ is_inverse
    tl.store(x_ptr + offsets, value, mask=chosen & (offsets < n))


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, n: tl.int64, width, scale=1.0, offset=0, BLOCK: tl.constexpr = 256):
    """Defaults of run-time parameters."""
    row = tl.load(index_ptr + tl.program_id(0)).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + offsets, mask=(offsets < width) & (row < n))
    tl.store(out_ptr + tl.program_id(0) * width + offsets, x * scale + offset, mask=offsets < width)


@triton.jit
def gate(x_ptr, out_ptr, n, KIND: tl.constexpr, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """Functions of another module, one of them a constexpr; a text as a constexpr."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    x = silu(x) if KIND == "silu" else helpers.apply(x, FUNCTION)
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=offsets < n)


@triton.jit
def join(pointers, sizes, out_ptr, BLOCK: tl.constexpr):
    """Tuples of pointers and of numbers."""
    offsets = tl.arange(0, BLOCK)
    start = 0
    for part in tl.static_range(len(pointers)):
        tl.store(
            out_ptr + start + offsets,
            tl.load(pointers[part] + offsets, mask=offsets < sizes[part]),
            mask=offsets < sizes[part],
        )
        start += sizes[part]


@triton.jit
def modes(x_ptr, MODE: tl.constexpr, SHAPE: tl.constexpr, DTYPE: tl.constexpr, FLAG: tl.constexpr = None):
    """A member of an enum, a tuple, a type and None as constexprs."""
    offsets = tl.arange(0, SHAPE[0])
    if MODE == 2:
        tl.store(x_ptr + offsets, (offsets * SHAPE[1]).to(DTYPE))
    if FLAG is not None:
        tl.store(x_ptr + SHAPE[0] + offsets, (offsets * 0 + FLAG).to(DTYPE))


@triton.jit
def assorted(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """A function of libdevice and a line of PTX."""
    x = libdevice.tanh(tl.load(x_ptr + tl.arange(0, BLOCK)))
    x = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + tl.arange(0, BLOCK), x)


@triton.jit
def constant(x_ptr: tl.const, out_ptr, BLOCK: tl.constexpr):
    """A pointer to what does not change."""
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)))


@triton.jit
def nothing(BLOCK: tl.constexpr):
    """No run-time parameter at all."""
    tl.static_assert(BLOCK > 0)
