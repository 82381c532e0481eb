"""Grid, block, shared memory and stream: from the `Launch`, from its expressions, and from the call."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from support.arrays import CudaArray
from support.calls import array, assert_refused
from support.driver import StubDriver
from support.raw import RawValue, call_raw

import jitload
from jitload import Launch

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, int n) {}
extern "C" __global__ void numbers(int n, int m) {}
extern "C" __global__ void unsigned_wide(unsigned long long a) {}
extern "C" __global__ void flagged(bool b) {}
extern "C" __global__ void computed(const float* x, int n, short rows, unsigned char flag, bool large, long long all) {}
"""
BLOCKS = {
    "n_blocks": Launch(kernel="numbers", grid="n", block="m"),
    "y_blocks": Launch(kernel="numbers", grid=(1, "n"), block=(1, "m")),
    "z_blocks": Launch(kernel="numbers", grid=(1, 1, "n"), block=(1, 1, "m")),
    "three": Launch(kernel="numbers", grid=("n", "n + 1", 3), block=("m", 2, "m // 2"), shared_bytes="4 * m"),
    "shared": Launch(kernel="numbers", grid=1, block=1, shared_bytes="n"),
    "division": Launch(kernel="numbers", grid="n // m", block=1),
    "either": Launch(kernel="numbers", grid="n // m if m else 7", block=1),
}
OTHERS = {
    "scale": Launch(grid="ceil_div(n, 256)", block=256),
    "grid_only": Launch(kernel="scale", grid="ceil_div(n, 256)"),
    "block_only": Launch(kernel="scale", block=64),
    "neither": Launch(kernel="scale"),
    "flagged": Launch(grid="b + 1", block=1),
    "large": Launch(kernel="unsigned_wide", grid="a", block=1),
    "shapes": Launch(kernel="scale", grid=("x.shape[0]", "x.size(-1)", "x.ndim"), block="y.stride(0)", nullable="x"),
    "computed": Launch(
        grid="ceil_div(n, 4)",
        block="rows",
        args={"n": "x.numel()", "rows": "x.shape[0]", "flag": "n - 1", "large": "n > 5", "all": "n * 2147483648"},
    ),
}


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("launching", cuda_sources=SOURCE, functions={**BLOCKS, **OTHERS}, arch="sm_90a")


def shape_of(driver: StubDriver, function: Any, *arguments: Any) -> tuple[Any, ...]:
    """Return grid and block of the one launch that a call makes."""
    driver.clear()
    function(*arguments)
    (launch,) = driver.launches()
    return launch.grid, launch.block


def test_expressions_make_grid_block_and_shared_memory(mod, stub_driver):
    assert shape_of(stub_driver, mod.scale, array(), array(), 257) == ((2, 1, 1), (256, 1, 1))
    assert shape_of(stub_driver, mod.three, 5, 8) == ((5, 6, 3), (8, 2, 4))
    assert stub_driver.launches()[0].shared_bytes == 32
    x, y = array(shape=(3, 5)), array(shape=(4, 64))
    assert shape_of(stub_driver, mod.shapes, x, y, 0) == ((3, 5, 2), (64, 1, 1))
    assert shape_of(stub_driver, mod.either, 20, 5)[0] == (4, 1, 1)
    assert shape_of(stub_driver, mod.either, 20, 0)[0] == (7, 1, 1)


EXPRESSION_ERRORS: list[tuple[str, tuple[Any, ...], str]] = [
    ("large", (2**63,), "grid = a: argument 'a' is 2**63 or more, too large for an expression"),
    (
        "shapes",
        (None, array(), 0),
        "grid[0] = x.shape[0]: argument 'x' is not a tensor in this call, so it has no shape",
    ),
]


def test_an_expression_reads_pythons_bool_and_no_other(mod, stub_driver):
    assert shape_of(stub_driver, mod.flagged, True)[0] == (2, 1, 1)
    stub_driver.clear()
    text = "flagged(): grid = b + 1: argument 'b' is a NumPy bool, which expressions cannot use; pass bool(…)"
    assert_refused(TypeError, text, mod.flagged, np.bool_(1))
    assert stub_driver.launches() == []


def test_computed_parameters_are_launched(mod, stub_driver):
    assert shape_of(stub_driver, mod.computed, array(shape=(2, 5))) == ((3, 1, 1), (2, 1, 1))
    (launch,) = stub_driver.launches()
    numbers = [int.from_bytes(argument, "little") for argument in launch.arguments[1:]]
    assert [len(argument) for argument in launch.arguments] == [8, 4, 2, 1, 1, 8]
    assert numbers == [10, 2, 9, 1, 10 * 2**31]


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2**31,), "'n' (int) must be from -2147483648 to 2147483647, got 2147483648"),
        ((2**15, 1), "'rows' (short) must be from -32768 to 32767, got 32768"),
        ((257,), "'flag' (unsigned char) must be from 0 to 255, got 256"),
        ((0, 3), "'flag' (unsigned char) must be from 0 to 255, got -1"),
    ],
)
def test_a_computed_parameter_has_the_range_of_its_type(mod, stub_driver, shape, text):
    x = CudaArray(np.zeros(1, np.float32), shape=shape)
    assert_refused(ValueError, f"computed(): computed parameter {text}", mod.computed, x)
    assert stub_driver.calls() == []


GRID_LIMIT = "is over CUDA's limit of (2147483647, 65535, 65535) blocks"
BLOCK_LIMIT = "is over CUDA's limit of (1024, 1024, 64) and 1024 threads in all"
EXTENTS = [
    ("n_blocks", -1, 1, "grid (-1, 1, 1) must not be negative"),
    ("y_blocks", -(2**31), 1, f"grid (1, {-(2**31)}, 1) must not be negative"),
    ("z_blocks", -1, 0, "grid (1, 1, -1) must not be negative"),
    ("y_blocks", 65536, 1, f"grid (1, 65536, 1) {GRID_LIMIT}"),
    ("z_blocks", 65536, 1, f"grid (1, 1, 65536) {GRID_LIMIT}"), ("n_blocks", 1, 0, "block (0, 1, 1) must be positive"),
    ("y_blocks", 1, -3, "block (1, -3, 1) must be positive"), ("z_blocks", 0, 0, "block (1, 1, 0) must be positive"),
    ("n_blocks", 1, 1025, f"block (1025, 1, 1) {BLOCK_LIMIT}"),
    ("y_blocks", 1, 1025, f"block (1, 1025, 1) {BLOCK_LIMIT}"),
    ("z_blocks", 1, 65, f"block (1, 1, 65) {BLOCK_LIMIT}"), ("three", 1, 64, f"block (64, 2, 32) {BLOCK_LIMIT}"),
    ("shared", -1, 1, "shared_bytes must be from 0 to 2147483647, got -1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "text"), [*EXPRESSION_ERRORS, *((name, (n, m), text) for name, n, m, text in EXTENTS)]
)
def test_expressions_and_extents_are_checked_before_the_driver_sees_them(mod, stub_driver, name, arguments, text):
    assert_refused(ValueError, f"{name}(): {text}", mod[name], *arguments)
    assert stub_driver.calls() == []


def test_the_largest_extents_pass(mod, stub_driver):
    assert shape_of(stub_driver, mod.n_blocks, 2**31 - 1, 1024) == ((2**31 - 1, 1, 1), (1024, 1, 1))
    assert shape_of(stub_driver, mod.y_blocks, 65535, 1024) == ((1, 65535, 1), (1, 1024, 1))
    assert shape_of(stub_driver, mod.z_blocks, 65535, 64) == ((1, 1, 65535), (1, 1, 64))
    assert_refused(ValueError, f"n_blocks(): grid ({2**31}, 1, 1) {GRID_LIMIT}", mod.n_blocks[2**31, 1], 1, 1)


def test_a_grid_of_no_blocks_returns_and_asks_the_driver_nothing(mod, stub_driver):
    for name in ("n_blocks", "y_blocks", "z_blocks"):
        mod[name](0, 1)
    mod.scale(array(shape=(0,)), array(shape=(0,)), 0)
    mod.scale[(5, 0), 1](array(), array(), 1)
    assert stub_driver.calls() == []
    assert_refused(TypeError, "scale(): argument 'n' must be an int, got None", mod.scale, array(), array(), None)


def test_a_kernel_without_grid_and_block_says_how_to_give_them(mod, stub_driver):
    call = (array(), array(), 8)
    for name, missing in (("neither", "grid and block"), ("grid_only", "block"), ("block_only", "grid")):
        pronoun = "them" if "and" in missing else "it"
        rule = f"has no {missing}: call {name}[grid, block](…), or declare {pronoun} in its Launch"
        assert_refused(TypeError, f"{name}() {rule}", mod[name], *call)
    assert shape_of(stub_driver, mod.neither[3, 4], *call) == ((3, 1, 1), (4, 1, 1))
    assert shape_of(stub_driver, mod.grid_only[None, 4], *call) == ((1, 1, 1), (4, 1, 1))
    assert shape_of(stub_driver, mod.block_only[3, None], *call) == ((3, 1, 1), (64, 1, 1))
    rule = "has no block: call grid_only[grid, block](…), or declare it in its Launch"
    assert_refused(TypeError, f"grid_only() {rule}", mod.grid_only[3, None], *call)


GIVEN = [
    ((3, 32), (3, 1, 1), (32, 1, 1)), (((3,), (32, 2)), (3, 1, 1), (32, 2, 1)),
    (((3, 4, 5), None), (3, 4, 5), (256, 1, 1)), ((None, 64), (1, 1, 1), (64, 1, 1)),
    ((None, None), (1, 1, 1), (256, 1, 1)),
    ((np.int32(3), np.uint8(32)), (3, 1, 1), (32, 1, 1)), (([3, np.int64(4)], [32]), (3, 4, 1), (32, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("key", "grid", "block"), GIVEN)
def test_grid_and_block_given_at_the_call(mod, stub_driver, key, grid, block):
    call = (array(), array(), 8)
    assert shape_of(stub_driver, mod.scale[key], *call) == (grid, block)
    with_shared, with_stream = (*key, 96), (*key, None, 0x50)
    assert shape_of(stub_driver, mod.scale[with_shared], *call) == (grid, block)
    assert stub_driver.launches()[0].shared_bytes == 96
    assert shape_of(stub_driver, mod.scale[with_stream], *call) == (grid, block)
    assert (stub_driver.launches()[0].stream, stub_driver.launches()[0].shared_bytes) == (0x50, 0)


def test_what_is_given_is_checked_like_what_is_declared(mod, stub_driver):
    call = (array(), array(), 8)
    for key, text in (
        ((-1, 1), "grid (-1, 1, 1) must not be negative"),
        (((1, 1, 2**63 - 1), 1), f"grid (1, 1, {2**63 - 1}) {GRID_LIMIT}"),
        ((1, 1, 2**31), "shared_bytes must be from 0 to 2147483647, got 2147483648"),
    ):
        assert_refused(ValueError, f"scale(): {text}", mod.scale[key], *call)
    assert stub_driver.calls() == []


def test_shared_memory_given_wins_and_zero_is_a_number(mod, stub_driver):
    configured = [mod.shared[1, 1, 64], mod.shared[1, 1, 0], mod.shared[1, 1, None], mod.shared[1, 1]]
    for function in configured:
        function(16, 1)
    assert [launch.shared_bytes for launch in stub_driver.launches()] == [64, 0, 16, 16]


def test_an_expression_that_the_call_makes_needless_is_not_evaluated(mod, stub_driver):
    assert shape_of(stub_driver, mod.division[5, None], 1, 0)[0] == (5, 1, 1)
    assert shape_of(stub_driver, mod.shapes[1, 1], None, array(), 1) == ((1, 1, 1), (1, 1, 1))
    with pytest.raises(ValueError, match="division of 1 by zero"):
        mod.division[None, 1](1, 0)


STREAMS = [
    (0x99, 0x99), (0, 0), (1, 1), (SimpleNamespace(cuda_stream=0x98), 0x98), (SimpleNamespace(ptr=0x97), 0x97),
    (SimpleNamespace(__cuda_stream__=lambda: (0, 0x96)), 0x96), (SimpleNamespace(__cuda_stream__=(0, 0x95)), 0x95),
    (SimpleNamespace(__cuda_stream__=lambda: (0, 0x94), cuda_stream=1, ptr=2), 0x94),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "handle"), STREAMS)
def test_a_stream_may_have_any_protocol(mod, stub_driver, stream, handle):
    mod.scale[1, 1, 0, stream](array(), array(), 8)
    assert [launch.stream for launch in stub_driver.launches()] == [handle]


def test_the_current_stream_of_the_tensors_device_is_used(mod, stub_driver):
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:1"), 0x1234):
        mod.scale(array(device=1), array(device=1), 8)
        mod.scale(array(), array(), 8)
        mod.scale[1, 1](array(device=1), array(device=1), 8)
        mod.scale[1, 1, None, 0](array(device=1), array(device=1), 8)
    mod.scale(array(device=1), array(device=1), 8)
    assert [launch.stream for launch in stub_driver.launches()] == [0x1234, 0, 0x1234, 0, 0]


def test_a_raw_pointer_is_no_tensor_of_a_device(mod, stub_driver):
    stub_driver.use_device(1)
    call_raw(mod.scale, RawValue(kind=4, v_ptr=64), RawValue(kind=4, v_ptr=128), 8)
    assert [launch.device for launch in stub_driver.launches()] == [1]
