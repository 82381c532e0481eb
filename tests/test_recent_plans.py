"""A call with the inputs of a recent call takes its plan over. It does what its own inputs ask for nevertheless."""

import dataclasses
import math
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.arrays import CudaArray

import jitload
from jitload import Launch

SOURCE = r"""
extern "C" __global__ void f(const void* x, float* y, const float* z, float* w, int n, int k, int m) {
  if ((int)threadIdx.x < m) w[threadIdx.x] = y[threadIdx.x] = ((const float*)x)[threadIdx.x];
}
extern "C" __global__ void plan(int* out, const float* x, int n, long long k) {
  out[0] = n; out[1] = gridDim.x; out[2] = blockDim.x; out[3] = k;
}"""
LAUNCH = Launch(
    grid=("ceil_div(n, 4)", "x.ndim"),
    block="k * 2",
    shared_bytes="n * 4 - 16",
    args={"n": "x.numel()"},
    requires=("n > 2", "k % 2 == 0", "x.shape == z.shape", "y is not None or k < 7"),
    strided=("x", "w"),
    nullable="y",
    raw_pointers="y",
    bounds="check",
)
MEMORY = np.zeros(64, np.float32)
CHOICES: dict[str, list[Any]] = {
    "x": [((8,), (1,)), ((8,), (2,)), ((2, 4), (4, 1)), ((2, 4), (1, 2)), ((2,), (1,)), ((1, 8), (-1, 1))],
    "dtype": ["float32", "int32", "int16", "float64"],
    "y": [8, 6, 3, None, 1 << 20],
    "z": [(8,), (2, 4), (4,), (1, 8)],
    "w": [((8,), (1,)), ((4,), (2,)), ((4,), (1,)), ((2, 4), (0, 2))],
    "k": [2, 4, 8, 3, True],
    "m": [2, 4, 6, 0, True],
    "config": [None, (2, 4), (3, 4), (2, 6), ((2, 1, 1), (4, 1, 2)), (2, 4, 256), (2, 4, 512)],
}


def expected(call: dict[str, Any]) -> tuple[Any, ...] | str:
    """Return the grid, the block, the shared memory and `n` of a launch, or what its error says."""
    (shape, strides), dtype, y, z, w, k, m, config = (call[name] for name in CHOICES)
    n, item = math.prod(shape), {"int16": 2, "float64": 8}.get(dtype, 4)
    if n <= 2 or k % 2 or shape != z or (y is None and k >= 7):
        return "requires"
    grid, block, shared = ((-(-n // 4), len(shape)), k * 2, n * 4 - 16)
    if config is not None:
        grid, block, *more = config
        shared = more[0] if more else shared
    grid, block = (((*e, 1, 1) if isinstance(e, tuple) else (e, 1, 1))[:3] for e in (grid, block))
    count = min(m, block[0])
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    limit = min((last + 1) * item // 4, 1 + sum((extent - 1) * stride for extent, stride in zip(*w, strict=True)))
    if count > limit or (count > (y or 0) and (y is None or y < 100)):
        return "would access"
    return grid, block, shared, n


def check_call(stub_driver: Any, function: Any, call: dict[str, Any]) -> None:
    """Make a call, and compare its launch or its error with what is expected."""
    shape, strides = call["x"]
    x = CudaArray(MEMORY, dtype=call["dtype"], shape=shape, strides=strides, address=1 << 20)
    y = CudaArray(MEMORY, shape=(call["y"],)) if call["y"] in (3, 6, 8) else call["y"]
    w = CudaArray(MEMORY, shape=call["w"][0], strides=call["w"][1])
    arguments = x, y, CudaArray(MEMORY, shape=call["z"]), w, call["k"], call["m"]
    outcome = expected(call)
    stub_driver.clear()
    configured = function if call["config"] is None else function[call["config"]]
    if isinstance(outcome, str):
        with pytest.raises(ValueError, match=outcome):
            configured(*arguments)
        assert not stub_driver.launches(), call
    else:
        configured(*arguments)
        (launch,) = stub_driver.launches()
        n = int.from_bytes(launch.arguments[4], "little")
        assert (launch.grid, launch.block, launch.shared_bytes, n) == outcome, call


def test_a_call_is_planned_and_checked_by_its_own_inputs(stub_driver):
    """The first call of a function is remembered. Each of the others differs from it in one input."""
    functions = {f"f{number}": dataclasses.replace(LAUNCH, kernel="f") for number in range(40)}
    mod = jitload.load_inline("recent_plans", cuda_sources=SOURCE, functions=functions, arch="sm_90a")
    chance = random.Random(38)
    for function in functions:
        first: dict[str, Any] = {}
        while not first or isinstance(expected(first), str):
            first = {name: chance.choice(values) for name, values in CHOICES.items()}
        different = [{**first, name: value} for name, values in CHOICES.items() for value in values]
        for call in [first, first, *chance.sample(different, len(different)), first]:
            check_call(stub_driver, mod[function], call)


def test_what_was_not_checked_on_the_cpu_is_checked_on_the_gpu(stub_driver):
    launch = Launch(grid=1, block="k * 2", requires="x.numel() > 2", bounds="check")
    source = SOURCE.replace("const void* x, float* y, const float* z, float* w, int n", "const float* x, float* y")
    source = source.replace("w[threadIdx.x] = ", "")
    mod = jitload.load_inline("recent_cpu", cuda_sources=source, functions={"f": launch}, arch=("cpu", "sm_90a"))
    x, memory = torch.ones(8), torch.zeros(8)
    mod.f(x, memory[:3], 4, 6)
    assert memory.sum() == 6
    with pytest.raises(ValueError, match="elements 0 to 5 of argument 'y', which has 3"):
        mod.f(CudaArray(x.numpy()), CudaArray(memory[:3].numpy()), 4, 6)
    assert not stub_driver.launches()


def test_threads_that_call_with_other_inputs_get_their_own_plans():
    launch = Launch(grid="ceil_div(n, 4)", block="k", args={"n": "x.numel()"}, requires=("n > 2", "k < 9"))
    mod = jitload.load_inline("recent_threads", cuda_sources=SOURCE, functions={"plan": launch}, arch="cpu")

    def call(seed: int) -> None:
        chance, out = random.Random(seed), torch.zeros(4, dtype=torch.int32)
        for _ in range(40):
            n, k = chance.randint(3, 9), chance.randint(1, 3)
            for _ in range(1 + seed):
                mod.plan(out, torch.empty(n), k)
                assert out.tolist() == [n, -(-n // 4), k, k]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
