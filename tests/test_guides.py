"""The guides' examples, afresh: the NVRTC example in both spellings, and a Triton kernel that C++ launches."""

import struct

import numpy as np
import pytest
from guides.affine import SPELLINGS, load_affine
from support.arrays import CudaArray, tensor_of


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_guides_nvrtc_example_launches_its_kernel(spelling, stub_driver):
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
def test_the_result_is_torchs(spelling):
    import torch

    x = torch.randn(100_003, device="cuda")
    y = torch.empty_like(x)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        load_affine(spelling).affine(x, y, 2.0, 0.5)
    stream.synchronize()
    torch.testing.assert_close(y, x * 2 + 0.5)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_results_of_a_triton_kernel():
    import torch

    pytest.importorskip("triton")
    from guides.triton_square import load_square, square

    x = torch.randn(5000, device="cuda")
    y = torch.zeros_like(x)
    compiled = square[(5,)](x, y, 5000, BLOCK=1024)
    assert torch.equal(y, x * x)
    load_square(compiled.kernel).square(x, y.zero_())
    assert torch.equal(y, x * x)
