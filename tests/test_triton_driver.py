"""Real Triton kernels from source to the driver's door: what a launch is given, in place of a GPU."""

from __future__ import annotations

import struct
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl
import triton_kernels as kernels
from support.arrays import CudaArray
from support.driver import StubDriver
from support.triton import aligned_array, launched
from triton_libraries import LIBRARIES
from triton_support import ADD, VERSION, load, since

HIDDEN = (bytes(8),) * VERSION.hidden_pointers


def library(name: str) -> Any:
    kernel, options = LIBRARIES[name]
    return load(kernel, name=name, **options)[name]


def pointer(array: CudaArray) -> bytes:
    return struct.pack("<Q", array.address)


def numbers(*values: int) -> tuple[bytes, ...]:
    return tuple(struct.pack("<i", value) for value in values)


def test_vector_add(stub_driver: StubDriver):
    x, y, out = aligned_array(), aligned_array(), aligned_array()
    launch = launched(stub_driver, library("vector_add"), x, y, out, 98_432)
    assert (launch.kernel, launch.grid, launch.block) == ("vector_add", (97, 1, 1), (128, 1, 1))
    assert launch.arguments == (pointer(x), pointer(y), pointer(out), *numbers(98_432), *HIDDEN)
    stub_driver.clear()
    with pytest.raises(ValueError, match=r"vector_add\(\).*'y_ptr'.*16"):
        library("vector_add")(x, aligned_array(4), out, 98_432)
    library("vector_add")(x, y, out, 0)  # no programs
    assert stub_driver.launches() == []


def test_a_matmul_with_tensor_cores(stub_driver: StubDriver):
    a, b, c = (aligned_array(dtype="float16") for _ in range(3))
    launch = launched(stub_driver, library("matmul"), a, b, c, 1000, 256, 272, 272, 1, 256, 1, 256, 1)
    assert (launch.grid, launch.block) == ((16, 1, 1), (256, 1, 1))
    assert launch.shared_bytes > 48 * 1024
    taken = numbers(1000, 256, 272, 272, 256, 256)  # the strides that are 1 are not in the machine code
    assert launch.arguments == (pointer(a), pointer(b), pointer(c), *taken, *HIDDEN)
    with pytest.raises(ValueError, match=r"'stride_ak'.*1"):
        library("matmul")(a, b, c, 1000, 256, 272, 272, 2, 256, 1, 256, 1)
    with pytest.raises(ValueError, match=r"'K'.*16"):
        library("matmul")(a, b, c, 1000, 256, 270, 272, 1, 256, 1, 256, 1)
    with pytest.raises(TypeError, match=r"'a_ptr' must be a float16"):
        library("matmul")(aligned_array(), b, c, 1000, 256, 272, 272, 1, 256, 1, 256, 1)


def test_the_dispatcher_takes_the_first_that_fits(stub_driver: StubDriver):
    types = {"x_ptr": "*fp32", "bias_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "stride": "i32"}
    variants = [
        {"BLOCK": 64, "signature": {"bias_ptr": None, "stride": "i32:1"}},
        {"BLOCK": 128, "signature": {"bias_ptr": None}},
        {"BLOCK": 256},
    ]
    mod = load(
        kernels.optional_bias, signature=types, variants=variants, grid=lambda m: (triton.cdiv(m["n"], m["BLOCK"]),)
    )
    x, bias = aligned_array(), aligned_array()
    found = [
        launched(stub_driver, mod.optional_bias, x, given, x, 1024, stride)
        for given, stride in ((None, 1), (None, 2), (bias, 1), (bias, 2))
    ]
    assert [launch.grid[0] for launch in found] == [16, 8, 4, 4]
    assert found[0].arguments == (pointer(x), pointer(x), *numbers(1024), *HIDDEN)
    assert found[1].arguments == (pointer(x), pointer(x), *numbers(1024, 2), *HIDDEN)
    assert found[3].arguments == (pointer(x), pointer(bias), pointer(x), *numbers(1024, 2), *HIDDEN)
    assert launched(stub_driver, mod[list(mod)[2]], x, None, x, 1024, 1).grid == (8, 1, 1)


def test_tuples_scalars_and_a_name_of_its_own(stub_driver: StubDriver):
    signature = {"pair": ("*fp32:16", "*fp32:16", "fp32"), "n": "i32"}
    mod = load(kernels.of_a_tuple, signature=signature, BLOCK=64, grid="ceil_div(n, BLOCK)")
    x, out = aligned_array(), aligned_array()
    launch = launched(stub_driver, mod.of_a_tuple, x, out, 2.5, 100)
    assert launch.arguments == (pointer(x), pointer(out), struct.pack("<f", 2.5), *numbers(100), *HIDDEN)
    for pair in ((x, out, 2.5), kernels.Pair(x, out, 2.5)):
        assert launched(stub_driver, mod.of_a_tuple, pair, 100).arguments == launch.arguments
        assert launched(stub_driver, mod.of_a_tuple[2], pair, 100).grid == (2, 1, 1)
    with pytest.raises(TypeError, match=r"of_a_tuple\(\) takes 4 arguments \(pair_0, pair_1, pair_2, n\), got 2"):
        mod.of_a_tuple((x, out), 100)
    with pytest.raises(TypeError, match="argument 'pair_2' must be a float, got str"):
        mod.of_a_tuple((x, out, "2"), 100)
    sized = {"pair": ("*fp32:16", "*fp32:16", tl.constexpr(64)), "n": "i32"}
    mod = load(kernels.of_a_sized_tuple, signature=sized, grid="ceil_div(n, pair_2)")
    launch = launched(stub_driver, mod.of_a_sized_tuple, (x, out, 64), 100)
    assert (launch.arguments, launch.grid[0]) == ((pointer(x), pointer(out), *numbers(100), *HIDDEN), 2)
    with pytest.raises(
        ValueError,
        match=r"of_a_sized_tuple\(\): argument 'pair_2' must be 64, with which the kernel was compiled, got 32",
    ):
        mod.of_a_sized_tuple((x, out, 32), 100)
    assert launched(stub_driver, mod.of_a_sized_tuple, x, out, 100).arguments == launch.arguments
    mod = load(kernels.store_scalar, signature={"out_ptr": "*fp64", "x": "bf16"}, grid=1)
    launch = launched(stub_driver, mod.store_scalar, aligned_array(dtype="float64"), 1.5)
    assert launch.arguments[1] == struct.pack("<H", 0x3FC0)
    mod = load(kernels.with_repr, signature={"x_ptr": "*fp32", "n": "i32"}, BLOCK=64, grid=2)
    assert launched(stub_driver, mod.with_repr, x, 100).kernel == "renamed_64"


def test_the_grid_of_the_call_and_clusters(stub_driver: StubDriver):
    x = aligned_array()
    mod = load(kernels.vector_add, signature=ADD, BLOCK=128)
    assert launched(stub_driver, mod.vector_add[7], x, x, x, 300).grid == (7, 1, 1)
    mod = load(kernels.vector_add, signature=ADD, BLOCK=1024, num_ctas=2, grid="ceil_div(n, BLOCK)")
    launch = launched(stub_driver, mod.vector_add, x, x, x, 4096)
    assert launch.grid == (8, 1, 1)  # four programs of two blocks
    assert launch.call == "cuLaunchKernelEx"


@since(3, 4)
def test_descriptors_are_encoded_at_the_call(stub_driver: StubDriver):
    a, b, c = (aligned_array(dtype="float16") for _ in range(3))
    for array, shape in ((a, (256, 64)), (b, (128, 64)), (c, (256, 128))):
        array.shape, array.strides = shape, (shape[1], 1)
    launch = launched(stub_driver, library("persistent_matmul"), a, b, c, 256, 128, 64)
    assert (launch.grid, launch.block) == ((2, 1, 1), (256, 1, 1))
    assert [len(argument) for argument in launch.arguments[:5]] == [128, 4, 4, 8, 8]
    assert launch.arguments[1:3] == numbers(256, 64)
    assert launch.arguments[15:18] == numbers(256, 128, 64)
