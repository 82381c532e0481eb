"""Tests of measuring without kernels: tables, functions of Python, and the memory of tensors."""

import numpy as np
import pytest
import torch

import jitload
from jitload.measuring.benchmark import Benchmark
from jitload.measuring.comparison import Comparison
from jitload.measuring.difference import find_differences
from jitload.measuring.memory import Extent, extent_of
from jitload.measuring.poison import POISONS, is_floating, poison

FAST = {"seconds": 0.01}


@pytest.mark.parametrize("us", [0.5, 3.14159, 99_999.9, 2e6])
def test_the_table_fits_a_terminal(us):
    record = Benchmark(
        function="f", device="cuda:0 (NVIDIA H200)", median_us=us, p10_us=us, p90_us=us, host_us=12.3456, samples=5,
        launches=1, restored=False, flushed_l2=False, bytes=10**6, is_estimated=True, flop=1e8, peak_gb_per_s=4800.0,
    )  # fmt: skip
    names = ["short", *(f"reduce_rows_of_a_matrix_with_warp_shuffles_v{number}" for number in (1, 2))]
    lines = str(Comparison(dict.fromkeys(names, record))).splitlines()
    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines[2:]]
    assert shown[0] == "short"
    assert [name[:3] + name[-3:] for name in shown[1:]] == ["red_v1", "red_v2"]
    assert all("…" in name for name in shown[1:])
    assert repr(record) == f"<jitload benchmark f: {us:.2f} µs on cuda:0 (NVIDIA H200)>"
    head, row = Comparison({"f": record}).rows()
    assert (head[-1], len(head)) == ("GFLOP/s", len(row))
    assert f"<tr><td>f</td><td>{row[1]}</td>" in Comparison({"f": record})._repr_html_()


def test_a_function_that_fails_midway_leaves_the_arguments_as_they_were():
    x, y, calls = torch.arange(4.0), torch.zeros(4), []

    def fails(x, y):
        calls.append(1)
        y.fill_(len(calls))
        if len(calls) > 2:
            raise RuntimeError("midway")
        return y

    with pytest.raises(RuntimeError, match="midway"):
        jitload.compare({"a": fails}, x, y, **FAST)
    assert len(calls) == 3
    assert torch.equal(y, torch.zeros(4))


def test_an_extent_is_the_memory_of_a_tensor():
    x = torch.zeros(6, 4)
    address = x.data_ptr()
    assert extent_of(x) == Extent(address, 96, 96, None)
    assert extent_of(x[1:3, ::2]) == Extent(address + 16, 28, 16, None)
    assert extent_of(x[0, :1].expand(1000, 1)) == Extent(address, 4, 4, None)
    array = np.zeros(8, np.int16)
    assert extent_of(array[::-2]) == Extent(array.ctypes.data + 2, 14, 8, None)
    assert extent_of(torch.zeros(3, device="meta")).span == 0
    assert extent_of(torch.eye(3).to_sparse()).span == 0


@pytest.mark.parametrize("functions", [{}, [], None, {"a": 5}, {1: len}])
def test_compare_takes_a_dict_of_functions(functions):
    with pytest.raises(TypeError, match="must be a dict of functions by name"):
        jitload.compare(functions, 1)


DTYPES = [torch.float32, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_overwrites_tensors_of_each_dtype(dtype):
    memory = torch.zeros(4, 6).to(dtype)
    values = []
    for byte in POISONS:
        poison(memory.t()[::2, 1:3], byte)
        poison(memory[3, :1].expand(5, 1), byte)
        values.append(memory[1, 0].clone())
        assert memory[[0, 1, 1, 2, 3], [0, 1, 3, 5, 2]].view(torch.uint8).count_nonzero() == 0
        remaining = torch.stack((memory[1, 4], memory[2, 2], memory[3, 0]))
        assert find_differences(remaining, values[-1].expand(3), 0.0, 0.0)[0].sum() == 0
    assert find_differences(*values, 0.0, 0.0)[0].all()
    assert is_floating(memory) == (dtype not in (torch.bool, torch.int64))
