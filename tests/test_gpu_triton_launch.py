"""What a launch of a Triton kernel does on a GPU beyond a usual one: scratch memory, tensor descriptors.

The kernels are CUDA C++ with the parameters of Triton's, so that no Triton is needed.
"""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi
from support.gpu import new_stream
from support.kernels_hopper import fetch_tile
from support.triton import (
    TensorDescriptor,
    build_triton,
    descriptor_parameters,
    function,
    multiple,
    parameter,
    specialize,
    stand_in,
)

import jitload
from jitload.model import Descriptor
from jitload.request.request import TritonSource

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

THREADS = 128
BLOCKS = 64
SPIN = 2_000_000  # cycles, about a millisecond

# Each block keeps numbers in its part of the scratch memory while time goes by, and then gives them away.
KEEP = f"""
    int* kept = (int*)p2 + (long long)blockIdx.x * {THREADS};
    kept[threadIdx.x] = p1 + blockIdx.x * {THREADS} + threadIdx.x;
    __syncthreads();
    long long start = clock64();
    while (clock64() - start < {SPIN}) {{}}
    const int is_right = (unsigned long long)p2 % 128 == 0 && p3 == 0;
    ((int*)p0)[blockIdx.x * {THREADS} + threadIdx.x] = is_right ? *(volatile int*)&kept[threadIdx.x] : -1;
"""
# One tile of 8 rows and 32 columns at a place of the matrix; then what the kernel was told of its layout.
FETCH = f"""
    float* out = (float*)p5;
{fetch_tile(map="p0", column="p6", row="p7", out="out")}
    if (threadIdx.x == 0) out[256] = p1, out[257] = p2, out[258] = p3, out[259] = p4;
"""


def _keeper(arch: str) -> TritonSource:
    arguments = [parameter("out", "*i32"), parameter("first", "i32")]
    spec = specialize(
        "keep", arguments, scratch_bytes=4 * THREADS, scratch_alignment=128, assumptions=(multiple("out"),)
    )
    return function("keep", ("keep", stand_in(spec, arch, body=KEEP)), grid=BLOCKS)


def _fetch(arch: str) -> TritonSource:
    matrix, out = parameter("matrix", "tensordesc<fp32[8, 32]>", "float32"), parameter("out", "*fp32")
    parameters_ = [parameter("column", "i32"), parameter("row", "i32")]
    described = Descriptor(parameter="matrix", dtype="float32", block_shape=(8, 32), elem_size=4, elem_type=7)
    taken = [*descriptor_parameters("matrix", 2), out, *parameters_]
    spec = specialize(
        "fetch", [matrix, out, *parameters_], parameters=taken, descriptors=(described,), hidden_pointers=0
    )
    return function("fetch", ("fetch", stand_in(spec, arch, body=FETCH)))


@functools.cache
def build(arch: str = "native") -> Path:
    """Build the library once; it stays until the process ends."""
    return build_triton(Path(tempfile.mkdtemp(prefix="jitload-test-")) / "gpu", _keeper(arch), _fetch(arch))


@functools.cache
def load() -> jitload.Module:
    return jitload.load_module(build())


def ints() -> torch.Tensor:
    return torch.zeros(BLOCKS * THREADS, dtype=torch.int32, device="cuda")


def expected(first: int) -> torch.Tensor:
    return torch.arange(first, first + BLOCKS * THREADS, dtype=torch.int32, device="cuda")


def overwrite(count: int = 20) -> None:
    """Take memory of the size of the scratch from torch's current stream, and fill it with something else."""
    for _ in range(count):
        torch.full((BLOCKS * THREADS,), -2, dtype=torch.int32, device="cuda")


def test_scratch_comes_from_torch_and_goes_back():
    out = ints()
    load().keep(out, 5)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    load().keep(out, 7)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1
    assert torch.cuda.memory_allocated() == held
    assert torch.equal(out, expected(7))


def test_scratch_is_used_again_only_behind_the_launch():
    outs = [ints() for _ in range(10)]
    for number, out in enumerate(outs):
        load().keep(out, 1000 * number)
        overwrite()
    for number, out in enumerate(outs):
        assert torch.equal(out, expected(1000 * number))


@pytest.mark.parametrize("is_given", [False, True])
def test_scratch_on_a_side_stream_is_not_taken_away(is_given):
    """With `f[grid, None, None, stream]` torch's current stream is another one, whose memory others may get at once."""
    out, side = ints(), new_stream()
    load().keep(out, 0)
    torch.cuda.synchronize()
    for first in range(0, 50_000, 5000):
        if is_given:
            load().keep[None, None, None, side](out, first)
        else:
            with torch.cuda.stream(side):
                load().keep(out, first)
        overwrite()
        side.synchronize()
        assert torch.equal(out, expected(first))


def test_scratch_in_a_captured_graph():
    out, first_out = ints(), ints()
    module = jitload.load_module(_copy())  # nothing of it has been launched
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.keep(first_out, 11)
        module.keep(out, 13)
        out.add_(1)
    for _ in range(3):
        out.zero_(), first_out.zero_()
        overwrite()
        graph.replay()
        overwrite()
        torch.cuda.synchronize()
        assert torch.equal(out, expected(14))
        assert torch.equal(first_out, expected(11))


def test_scratch_from_the_driver_in_a_captured_graph():
    """A stream that is captured without being torch's current one: the driver's memory nodes."""
    out, side = ints(), new_stream()
    load().keep[None, None, None, side](out, 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=new_stream()):
        side.wait_stream(torch.cuda.current_stream())
        load().keep[None, None, None, side](out, 17)
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(3):
        out.zero_()
        graph.replay()
        overwrite()
        torch.cuda.synchronize()
        assert torch.equal(out, expected(17))


def test_scratch_from_plain_tvm_ffi():
    out, side = ints(), new_stream()
    module = tvm_ffi.load_module(str(_copy()))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        module.keep(out, 3)
        overwrite()
    side.synchronize()
    assert torch.equal(out, expected(3))


def _copy() -> Path:
    copy = Path(tempfile.mkdtemp(prefix="jitload-test-")) / "kernels.so"
    copy.write_bytes(build().read_bytes())
    return copy


def fetch(matrix: Any, column: int, row: int) -> tuple[torch.Tensor, list[float]]:
    out = torch.zeros(260, device="cuda")
    load().fetch(matrix, out, column, row)
    return out[:256].view(8, 32), out[256:].tolist()


@pytest.mark.usefixtures("hopper")
def test_a_tensor_is_described_to_the_hardware():
    matrix = torch.rand(100, 104, device="cuda")[:, :100]
    tile, layout = fetch(matrix, 16, 24)
    assert torch.equal(tile, matrix[24:32, 16:48])
    assert layout == [100, 100, 104, 1]
    tile, _ = fetch(matrix, 80, 96)
    assert torch.equal(tile[:4, :20], matrix[96:, 80:])
    assert torch.count_nonzero(tile).item() <= 80


@pytest.mark.usefixtures("hopper")
def test_triton_s_object_describes_a_part_and_its_padding():
    base = torch.rand(64 * 64, device="cuda")
    part = TensorDescriptor(base, [10, 40], [64, 1], [8, 32], "nan")
    torch.cuda.synchronize()
    with torch.cuda.stream(new_stream()):
        tile, layout = fetch(part, 20, 6)
        torch.cuda.current_stream().synchronize()
    assert layout == [10, 40, 64, 1]
    assert torch.equal(tile[:4, :20], base.view(64, 64)[6:10, 20:40])
    assert tile[4:].isnan().all()
    assert tile[:, 20:].isnan().all()
