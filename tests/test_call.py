"""A typed function at a call: its checks in their documented order."""

from typing import Any

import pytest
from support.calls import array, assert_refused

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


@pytest.mark.parametrize("count", [0, 1, 3, 5, 60])
def test_the_count_of_arguments(mod, stub_driver, count):
    text = f"scale() takes 4 arguments (x, y, n, factor), got {count}"
    assert_refused(TypeError, text, mod.scale, *[None] * count)
    text = f"plain() takes 3 arguments (x, y, factor), got {count}"
    if count != 3:
        assert_refused(TypeError, text, mod.plain, *[None] * count)
    assert stub_driver.calls() == []
