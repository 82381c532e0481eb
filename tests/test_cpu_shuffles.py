"""Shuffles of whole warps in vectors: every way and distance, against fibers."""

from __future__ import annotations

import numpy as np
import pytest

import jitload
from jitload.cpptext.declarations import find_candidates
from jitload.cpu.split import split_kernels

TYPES = {"int": "int32", "float": "float32", "double": "float64", "unsigned long long": "uint64"}
FARTHEST = 34  # a lane reads its own value where the other is out of range
KERNEL = """
extern "C" __global__ void k{number}(const {type}* x, {type}* y, int width) {{
  {type} value = x[blockIdx.x * blockDim.x + threadIdx.x];
  y += blockIdx.x * blockDim.x * 4 * {farthest} + threadIdx.x;
  for (int by = 0; by < {farthest}; ++by) {{
    {type} at = __shfl_sync(~0u, value, by, width);
    {type} up = __shfl_up_sync(~0u, value, by, width);
    {type} down = __shfl_down_sync(~0u, value, by, width);
    {type} other = __shfl_xor_sync(~0u, value, by, width);
    y[0] = at;
    y[blockDim.x] = up;
    y[blockDim.x * 2] = down;
    y[blockDim.x * 3] = other;
    y += blockDim.x * 4;
    __syncthreads();
  }}
}}
"""
SOURCE = "".join(KERNEL.format(number=number, type=name, farthest=FARTHEST) for number, name in enumerate(TYPES))


@pytest.fixture(scope="module")
def forms() -> tuple[jitload.Module, jitload.Module]:
    split, fibers = (
        jitload.load_inline("shuffles", cuda_sources=SOURCE, arch="cpu", extra_cuda_cflags=flags)
        for flags in ([], ["-DJITLOAD_CPU_FIBERS"])
    )
    return split, fibers


def test_all_are_loops() -> None:
    assert not split_kernels([("k.cu", SOURCE)], find_candidates([SOURCE])).reasons


@pytest.mark.parametrize("threads", [32, 96, 256])
@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("number", range(len(TYPES)))
def test_each_way(forms: tuple[jitload.Module, jitload.Module], number: int, width: int, threads: int) -> None:
    x = np.random.default_rng(0).integers(1, 1 << 30, 2 * threads).astype(list(TYPES.values())[number])
    found = []
    for module in forms:
        y = np.zeros((2, FARTHEST, 4, threads), x.dtype)
        getattr(module, f"k{number}")[2, threads](x, y, width)
        found.append(y)
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0][:, 3, 3, :] != x.reshape(2, threads)).all()  # by 3 crosswise, each lane has another's


@pytest.mark.parametrize("name", ["__ballot_sync", "__any_sync", "__all_sync", "__uni_sync"])
def test_a_vote_whose_mask_lacks_who_calls_it_names_itself(name: str) -> None:
    text = f'extern "C" __global__ void k(int* x) {{ x[0] = {name}(1u, 1); }}'
    module = jitload.load_inline("vote", cuda_sources=text, arch="cpu")
    with pytest.raises(RuntimeError, match=rf"{name}\(\) with mask 0x00000001, which lacks lane 1"):
        module.k[1, 4](np.zeros(1, np.int32))


def test_uni_tells_lanes_that_agree_from_lanes_that_do_not() -> None:
    text = 'extern "C" __global__ void k(int* x, int* y) { y[threadIdx.x] = __uni_sync(~0u, x[threadIdx.x]); }'
    module = jitload.load_inline("uni", cuda_sources=text, arch="cpu")
    for first, others in ((0, 0), (1, 1), (2, 1), (0, 1), (1, 0)):
        x, y = np.full(32, others, np.int32), np.full(32, 7, np.int32)
        x[0] = first
        module.k[1, 32](x, y)
        assert y.tolist() == [int(bool(first) == bool(others))] * 32
