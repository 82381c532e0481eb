"""Calls of Triton kernels, with stand-ins for their cubins: what reaches the driver, and what is refused before it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from support.calls import array
from support.triton import function, load_triton, parameter, specialize, stand_in

from jitload.model import Assumption

if TYPE_CHECKING:
    from support.driver import StubDriver

    import jitload

ADD = [parameter("x", "*fp32"), parameter("y", "*fp32"), parameter("n", "i32")]
ALIGNED = tuple(Assumption(parameter=name, kind="multiple_of", value=16) for name in "xyn")


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> jitload.Module:
    spec = specialize("add_kernel", ADD, assumptions=ALIGNED, constexprs=(("BLOCK", 1024),))
    return load_triton(
        tmp_path_factory.mktemp("triton") / "add", function("add", ("add", stand_in(spec)), grid="ceil_div(n, BLOCK)")
    )


def pointer(given: Any) -> bytes:
    return struct.pack("<Q", given.address)


def test_a_launch_has_the_block_and_the_hidden_pointers(add: jitload.Module, stub_driver: StubDriver) -> None:
    x, y = array(), array()
    add.add(x, y, 4096)
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.block) == ("add_kernel", (4, 1, 1), (128, 1, 1))
    assert launch.arguments == (pointer(x), pointer(y), struct.pack("<i", 4096), bytes(8), bytes(8))
