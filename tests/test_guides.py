"""The CUBIN launcher guide's NVRTC example, afresh, in both spellings."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from guides.affine import SPELLINGS, load_affine
from support.arrays import CudaArray, tensor_of

if TYPE_CHECKING:
    from support.driver import StubDriver

pytest_plugins = ["support.gpu_fixtures"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_it_launches_what_the_guide_says(spelling: str, stub_driver: StubDriver) -> None:
    module = load_affine(spelling, arch="sm_90")
    assert list(module) == ["affine"]
    x, y = CudaArray(np.zeros(300, np.float32)), CudaArray(np.zeros(300, np.float32))
    module.affine(tensor_of(x), tensor_of(y), 2.0, 0.5)
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.block) == ("affine", (3, 1, 1), (128, 1, 1))
    assert launch.arguments == (
        struct.pack("Q", x.address),
        struct.pack("Q", y.address),
        struct.pack("f", 2),
        struct.pack("f", 0.5),
        struct.pack("q", 300),
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_result_is_torchs(spelling: str) -> None:
    import torch

    x = torch.randn(100_003, device="cuda")
    y = torch.empty_like(x)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        load_affine(spelling).affine(x, y, 2.0, 0.5)
    stream.synchronize()
    torch.testing.assert_close(y, x * 2 + 0.5)
