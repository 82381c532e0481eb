"""Loops over strides, whose turns stand outside and the threads inside: which do, and that nothing changes by it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from cpu_stride_kernels import BEFORE, KERNELS, write_kernel

import jitload
from jitload.cpptext.declarations import find_candidates
from jitload.cpu import build
from jitload.cpu.split import Split, split_kernels
from jitload.cpu.text import cpu_text
from jitload.device.kernels import DeviceSource

BLOCKS = (1, 7, 32, 100, 256, (16, 4), (5, 3, 2), (33, 9))
SIZES = (0, 1, 17, 100, 1001)
IN_ONE = 12  # kernels in a source
_OPTIMISED = (-1, 0, 3)  # sources: never waiting, the spellings, the first of the matrices
_NAMES = tuple(KERNELS)
Both = Callable[[int], tuple[jitload.Module, jitload.Module]]
_PLAIN = ("grid", "called", "while_", "matrix", "continued", "in_blocks", "behind_return", "pair", "two_sums", "many")


@pytest.fixture(scope="module")
def modules() -> Both:
    """Return some kernels as loops, and as they always were; of number -1 those that never wait."""

    @cache
    def build_both(number: int) -> tuple[jitload.Module, jitload.Module]:
        names = _PLAIN if number < 0 else _NAMES[number * IN_ONE : (number + 1) * IN_ONE]
        source = BEFORE + "".join(write_kernel(name, KERNELS[name][1], waits=number >= 0) for name in names)
        # The texts are what differs; at -O3, with loops in vectors, compiling some of them is enough.
        level = [] if number in _OPTIMISED else ["-O1"]
        loops, fibers = (
            jitload.load_inline("strides", cuda_sources=source, arch="cpu", extra_cuda_cflags=flags, extra_cflags=level)
            for flags in ([], ["-DJITLOAD_CPU_FIBERS"])
        )
        return loops, fibers

    return build_both


@pytest.mark.parametrize("name", KERNELS)
def test_a_loop_is_what_it_was(name: str, modules: Both) -> None:
    compare(name, *modules(_NAMES.index(name) // IN_ONE))


@pytest.mark.parametrize("name", _PLAIN)
def test_a_loop_in_a_kernel_that_never_waits(name: str, modules: Both) -> None:
    compare(name, *modules(-1))


def compare(name: str, split: jitload.Module, plain: jitload.Module) -> None:
    """Run both and look for the same bits."""
    random = np.random.default_rng(0)
    x, k = random.standard_normal(6000, np.float32), random.permutation(5000).astype(np.int32)
    for block in (block for block in BLOCKS if name != "shuffled" or np.prod(block) % 32 == 0):
        for n in SIZES:
            found = []
            for module in (split, plain):
                y, z = np.full(3000, -1, np.float32), np.full(3000, -1, np.int32)
                wide = struct.pack("iif", n, 64, 0.5)
                getattr(module, name)[2, block](x, k, y, z, wide, n)
                found.append((y.tobytes(), z.tobytes()))
            assert found[0] == found[1], (block, n)


@pytest.mark.parametrize("name", KERNELS)
def test_which_loops_have_their_turns_outside(name: str) -> None:
    expected, body = KERNELS[name]
    source = BEFORE + write_kernel(name, body, waits=True)
    assert split_kernels([("k.cu", source)], find_candidates([source])).strides == expected


def compiled(source: str, monkeypatch: pytest.MonkeyPatch) -> tuple[jitload.Module, list[Split | None]]:
    """Compile, and return with which forms it was tried."""
    tried: list[Split | None] = []

    def noted(given: DeviceSource, expressions: Sequence[str], split: Split | None = None) -> str:
        tried.append(split)
        return cpu_text(given, expressions, split)

    monkeypatch.setattr(build, "cpu_text", noted)
    return jitload.load_inline("tried", cuda_sources=source, arch="cpu"), tried


def test_what_is_written_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("matrix_of_warps", "counter_given", "read_limit", "tree_named", "in_parts", "structure")
    _, tried = compiled(
        BEFORE + "".join(write_kernel(name, KERNELS[name][1], waits=True) for name in names), monkeypatch
    )
    assert len(tried) == 1


def test_a_loop_that_only_compiles_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter is a constant in a turn; what cannot live with that keeps its barriers as loops."""
    body = "for (int i = threadIdx.x; i < n; i += blockDim.x) { decltype(i) j = i; ++j; y[i] += x[j]; }"
    source = f'extern "C" __global__ void k(const float* x, float* y, int n) {{ {body} __syncthreads(); y[n] = 1; }}'
    module, tried = compiled(source, monkeypatch)
    assert [split and split.strides for split in tried] == [1, 0]
    x, y = np.arange(101, dtype=np.float32), np.zeros(101, np.float32)
    module.k[1, 32](x, y, 100)
    assert (y == [*range(1, 101), 1]).all()


def test_a_kernel_that_never_waits_and_has_no_such_loop_is_left_alone() -> None:
    source = 'extern "C" __global__ void k(int* x, int n) { for (int i = 0; i < n; ++i) x[i] += threadIdx.x; }'
    assert split_kernels([("k.cu", source)], find_candidates([source])).pieces == (("k.cu", source),)
