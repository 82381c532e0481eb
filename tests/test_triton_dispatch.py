"""Dispatchers over the variants of a Triton kernel: which variant is launched, and the errors if none fits."""

import struct
from pathlib import Path
from typing import Any

import pytest
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
from jitload.triton.wrapper import TritonFunction

N_PARAMETERS = [parameter("x", "*fp32"), parameter("n", "i32")]
BIAS = [parameter("x", "*fp32"), parameter("bias", "*fp32"), parameter("n", "i32")]


def variant(symbol: str, arguments: list[Any], **facts: Any) -> Cubin:
    return stand_in(specialize(symbol, arguments, hidden_pointers=0, **facts))


def _sizes() -> TritonFunction:
    """Return variants that differ in what is assumed of `n`."""
    both = (multiple("x"), multiple("n"))
    return function(
        "scale",
        ("scale__fast", variant("fast", N_PARAMETERS, assumptions=both, constexprs=(("BLOCK", 512),))),
        ("scale__one", variant("single", N_PARAMETERS, taken=["x"], assumptions=(multiple("x"), one("n")),
                               constexprs=(("BLOCK", 1),), num_warps=1)),
        ("scale__any", variant("slow", N_PARAMETERS, assumptions=(multiple("x"),), constexprs=(("BLOCK", 64),))),
        grid="ceil_div(n, BLOCK)",
    )  # fmt: skip


def _types() -> TritonFunction:
    """Return variants that differ in the types, and in whether there is a bias."""
    half = [parameter("x", "*fp16"), parameter("bias", "*fp16"), parameter("n", "i64")]
    none = [parameter("x", "*fp32"), parameter("bias", "None"), parameter("n", "i32")]
    return function(
        "norm",
        ("norm__f32", variant("f32", BIAS, assumptions=(multiple("bias"),))),
        ("norm__f16", variant("f16", half)),
        ("norm__none", variant("none", none, taken=["x", "n"], assumptions=(null("bias"), multiple("n", 8)))),
    )


@pytest.fixture(scope="module")
def mod(tmp_path_factory: pytest.TempPathFactory) -> jitload.Module:
    return load_triton(tmp_path_factory.mktemp("triton") / "variants", _sizes(), _types())


# ---- choice of a variant -----------------------------------------------------------------------------------------


def test_the_first_variant_that_fits_is_launched(mod, stub_driver):
    assert launched(stub_driver, mod.scale, aligned_array(), 1024).kernel == "fast"
    assert stub_driver.launches()[0].grid == (2, 1, 1)
    assert launched(stub_driver, mod.scale, aligned_array(), 1).kernel == "single"
    assert (stub_driver.launches()[0].block, stub_driver.launches()[0].grid) == ((32, 1, 1), (1, 1, 1))
    assert launched(stub_driver, mod.scale, aligned_array(), 1000).kernel == "slow"
    assert stub_driver.launches()[0].grid == (16, 1, 1)


def test_types_and_none_pick_a_variant_too(mod, stub_driver):
    assert launched(stub_driver, mod.norm, array(), aligned_array(), 3).kernel == "f32"
    assert launched(stub_driver, mod.norm, array("float16"), array("float16"), 2**40).kernel == "f16"
    assert launched(stub_driver, mod.norm, array(), None, 24).kernel == "none"
    assert stub_driver.launches()[0].arguments[1] == struct.pack("<i", 24)


def test_every_variant_has_its_own_name(mod, stub_driver):
    assert list(mod) == [
        "scale", "scale__fast", "scale__one", "scale__any", "norm", "norm__f32", "norm__f16", "norm__none",
    ]  # fmt: skip
    assert launched(stub_driver, mod.scale__any, aligned_array(), 1024).kernel == "slow"
    text = (
        "scale__fast(): argument 'n' (i32) must be a multiple of 16: the kernel was compiled for that, got 1000; "
        "compile it without this assumption, or add a variant without it"
    )
    assert_refused(ValueError, text, mod.scale__fast, aligned_array(), 1000)
    assert mod.scale._jitload_facts["triton"]["variants"] == ["scale__fast", "scale__one", "scale__any"]


def test_a_dispatcher_can_be_configured(mod, stub_driver):
    assert launched(stub_driver, mod.scale[(7, 2)], aligned_array(), 1024).kernel == "fast"
    assert stub_driver.launches()[0].grid == (7, 2, 1)
    assert launched(stub_driver, mod.scale[None, None, None, 0x99], aligned_array(), 3).kernel == "slow"
    assert stub_driver.launches()[0].stream == 0x99


# ---- no variant fits ---------------------------------------------------------------------------------------------

CLOSEST = "no variant fits, and this one comes closest"


def test_the_error_is_about_the_variant_that_comes_closest(mod, stub_driver):
    x = aligned_array(offset=8)
    text = (
        "scale(): argument 'x' (*fp32) must be aligned to 16 bytes: the kernel was compiled for that, and its address "
        f"is {x.address:#x}; {CLOSEST}"
    )
    assert_refused(ValueError, text, mod.scale, x, 1000)
    text = f"norm(): argument 'n' (i32) must be a multiple of 8: the kernel was compiled for that, got 3; {CLOSEST}"
    assert_refused(ValueError, text, mod.norm, array(), None, 3)
    assert stub_driver.calls() == []


def test_arguments_that_no_variant_takes(mod, stub_driver):
    assert_refused(TypeError, "norm() takes 3 arguments (x, bias, n), got 1", mod.norm, array())
    text = "norm(): argument 'bias' must be a float16 CUDA tensor, got float32"
    assert_refused(TypeError, text, mod.norm, array("float16"), array(), 3)
    text = "scale(): argument 'n' (i32) must be from -2147483648 to 2147483647, got 4294967296"
    assert_refused(ValueError, text, mod.scale, aligned_array(), 2**32)
    assert stub_driver.calls() == []


# ---- architectures -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def multi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A variant for two architectures that are launched alike, and one for two that are not."""
    spec = specialize("same", N_PARAMETERS)
    wide = specialize("wide", N_PARAMETERS, num_warps=8)
    alike = (stand_in(spec, "sm_80"), stand_in(spec._replace(), "sm_90"))
    unlike = (stand_in(wide._replace(num_warps=4), "sm_80"), stand_in(wide, "sm_90"))
    return build_triton(
        tmp_path_factory.mktemp("triton") / "multi",
        function("alike", ("alike", alike)),
        function("unlike", ("u", unlike)),
    )


def test_the_code_for_the_device_is_launched(multi, stub_driver):
    stub_driver.set_capability(1, 8, 6)
    module = fresh(multi)
    assert list(module) == ["alike", "unlike"]
    for device, block in ((0, 256), (1, 128), (0, 256), (1, 128)):
        stub_driver.clear()
        module.unlike(array(device=device), 1)
        module.alike(array(device=device), 1)
        launches = [(launch.device, launch.block[0]) for launch in stub_driver.launches()]
        assert launches == [(device, block), (device, 128)]


def test_code_for_the_device_itself_goes_before_an_older_one(tmp_path, stub_driver):
    stub_driver.set_capability(0, 8, 6)
    spec = specialize("near", N_PARAMETERS)
    cubins = (stand_in(spec, "sm_80"), stand_in(spec._replace(num_warps=2), "sm_86"))
    module = load_triton(tmp_path / "near", function("near", ("near", cubins)))
    module.near(array(), 1)
    assert [launch.block[0] for launch in stub_driver.launches()] == [64]


def test_a_device_without_code_is_an_error_that_lists_it(multi, stub_driver):
    stub_driver.set_capability(1, 7, 5)
    module = fresh(multi)
    for name in ("alike", "unlike"):
        text = f'{name}(): this library has sm_80, sm_90; this GPU, cuda:1, is sm_75: build it with arch="sm_75"'
        assert_refused(RuntimeError, text, module[name], array(device=1), 1)


def test_a_variant_that_fits_on_another_device_only(tmp_path, stub_driver):
    loose, strict = specialize("loose", N_PARAMETERS), specialize("strict", N_PARAMETERS, assumptions=(multiple("n"),))
    variants = (("f__strict", stand_in(strict, "sm_90")), ("f__loose", stand_in(loose, "sm_80")))
    module = load_triton(tmp_path / "split", function("f", *variants))
    module.f(array(), 16)
    assert_refused(
        ValueError, "f(): a variant fits the arguments, but has no code for their device", module.f, array(), 3
    )
    text = 'f__loose(): this library has sm_80; this GPU, cuda:0, is sm_90: build it with arch="sm_90"'
    assert_refused(RuntimeError, text, module.f__loose, array(), 3)
    assert [launch.kernel for launch in stub_driver.launches()] == ["strict"]


def test_loading_resolves_what_suits_a_device_in_use(multi, stub_driver):
    stub_driver.set_capability(1, 7, 5)
    for device in (0, 1):
        stub_driver.set_primary_active(device, is_active=True)
    stub_driver.library.cuInit(0)
    module = fresh(multi)
    assert [call["kernel"] for call in stub_driver.calls("cuFuncLoad")] == ["same", "wide"]
    stub_driver.clear()
    module.alike(array(), 1)
    assert stub_driver.calls("cuLibraryLoadData") == []
