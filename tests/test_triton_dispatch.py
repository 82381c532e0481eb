"""Dispatchers over the variants of a Triton kernel: which variant is launched, and the errors if none fits."""

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
    one,
    parameter,
    specialize,
    stand_in,
)

import jitload
from jitload.model import Cubin
from jitload.triton.wrapper import TritonFunction

N_PARAMETERS = [parameter("x", "*fp32"), parameter("n", "i32")]


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


@pytest.fixture(scope="module")
def mod(tmp_path_factory: pytest.TempPathFactory) -> jitload.Module:
    return load_triton(tmp_path_factory.mktemp("triton") / "variants", _sizes())


def test_the_first_variant_that_fits_is_launched(mod, stub_driver):
    assert launched(stub_driver, mod.scale, aligned_array(), 1024).kernel == "fast"
    assert stub_driver.launches()[0].grid == (2, 1, 1)
    assert launched(stub_driver, mod.scale, aligned_array(), 1).kernel == "single"
    assert (stub_driver.launches()[0].block, stub_driver.launches()[0].grid) == ((32, 1, 1), (1, 1, 1))
    assert launched(stub_driver, mod.scale, aligned_array(), 1000).kernel == "slow"
    assert stub_driver.launches()[0].grid == (16, 1, 1)


CLOSEST = "no variant fits, and this one comes closest"


def test_the_error_is_about_the_variant_that_comes_closest(mod, stub_driver):
    x = aligned_array(offset=8)
    text = (
        "scale(): argument 'x' (*fp32) must be aligned to 16 bytes: the kernel was compiled for that, and its address "
        f"is {x.address:#x}; {CLOSEST}"
    )
    assert_refused(ValueError, text, mod.scale, x, 1000)
    assert stub_driver.calls() == []


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
