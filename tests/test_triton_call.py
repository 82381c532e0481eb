"""Calls of Triton kernels, with stand-ins for their cubins: which variant is launched, its arguments, and refusals."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import CudaArray
from support.calls import array, assert_refused, fresh
from support.triton import (
    aligned_array,
    build_triton,
    function,
    launched,
    load_triton,
    multiple,
    null,
    one,
    parameter,
    specialize,
    stand_in,
)

import jitload
from jitload.model import Cubin

ADD = [parameter("x", "*fp32"), parameter("y", "*fp32"), parameter("n", "i32")]
KINDS = [
    *(parameter(type_, type_) for type_ in ("i1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")),
    *(parameter(type_, type_) for type_ in ("fp16", "bf16", "fp32", "fp64")),
    parameter("half", "*fp16"), parameter("fp8", "*fp8e4nv", "float8_e4m3fn"), parameter("any", "*u4"),
]  # fmt: skip


def _functions() -> list[Any]:
    aligned = (multiple("x"), multiple("y"), multiple("n"))
    add = specialize("add_kernel", ADD, assumptions=aligned, constexprs=(("BLOCK", 1024), ("EVEN", True), ("F", 0.5)))
    kinds = specialize("kinds_kernel", KINDS, num_warps=1, hidden_pointers=0)
    some = [parameter("x", "*fp32"), parameter("bias", "None"), parameter("s", "i32"), parameter("n", "i64")]
    left_out = specialize("left_out", some, taken=["x", "n"], assumptions=(null("bias"), one("s")), hidden_pointers=1)
    return [
        function("add", ("add", stand_in(add)), grid="ceil_div(n, BLOCK) if EVEN else 7"),
        function("open", ("open", stand_in(add)), grid=None),
        function("planes", ("planes", stand_in(add)), grid=("n", "x.shape[0]", 3)),
        function("kinds", ("kinds", stand_in(kinds))),
        function("left_out", ("left_out", stand_in(left_out)), grid="n"),
        *_clusters(),
    ]


def _clusters() -> list[Any]:
    facts: dict[str, Any] = {"num_warps": 8, "is_pdl": True, "is_cooperative": True, "shared_bytes": 100_000}
    plain = specialize("attributes", ADD, **facts)
    pair = specialize("pair", ADD, num_ctas=2, cluster=(2, 1, 1), hidden_pointers=2)
    large = specialize("large", ADD, num_ctas=16, cluster=(8, 2, 1))
    made = {"attributes": plain, "pair": pair, "large": large}
    grid = ("n", "2", "1")
    return [function(name, (name, stand_in(spec)), grid=grid) for name, spec in made.items()]


@pytest.fixture(scope="module")
def mod(tmp_path_factory: pytest.TempPathFactory) -> jitload.Module:
    return load_triton(tmp_path_factory.mktemp("triton") / "calls", *_functions())


def pointer(array: CudaArray) -> bytes:
    return struct.pack("<Q", array.address)


def test_each_kind_has_the_width_of_the_cubin(mod, stub_driver):
    numbers = (True, -128, 255, -(2**15), 2**16 - 1, -(2**31), 2**32 - 1, -(2**63), 2**63 + 5)
    half, fp8, complex64 = array("float16"), array("float8_e4m3fn"), array("complex64")
    launch = launched(stub_driver, mod.kinds, *numbers, 1.0009765625, -3.0, 0.1, 0.1, half, fp8, complex64)
    scalars = (*map(int, numbers), np.float16(1.0009765625).view(np.uint16), 0xC040, 0.1, 0.1)
    codes = ["<B", "<b", "<B", "<h", "<H", "<i", "<I", "<q", "<Q", "<H", "<H", "<f", "<d"]
    packed = tuple(struct.pack(code, scalar) for code, scalar in zip(codes, scalars, strict=True))
    assert launch.arguments == (*packed, pointer(half), pointer(fp8), pointer(complex64))
    assert launch.block == (32, 1, 1)


@pytest.mark.parametrize(("index", "type_", "value"), [(9, "fp16", 65520.0), (9, "fp16", 70000), (10, "bf16", 1e39)])
def test_a_float_beyond_its_type_is_refused(mod, stub_driver, index, type_, value):
    arguments = [*[0] * 13, array("float16"), array("float8_e4m3fn"), array()]
    arguments[index] = value
    text = f"kinds(): argument '{type_}' ({type_}) is too large for its type"
    assert_refused(ValueError, text, mod.kinds, *arguments)
    assert stub_driver.calls() == []


def test_arguments_that_the_cubin_does_not_take_stay_in_the_signature(mod, stub_driver):
    x = array()
    launch = launched(stub_driver, mod.left_out[2], x, None, 1, 2**40)
    assert launch.arguments == (pointer(x), struct.pack("<q", 2**40), bytes(8))
    assert str(mod.left_out.__signature__).startswith("(x: torch.Tensor, bias: torch.Tensor | None, s:")


FOR_THAT = "the kernel was compiled for that"
INSTEAD = "compile it without this assumption, or add a variant without it"


def test_a_misaligned_pointer_is_never_launched(mod, stub_driver):
    x, y = aligned_array(), aligned_array(offset=4)
    problem = f"must be aligned to 16 bytes: {FOR_THAT}, and its address is {y.address:#x}; {INSTEAD}"
    text = f"add(): argument 'y' (*fp32) {problem}"
    assert_refused(ValueError, text, mod.add, x, y, 4096)
    assert stub_driver.calls() == []


@pytest.mark.parametrize("number", [4097, 8, -8])
def test_an_integer_must_be_the_multiple_that_was_assumed(mod, stub_driver, number):
    text = f"add(): argument 'n' (i32) must be a multiple of 16: {FOR_THAT}, got {number}; {INSTEAD}"
    assert_refused(ValueError, text, mod.add, aligned_array(), aligned_array(), number)
    launched(stub_driver, mod.open[(1,)], aligned_array(), aligned_array(), -16)


def test_an_integer_assumed_to_be_1_and_a_pointer_assumed_to_be_null_are_checked(mod, stub_driver):
    text = f"left_out(): argument 's' (i32) must be 1: {FOR_THAT}, got 2; {INSTEAD}"
    assert_refused(ValueError, text, mod.left_out, array(), None, 2, 8)
    text = f"left_out(): argument 'bias' must be None: {FOR_THAT}; {INSTEAD}"
    assert_refused(ValueError, text, mod.left_out, array(), array(), 1, 8)
    text = "left_out(): argument 'x' must be a float32 CUDA tensor, got None"
    assert_refused(TypeError, text, mod.left_out, None, None, 1, 8)
    assert stub_driver.calls() == []


def test_types_devices_and_ranges_are_checked_before_assumptions(mod, stub_driver):
    x, y = aligned_array(), aligned_array()
    assert_refused(TypeError, "add() takes 3 arguments (x, y, n), got 2", mod.add, x, y)
    text = "add(): argument 'y' must be a float32 CUDA tensor, got float16"
    assert_refused(TypeError, text, mod.add, x, aligned_array(4, "float16"), 17)
    text = "add(): argument 'y' is on cuda:1, but 'x' is on cuda:0; all tensors must be on one device"
    assert_refused(ValueError, text, mod.add, x, aligned_array(device=1), 16)
    text = "add(): argument 'n' (i32) must be from -2147483648 to 2147483647, got 2147483648"
    assert_refused(ValueError, text, mod.add, x, y, 2**31)
    assert stub_driver.calls() == []


def test_an_empty_grid_launches_nothing(mod, stub_driver):
    mod.add(aligned_array(), aligned_array(), 0)
    mod.planes(aligned_array(), aligned_array(), 0)
    assert stub_driver.calls() == []


def test_a_grid_may_come_from_shapes_and_from_the_call(mod, stub_driver):
    x, y = aligned_array(), aligned_array()
    assert launched(stub_driver, mod.planes, x, y, 32).grid == (32, 64, 3)
    for configured, grid in ((5, (5, 1, 1)), ((5,), (5, 1, 1)), ((5, 6), (5, 6, 1)), ((5, 6, 7), (5, 6, 7))):
        assert launched(stub_driver, mod.open[configured], x, y, 16).grid == grid
        assert launched(stub_driver, mod.add[configured], x, y, 16).grid == grid
    launch = launched(stub_driver, mod.add[(2, 3), None, None, 0x77], x, y, 16)
    assert (launch.grid, launch.stream) == ((2, 3, 1), 0x77)
    launch = launched(stub_driver, mod.add[None, None, None, 0x77], x, y, 2048)
    assert (launch.grid, launch.stream) == ((2, 1, 1), 0x77)


@pytest.mark.parametrize("key", [((4, 2), 128), (4, None, 1024), (4, None, None, 0, 0)])
def test_the_block_is_fixed(mod, key):
    reason = "the block and the shared memory of a Triton kernel are fixed when it is compiled"
    text = f"add[…] takes [grid], or [grid, None, None, stream]: {reason}"
    assert_refused(TypeError, text, mod.add.__getitem__, key)


def test_a_call_without_a_grid_is_an_error_that_asks_for_one(mod):
    text = "open() has no grid: call open[grid](…), or declare it with grid="
    assert_refused(TypeError, text, mod.open, aligned_array(), aligned_array(), 16)


def test_attributes_are_those_the_kernel_was_compiled_with(mod, stub_driver):
    launch = launched(stub_driver, mod.attributes, array(), array(), 3)
    assert (launch.call, launch.block, launch.shared_bytes) == ("cuLaunchKernelEx", (256, 1, 1), 100_000)
    assert {number: launch.attribute(number) for number in launch.attributes} == {2: 1, 6: 1}
    (opted,) = [call for call in stub_driver.calls("cuKernelSetAttribute") if call["attribute"] == "8"]
    assert opted.number("value") == 232448  # all that the device gives


def test_a_cluster_of_sixteen_is_allowed_first(mod, stub_driver):
    launch = launched(stub_driver, mod.large, array(), array(), 1)
    assert (launch.grid, launch.cluster) == ((16, 2, 1), (8, 2, 1))


N_PARAMETERS = [parameter("x", "*fp32"), parameter("n", "i32")]


def variant(symbol: str, **facts: Any) -> Cubin:
    return stand_in(specialize(symbol, N_PARAMETERS, hidden_pointers=0, **facts))


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Variants that differ in what is assumed of `n`."""
    x, block = multiple("x"), "BLOCK"
    variants = [
        ("scale__fast", variant("fast", assumptions=(multiple("n"), x), constexprs=((block, 512),))),
        (
            "scale__one",
            variant("single", taken=["x"], assumptions=(x, one("n")), constexprs=((block, 1),), num_warps=1),
        ),
        ("scale__any", variant("slow", assumptions=(x,), constexprs=((block, 64),))),
    ]
    scale = function("scale", *variants, grid="ceil_div(n, BLOCK)")
    return load_triton(tmp_path_factory.mktemp("triton") / "variants", scale).scale


def test_the_first_variant_that_fits_is_launched_and_else_the_closest_is_named(scale, stub_driver):
    for n, expected in ((1024, ("fast", 2, 128)), (1, ("single", 1, 32)), (1000, ("slow", 16, 128))):
        launch = launched(stub_driver, scale, aligned_array(), n)
        assert (launch.kernel, launch.grid[0], launch.block[0]) == expected
    with pytest.raises(
        ValueError, match=r"'x' .* aligned to 16 bytes: .*; no variant fits, and this one comes closest$"
    ):
        scale(aligned_array(offset=8), 1000)


@pytest.fixture(scope="module")
def multi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A variant for two architectures that are launched alike, and two for architectures that are not."""
    spec = specialize("same", N_PARAMETERS)
    wide = specialize("wide", N_PARAMETERS, num_warps=8)
    cubins = {
        "alike": (stand_in(spec, "sm_80"), stand_in(spec._replace(kernel=spec.kernel._replace(barriers=2)), "sm_90")),
        "unlike": (stand_in(wide._replace(num_warps=4), "sm_80"), stand_in(wide, "sm_90")),
    }
    functions = [function(name, (name, made)) for name, made in cubins.items()]
    return build_triton(tmp_path_factory.mktemp("triton") / "multi", *functions)


def test_the_code_for_the_device_is_launched_and_its_own_goes_before_an_older_one(multi, tmp_path, stub_driver):
    stub_driver.set_capability(1, 8, 6)
    module = fresh(multi)
    assert (list(module), module._jitload_facts()["copies"]) == (["alike", "unlike"], 3)
    for device, block in ((0, 256), (1, 128), (0, 256), (1, 128)):
        stub_driver.clear()
        module.unlike(array(device=device), 1)
        module.alike(array(device=device), 1)
        launches = [(launch.device, launch.block[0]) for launch in stub_driver.launches()]
        assert launches == [(device, block), (device, 128)]
    spec = specialize("near", N_PARAMETERS)
    cubins = (stand_in(spec, "sm_80"), stand_in(spec._replace(num_warps=2), "sm_86"))
    module = load_triton(tmp_path / "near", function("near", ("near", cubins)))
    assert launched(stub_driver, module.near, array(device=1), 1).block[0] == 64


def test_a_device_without_code_is_an_error_that_lists_it(multi, stub_driver):
    stub_driver.set_capability(1, 7, 5)
    module = fresh(multi)
    for name in ("alike", "unlike"):
        text = f'{name}(): this library has sm_80, sm_90; this GPU, cuda:1, is sm_75: build it with arch="sm_75"'
        assert_refused(RuntimeError, text, module[name], array(device=1), 1)
