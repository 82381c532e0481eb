"""Random kernels on the CPU: as loops, and with a fiber for each thread, they give the same bits."""

from __future__ import annotations

import logging

import cpu_fuzz
import numpy as np
import pytest

import jitload

SHAPES = [(1, 1, 1, 32), (1000, 37, 3, 256), (257, 11, 2, 64), (64, 33, 1, 96), (100, 5, 4, 100), (4099, 90, 2, 17)]


def run(mod: jitload.Module, kernel: cpu_fuzz.Fuzz, shape: tuple[int, int, int, int]) -> list[np.ndarray]:
    n, m, grid, threads = shape
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n).astype(np.float32)
    k = rng.integers(0, 1 << 32, n, np.uint64).astype(np.uint32)
    y, out = np.zeros(4 * n + grid * threads, np.float32), np.zeros(grid * threads, np.uint32)
    mod[kernel.name][grid, kernel.shape(threads)](x, k, y, out, n, m)
    y[np.isnan(y)] = np.nan  # which NaN it is may differ
    return [y.view(np.uint32), out]


def check(seed: int, count: int) -> None:
    kernels = cpu_fuzz.kernels(seed, count)
    text = cpu_fuzz.HEAD + "".join(kernel.text for kernel in kernels)
    loops, fibers = (
        jitload.load_inline("fuzz", cuda_sources=text, arch="cpu", extra_cuda_cflags=form, extra_cflags=level)
        for form, level in (((), ()), (("-DJITLOAD_CPU_FIBERS",), ("-O1",)))  # the fibers are what it must be like
    )
    for kernel in kernels:
        for shape in SHAPES:
            if kernel.has_warps and shape[-1] % 32:
                continue
            for one, other in zip(run(loops, kernel, shape), run(fibers, kernel, shape), strict=True):
                wrong = np.flatnonzero(one != other)
                assert wrong.size == 0, f"{shape}, at {wrong[:5]} of {one.size}:\n{kernel.text}"


@pytest.mark.parametrize("seed", range(2))
def test_random_kernels(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="jitload.cpu.split"):
        check(seed, 5)
    assert len(caplog.messages) <= 1  # how many are not split


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_random_kernels(seed: int) -> None:
    check(seed, 8)
