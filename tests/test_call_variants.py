"""Functions of several kernels, of which a call launches one by the dtypes of its tensors."""

from typing import Any

import numpy as np
import pytest
import torch
from support.arrays import CudaArray

import jitload
from jitload import Launch
from jitload.errors import LaunchSpecError

SOURCE = r"""
#include <cuda_fp16.h>
template <class T> __global__ void scale(const T* x, T* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = T(float(x[i]) * factor);
}
template <class A, class B> __global__ void convert(const A* x, B* y, int n) {
    for (int i = 0; i < n; ++i) y[i] = B(x[i]);
}
__global__ void shorter(const long long* x, int n) {}
template __global__ void scale<short>(const short*, short*, float, int);
"""
WHOLE: dict[str, Any] = {"grid": "ceil_div(n, 64)", "block": 64, "args": {"n": "x.numel()"}}
ONE: dict[str, Any] = {"grid": 1, "block": 1, "args": {"n": "x.numel()"}}
TYPES = ("float", "__half", "int")
FUNCTIONS = {
    "scale": [Launch(kernel=f"scale<{type_}>", **WHOLE) for type_ in TYPES],
    "convert": [Launch(kernel=f"convert<{a}, {b}>", **ONE) for a, b in (("float", "int"), ("int", "float"))],
    "single": Launch(kernel="scale<short>", **WHOLE),
    "free": (Launch(kernel="scale<float>"), Launch(kernel="scale<__half>", doc="Another.", block=32)),
}
DTYPES = {"float": torch.float32, "__half": torch.float16, "int": torch.int32}


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("variants", cuda_sources=SOURCE, functions=FUNCTIONS, arch=("sm_90a", "cpu"))


def check(mod: jitload.Module, device: str) -> None:
    for dtype in DTYPES.values():
        x = torch.arange(100, dtype=dtype, device=device)
        y, z = torch.zeros_like(x), torch.zeros_like(x)
        mod.scale(x, y, 2.0)
        mod.scale.call(x=x, y=z, factor=3.0)
        assert torch.equal(y, 2 * x)
        assert torch.equal(z, 3 * x)
        if dtype in (torch.float32, torch.float16):
            mod.free[2, 64](x, y, 3.0, 100)
            assert torch.equal(y, z)
    x, y = torch.arange(5, dtype=torch.float32, device=device), torch.zeros(5, dtype=torch.int32, device=device)
    mod.convert(x, y)
    mod.convert(y + 1, x)
    assert (x.tolist(), y.tolist()) == ([1, 2, 3, 4, 5], [0, 1, 2, 3, 4])


def test_the_dtypes_choose_the_kernel(mod):
    check(mod, "cpu")
    assert list(mod) == ["scale", "convert", "single", "free"]


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_the_dtypes_choose_the_kernel_on_a_gpu():
    check(jitload.load_inline("variants", cuda_sources=SOURCE, functions=FUNCTIONS), "cuda")


def test_the_dtypes_choose_the_symbol_that_is_launched(mod, stub_driver):
    for dtype, symbol in (("float16", "_Z5scaleI6__half"), ("float32", "_Z5scaleIf"), ("int32", "_Z5scaleIi")):
        x = CudaArray(np.zeros(8, np.uint32), dtype=dtype)
        mod.scale(x, x, 1.0)
        assert stub_driver.launches()[-1].kernel.startswith(symbol)
    x = CudaArray(np.zeros(8, np.float32))
    with pytest.raises(TypeError, match=r"free\(\) has no block|free\(\).*block"):
        mod.free[1, None](x, x, 1.0, 8)


def test_other_dtypes_are_refused_with_a_list(mod):
    x, y, z = torch.zeros(4), torch.zeros(4, dtype=torch.float16), torch.zeros(4, dtype=torch.float64)
    listed = r"there are kernels for \(x=float32, y=float32\), \(x=float16, y=float16\), \(x=int32, y=int32\)$"
    for arguments, dtypes in (((z, z), "x=float64, y=float64"), ((x, y), "x=float32, y=float16")):
        with pytest.raises(TypeError, match=rf"^scale\(\): no kernel takes \({dtypes}\); {listed}"):
            mod.scale(*arguments, 1.0)
    with pytest.raises(TypeError, match=r"^scale\(\): argument 'x' must be a CUDA or CPU tensor, got str"):
        mod.scale("x", z, 1.0)
    with pytest.raises(TypeError, match=r"^scale\(\): argument 'factor' must be a float, (got a pointer|got str)"):
        mod.scale(z, z, "x")
    with pytest.raises(ValueError, match=r"^scale\(\): argument 'y' must be contiguous"):
        mod.scale(y[:2], torch.zeros(4, dtype=torch.float16)[::2], 1.0)


def test_the_function_describes_all_of_its_kernels(mod):
    assert mod.scale.__doc__ == (
        "scale(const float* x, float* y, float factor)\nscale(const __half* x, __half* y, float factor)\n"
        "scale(const int* x, int* y, float factor)"
    )
    assert list(mod.scale.__signature__.parameters) == ["x", "y", "factor"]
    for label in ("kernel", "kernels"):
        with pytest.raises(
            AttributeError, match=r"scale\(\) chooses one of several kernels by the dtypes of its argum"
        ):
            getattr(mod.scale, label)


REFUSED: list[tuple[Any, str]] = [
    ([], r"functions\['scale'\] must have a Launch\(kernel=…\) for each dtype"),
    ([Launch()], "must have a Launch"),
    (["float"], "must have a Launch"),
    ([Launch(kernel="scale<float>"), Launch(kernel="shorter")], "take different arguments"),
    ([Launch(kernel="scale<float>"), Launch(kernel="scale<int>", args={"n": 3})], "take different arguments"),
    ([Launch(kernel="scale<float>"), Launch(kernel="scale<float>", grid=1)], "take tensors of the same dtypes"),
]


@pytest.mark.parametrize(("launches", "message"), REFUSED)
def test_kernels_that_cannot_be_told_apart_are_refused(launches, message):
    with pytest.raises(LaunchSpecError, match=message):
        jitload.build_inline("variants", cuda_sources=SOURCE, functions={"scale": launches}, arch="sm_90a")
