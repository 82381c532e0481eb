"""Tests of how `compare` overwrites outputs, to find elements that a function does not write."""

from __future__ import annotations

import pytest
import torch

import jitload
from jitload.errors import MismatchError

pytest_plugins = ["support.gpu_fixtures"]

SOURCE = r"""
extern "C" __global__ void positive(const float* x, float* y, int n) {
    for (int i = 0; i < n; ++i) if (x[i] > 0) y[i] = x[i];
}
extern "C" __global__ void histogram(const float* x, int* y, int n) {
    for (int i = 0; i < n; ++i) y[(int)x[i] % 8]++;
}
extern "C" __global__ void accumulate(const float* x, float* y, int n) {
    for (int i = 0; i < n; i += 2) y[i] += x[i];
}
"""
FAST = {"seconds": 0.01}
N = 1000


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def x(request):
    """Return numbers on the CPU and, where there is one, on the GPU."""
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return torch.arange(float(N), device=request.param)


@pytest.fixture
def measured(x):
    launch = jitload.Launch(grid=1, block=1, args={"n": "x.numel()"})
    functions = dict.fromkeys(("positive", "histogram", "accumulate"), launch)
    arch = "native" if x.is_cuda else "cpu"
    return jitload.load_inline("poisoned", cuda_sources=SOURCE, functions=functions, arch=arch)


def test_compare_finds_elements_that_had_the_right_values(measured, x):
    x -= 500
    for y in (torch.zeros_like(x), x.relu()):
        with pytest.raises(MismatchError, match="'f' does not write 501 of 1000 elements of its 'y'"):
            jitload.compare({"f": measured.positive}, x, y, reference=lambda x, y: x.relu(), **FAST)
    gaps = torch.zeros(2 * N, device=x.device)
    gaps[::2] = x
    with pytest.raises(MismatchError, match="'f' does not write 501 of 1000"):
        jitload.compare({"f": lambda x, y: torch.where(x > 0, x, y, out=y) is None or None}, gaps[::2], gaps[1::2],
                        reference=lambda x, y: x.relu(), outputs=1, **FAST)  # fmt: skip
    assert torch.equal(gaps, torch.stack((x, torch.zeros_like(x)), 1).reshape(-1))


@pytest.mark.parametrize("is_host", [True, False])
def test_compare_accepts_functions_that_read_their_outputs(measured, x, is_host, caplog):
    bins, even = torch.zeros(16, dtype=torch.int32, device=x.device), (torch.arange(N, device=x.device) + 1) % 2
    counts = torch.bincount((x % 8).int(), minlength=16).int()
    y = torch.ones_like(x)
    total = y + x * even
    from_y = (lambda x, y: y + x * even) if is_host else (lambda x, y: total)
    assert len(jitload.compare({"f": measured.histogram}, x, bins, reference=lambda x, y: counts, **FAST)) == 1
    assert len(jitload.compare({"f": measured.accumulate}, x, y, reference=from_y, **FAST)) == 1
    assert not bins.any()
    assert (y == 1).all()
    assert not caplog.records


def test_compare_finds_functions_of_python_that_stop_writing():
    x, calls = torch.ones(4), []

    def at_first(x, y):
        calls.append(y)
        if len(calls) < 6:
            torch.add(x, 1, out=y)

    for function in (at_first, lambda x, y: None):
        with pytest.raises(MismatchError, match="'f' does not write 4 of 4 elements of its 'argument 1'"):
            jitload.compare({"f": function}, x, x + 1, reference=lambda x, y: x + 1, outputs=1, **FAST)
    assert len(calls) > 20  # it was found after the measurement
