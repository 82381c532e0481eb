"""Every kind of parameter on a GPU: what a kernel gets is what the call gave.

How numbers become bytes is shown without a GPU, by test_call_values.py and test_call_floats.py.
"""

import ctypes
import random
import struct

import pytest
import torch
from support.kernels import BLOCK_SIZES, ELEMENTS, load

import jitload

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.fixture(scope="module")
def structs(gpu: None) -> jitload.Module:
    return load("structs")


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_pointers_to_every_element_type(dtype):
    bits = torch.randint(0, 2 if dtype == "bool" else 256, (1000 * torch.float64.itemsize,), dtype=torch.uint8)
    x, y = (data.cuda().view(getattr(torch, dtype)) for data in (bits, torch.zeros_like(bits)))
    load("elements")[f"copy_{dtype}"](x, y)
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))


def test_a_pointer_to_structures_takes_bytes_of_a_tensor(structs):
    data = b"".join(struct.pack("fi", 0.5 * i, i) for i in range(10))
    pairs = torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda()
    out = torch.zeros((), device="cuda")
    structs.sum_pairs(pairs, out, 10)
    assert out.item() == sum(0.5 * i * i for i in range(10))


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_structures_from_one_byte_to_32_kilobytes(structs, size):
    data = random.Random(size).randbytes(size)
    out = torch.zeros((), dtype=torch.int64, device="cuda")
    structs[f"sum_block_{size}"]((ctypes.c_ubyte * size).from_buffer_copy(data), out)
    assert out.item() == sum(byte * (i % 251 + 1) for i, byte in enumerate(data))


def test_all_kinds_in_one_call(structs):
    p = torch.tensor([2.25], device="cuda")
    out = torch.zeros(12, dtype=torch.float64, device="cuda")
    pair = struct.pack("fi", -0.5, 12345)
    structs.mixed(True, p, -300, pair, 255, 1e-300, b"\x00", 700, -(2**31), b"\x07\x08\x09", 2**53, out)
    assert out.tolist() == [1, 2.25, -300, -0.5, 12345, 255, 1e-300, 700, -(2**31), 7, 9, 2**53]


def test_a_tensor_map_that_the_call_encodes(hopper):
    fetch, out = load("tensor_map").fetch, torch.zeros(8, 32, device="cuda")
    matrix = torch.randn(100, 64, device="cuda")
    for row, column in ((17, 32), (0, 0), (17, 32)):
        fetch(matrix, out, column, row)
        assert torch.equal(out, matrix[row : row + 8, column : column + 32])
    fetch(matrix, out, 0, 96)
    assert torch.equal(out[:4], matrix[96:, :32])
    assert out[4:].isnan().all()
    fetch(matrix[::2, 16:48], out, 0, 3)  # another shape and stride at another address
    assert torch.equal(out, matrix[6:22:2, 16:48])
    reshaped = matrix.view(64, 100)  # another shape at the same address
    fetch(reshaped, out, 64, 8)
    assert torch.equal(out, reshaped[8:16, 64:96])
    with pytest.raises(
        ValueError, match=r"must have strides of a multiple of 16 bytes below 2\*\*40 for its tensor map"
    ):
        fetch(matrix.view(-1)[:126].view(2, 63), out, 0, 0)


def test_an_im2col_map_that_the_call_encodes(hopper):
    fetch, out = load("tensor_map").fetch_pixels, torch.zeros(16, 16, device="cuda")
    images = torch.randn(2, 6, 5, 16, device="cuda")
    padded = torch.nn.functional.pad(images, (0, 0, 0, 0, 1, 1))
    for below, right in ((0, 0), (1, 1), (2, 0)):  # which element of the filter
        windows = padded[:, below : below + 6, right : right + 4].reshape(48, 16)
        for first in (0, 19):  # the second sixteen pixels go on in the next image
            fetch(images, out, 0, first // 4 - 1, first % 4, below, right)
            assert torch.equal(out, windows[first : first + 16])
