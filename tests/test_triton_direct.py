"""Triton functions called straight from Python's objects (core/python.cc), with a framework played by the test."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING

import pytest
from support.calls import fresh
from support.triton import build_triton, function, multiple, null, parameter, specialize, stand_in
from test_direct_calls import Array, arrays_as_tensors
from test_triton_scratch import UINT8, Framework

from jitload.loader.function import TypedFunction
from jitload.loader.module import loader_function
from jitload.model import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.driver import StubDriver

    import jitload

ARGUMENTS = [parameter("x", "*fp32"), parameter("bias", "None"), parameter("n", "i32"), parameter("s", "bf16")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assumptions = (null("bias"), multiple("n"))
    spec = specialize("scale", ARGUMENTS, taken=["x", "n", "s"], assumptions=assumptions)
    scratch = Scratch(size=32, alignment=16)
    wanting = specialize(
        "wanting", ARGUMENTS, taken=["x", "n", "s"], assumptions=assumptions[:1], global_scratch=scratch
    )
    functions = [
        function("scale", ("scale__a", stand_in(spec)), ("scale__b", stand_in(wanting)), grid="n"),
        function("wanting", ("wanting", stand_in(wanting)), grid="n"),
    ]
    return build_triton(tmp_path_factory.mktemp("triton") / "direct", *functions)


@pytest.fixture
def mod(library: Path, stub_driver: StubDriver) -> Iterator[jitload.Module]:
    module = fresh(library)
    assert isinstance(module.scale, TypedFunction)
    with arrays_as_tensors(module):
        yield module


def test_a_launch_on_the_frameworks_stream(mod: jitload.Module, stub_driver: StubDriver) -> None:
    x = Array(device=1)
    assert mod.scale(x, None, 16, 1) is None
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.device, launch.stream) == ("scale", (16, 1, 1), 1, 0x5001)
    address = struct.pack("<Q", ctypes.addressof(x.memory))
    assert launch.arguments == (address, struct.pack("<i", 16), b"\x80\x3f", bytes(8), bytes(8))


def test_the_grid_and_the_stream_of_the_call(mod: jitload.Module, stub_driver: StubDriver) -> None:
    mod.scale[3, 4](Array(), None, 16, 1.0)
    mod.scale[(5,), None, None, 0x77](Array(), None, 16, 1.0)
    assert [(one.grid, one.stream) for one in stub_driver.launches()] == [((3, 4, 1), 0x5000), ((5, 1, 1), 0x77)]


def test_a_refusal_is_raised_once(mod: jitload.Module, stub_driver: StubDriver) -> None:
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"^scale__a\(\): argument 'n' \(i32\) must be a multiple of 16: the kernel"
        ):
            mod.scale__a(Array(), None, 17, 1.0)
        with pytest.raises(TypeError, match=r"^scale__a\(\): argument 'n' must be an int, got float$"):
            mod.scale__a(Array(), None, 16.0, 1.0)
    assert stub_driver.launches() == []


def test_scratch_on_the_frameworks_stream(mod: jitload.Module, stub_driver: StubDriver) -> None:
    framework = Framework(stub_driver)
    loader_function(mod, "preload")(*framework.addresses())
    stub_driver.clear()
    for held in (False, True):
        mod.wanting.release_gil = not held
        mod.scale(Array(), None, 17, 1.0)  # the second variant
        mod.wanting(Array(), None, 2, 1.0)
    events = [("allocate", 17 * 32 + 15, UINT8), ("free", 1), ("allocate", 2 * 32 + 15, UINT8), ("free", 2)]
    assert framework.events[:4] == events
    assert [event[0] for event in framework.events] == ["allocate", "free"] * 4
    assert {launch.kernel for launch in stub_driver.launches()} == {"wanting"}
    assert stub_driver.calls("cuMemAllocAsync") == []
