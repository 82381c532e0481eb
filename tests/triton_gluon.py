"""Gluon kernels for the tests."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def copy(x_ptr, y_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y_ptr + offsets, gl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


@gluon.jit
def copy_tile(tile, y_ptr, BLOCK: gl.constexpr):
    """Load a tile through a descriptor, with the layout in shared memory that its type holds."""
    shared = gl.allocate_shared_memory(tile.dtype, tile.block_type.shape, tile.layout)
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    mbarrier.expect(done, tile.block_type.nbytes)
    load_tile(tile, [0, 0], done, shared)
    mbarrier.wait(done, 0)
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    row = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, layout))
    gl.store(y_ptr + row[:, None] * BLOCK + column[None, :], shared.load(layout))
