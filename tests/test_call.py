"""A typed function at a call: its checks in their documented order, and a whole launch with its result."""

import ctypes
import struct
from typing import Any

import numpy as np
import pytest
from support.arrays import CudaArray
from support.calls import array, assert_refused
from support.driver import Extents

import jitload
from jitload import Launch

SOURCE = """
extern "C" __global__ void scale(const float* x, float4* y, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) reinterpret_cast<float*>(y)[i] = factor * x[i];
}
"""


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    functions = {
        "scale": Launch(grid="n // x.shape[0]", block="n", shared_bytes="n * 100000"),
        "plain": Launch(kernel="scale", grid="ceil_div(n, 32)", block=32, args={"n": "x.numel()"}),
    }
    return jitload.load_inline("order", cuda_sources=SOURCE, functions=functions, arch="sm_90a")


CONTIGUOUS = (
    "must be contiguous, got shape [4, 2] with strides [1, 4]; pass x.contiguous(), or name it in Launch(strided=…)"
)
SHARED = "but cuda:0 gives a block at most 232448 bytes, and the kernel's own static shared memory takes 0 of them"
# What is wrong with a call; each mends the first of what is left, so that the next check speaks.
STRIDED: dict[str, Any] = {"shape": (4, 2), "strides": (1, 4)}
ORDER: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("count", (array("float16"), "y"), TypeError, "scale() takes 4 arguments (x, y, n, factor), got 2"),
    ("kind of the last", (array("float16", device_type=1), array("int8"), 2**40, "f"), TypeError,
     "scale(): argument 'factor' must be a float, got str"),
    ("kind before dtype", (array("float16", device_type=1), 7, 2**40, 1.0), TypeError,
     "scale(): argument 'y' must be a float32 CUDA tensor, got int"),
    ("dtype of the first", (array("float16", device_type=1), array("int8"), 2**40, 1.0), TypeError,
     "scale(): argument 'x' must be a float32 CUDA tensor, got float16"),
    ("dtype of the second", (array(device_type=1, **STRIDED), array("int8"), 2**40, 1.0), TypeError,
     "scale(): argument 'y' must be a float32 CUDA tensor, got int8"),
    ("device", (array(**STRIDED), array(device_type=1), 2**40, 1.0), ValueError,
     "scale(): argument 'y' must be a CUDA tensor, but it is on cpu"),
    ("one device", (array(**STRIDED), array(device=1), 2**40, 1.0), ValueError,
     "scale(): argument 'y' is on cuda:1, but 'x' is on cuda:0; all tensors must be on one device"),
    ("contiguity", (array(**STRIDED), array(address=4104), 2**40, 1.0), ValueError,
     f"scale(): argument 'x' {CONTIGUOUS}"),
    ("alignment", (array(shape=(0,)), array(address=4104), 2**40, 1.0), ValueError,
     ("scale(): argument 'y' (float4*) must be aligned to 16 bytes, but its address is 0x1008; "
     "pass a copy and copy the result back (tmp = y.clone(); scale(…, tmp, …); y.copy_(tmp))")),
    ("range", (array(shape=(0,)), array(address=4096), 2**40, 1.0), ValueError,
     "scale(): argument 'n' (int) must be from -2147483648 to 2147483647, got 1099511627776"),
    ("expression", (array(shape=(0,)), array(address=4096), 2**20, 1.0), ValueError,
     "scale(): grid = n // x.shape[0]: division of 1048576 by zero"),
    ("extents", (array(), array(address=4096), 2**20, 1.0), ValueError,
     "scale(): block (1048576, 1, 1) is over CUDA's limit of (1024, 1024, 64) and 1024 threads in all"),
    ("shared memory", (array(), array(address=4096), 100, 1.0), ValueError,
     f"scale(): 10000000 bytes of dynamic shared memory requested, {SHARED}"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "text"), [row[1:] for row in ORDER], ids=[row[0] for row in ORDER])
def test_the_first_check_that_fails_speaks(mod, stub_driver, arguments, kind, text):
    assert_refused(kind, text, mod.scale, *arguments)
    if "dynamic shared memory" not in text:
        assert stub_driver.calls() == []


def test_no_blocks_come_before_the_driver_and_after_the_checks(mod, stub_driver):
    mod.scale(array(size=9), array(address=4096), 8, 1.0)
    assert stub_driver.calls() == []
    text = "scale(): argument 'n' must be an int, got float"
    assert_refused(TypeError, text, mod.scale, array(size=9), array(address=4096), 8.0, 1.0)
    text = "scale(): block (0, 1, 1) must be positive"
    assert_refused(ValueError, text, mod.scale, array(size=9), array(address=4096), 0, 1.0)


@pytest.mark.parametrize("count", [0, 1, 3, 5, 60])
def test_the_count_of_arguments(mod, stub_driver, count):
    text = f"scale() takes 4 arguments (x, y, n, factor), got {count}"
    assert_refused(TypeError, text, mod.scale, *[None] * count)
    text = f"plain() takes 3 arguments (x, y, factor), got {count}"
    if count != 3:
        assert_refused(TypeError, text, mod.plain, *[None] * count)
    assert stub_driver.calls() == []


def test_a_long_list_of_names_is_cut():
    names = [f"a_rather_long_name_of_a_parameter_{i}" for i in range(60)]
    source = f'extern "C" __global__ void many({", ".join(f"int {name}" for name in names)}) {{}}'
    mod = jitload.load_inline("many", cuda_sources=source, arch="sm_90a")
    with pytest.raises(TypeError) as caught:
        mod.many[1, 1](1)
    text = str(caught.value)
    assert text.startswith("many() takes 60 arguments (a_rather_long_name_of_a_parameter_0, a_rather_long")
    assert text.endswith("…), got 1")


def test_a_launch_does_its_work(mod, stub_driver):
    x = CudaArray(np.arange(100, dtype=np.float32))
    y = CudaArray(np.zeros(100, np.float32), address=None)
    seen: list[tuple[str, Extents, Extents]] = []

    def play(kernel: str, params: bytes, grid: Extents, block: Extents) -> None:
        seen.append((kernel, grid, block))
        source, target, n, factor = struct.unpack("<QQif", params)
        for i in range(n):
            value = ctypes.c_float.from_address(source + 4 * i).value
            ctypes.c_float.from_address(target + 4 * i).value = factor * value

    stub_driver.set_executor(play)
    mod.plain(x, y, 2.5)
    stub_driver.check_executor()
    assert seen == [("scale", (4, 1, 1), (32, 1, 1))]
    assert y.array.tolist() == [2.5 * i for i in range(100)]


def test_an_error_is_no_obstacle_to_the_next_call(mod, stub_driver):
    x = array(address=4096)
    for _ in range(3):
        with pytest.raises(TypeError):
            mod.plain(x, x, None)
        mod.plain(x, x, 1)
    assert len(stub_driver.launches()) == 3
