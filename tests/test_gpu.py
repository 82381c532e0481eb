"""Launches on a GPU: torch's own results, what a kernel gets, variables, errors, and libraries in other processes."""

import ctypes
import random
import struct

import pytest
import torch
from support.gpu import run_program, values, variable
from support.kernels import BLOCK_SIZES, ELEMENTS, FACTS, build, load

import jitload
from jitload.elf.cubin import read_cubin
from jitload.nvrtc import nvrtc_compile

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 100_003])
def test_result_is_torchs(size):
    x = torch.randn(size, device="cuda")
    y = torch.full_like(x, -1)
    load("vector").add_one(x, y)
    torch.testing.assert_close(y, x + 1)


def test_more_than_2_31_elements():
    mod, size = load("vector"), 2**31 + 5000
    if torch.cuda.mem_get_info()[0] < 2 * size:
        pytest.skip("needs 4.4 GB of free device memory")
    x = torch.zeros(size, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match=r"computed parameter 'n' \(int\) must be from -2147483648 to 2147483647"):
        mod.narrow(x)
    mod.add_to_bytes(x)
    assert values(x[: 2**31].view(-1, 2**20).amax(dim=1)) == [1]
    assert values(x[: 2**31].view(-1, 2**20).amin(dim=1)) == [1]
    assert values(x[2**31 :]) == [2]


def test_a_library_works_in_plain_tvm_ffi(tmp_path):
    program = """
import sys, torch, tvm_ffi
mod = tvm_ffi.load_module(sys.argv[1])
x = torch.arange(1000.0, device="cuda")
y = torch.empty_like(x)
mod.add_one(x, y)
assert torch.equal(y, x + 1)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(50_000_000)
    x.fill_(7)
    mod.add_one(x, y)
side.synchronize()
assert "jitload" not in sys.modules
print(y.unique().tolist())
"""
    assert run_program(program, build("vector", str(tmp_path / "vector.so"))) == "[8.0]\n"


def native_arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def test_native_is_this_gpu_with_its_suffix():
    assert f"({native_arch()})" in repr(load("vector"))
    cubin = nvrtc_compile(FACTS)
    assert isinstance(cubin, bytes)
    assert read_cubin(cubin, name="facts").arch == native_arch()


def test_compile_cubin_states_what_the_driver_states():
    cubin = jitload.compile_cubin(FACTS, name="facts")
    assert cubin.arch == native_arch()
    facts, spills = (next(k for k in cubin.kernels if k.name == name) for name in ("facts", "spills"))
    for kernel in (facts, spills):
        driver = driver_facts(cubin.data, kernel.symbol)
        stated = (kernel.max_threads, kernel.shared_bytes, kernel.registers)
        assert stated == (driver["max_threads"], driver["shared_bytes"], driver["registers"])
        assert kernel.registers > 0
    assert (facts.max_threads, facts.shared_bytes, facts.local_bytes) == (256, 1024, 0)
    assert spills.local_bytes >= 96 * 4
    assert load("facts").facts.kernel == facts


def driver_facts(cubin: bytes, symbol: str) -> dict[str, int]:
    """Return what the driver says of a kernel."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.cuda.synchronize()  # makes a context
    library, kernel, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    assert driver.cuLibraryLoadData(ctypes.byref(library), cubin, None, None, 0, None, None, 0) == 0
    assert driver.cuLibraryGetKernel(ctypes.byref(kernel), library, symbol.encode()) == 0
    facts = {}
    for name, attribute in (("max_threads", 0), ("shared_bytes", 1), ("registers", 4)):
        assert driver.cuKernelGetAttribute(ctypes.byref(value), attribute, kernel, torch.cuda.current_device()) == 0
        facts[name] = value.value
    assert driver.cuLibraryUnload(library) == 0
    return facts


def test_variables_are_read_and_written():
    mod = load("variables")
    coefficients = variable(mod, "filter::coefficients", torch.float32, (2, 2))
    counter = variable(mod, "counter", "int64", ())
    x, out = torch.tensor([1.0, 10, 100, 1000], device="cuda"), torch.zeros((), device="cuda")
    assert coefficients.tolist() == [[1, 2], [3, 4]]
    before = counter.item()
    mod.apply(x, out)
    assert out.item() == 4321
    coefficients.copy_(torch.tensor([[5.0, 6], [7, 8]]))
    mod.apply(x, out)
    assert out.item() == 8765
    assert counter.item() == before + 20
    coefficients.copy_(torch.tensor([[1.0, 2], [3, 4]]))


def test_a_variable_is_an_argument_as_it_is():
    mod = load("variables")
    out = torch.zeros((), device="cuda")
    mod.apply(None, out)
    assert out.item() == 4321
    mod.apply(jitload.global_tensor(mod, "samples", "float32", 4), out)
    torch.cuda.synchronize()
    assert out.item() == 4321


def test_a_refused_launch_leaves_torch_alone():
    x = torch.zeros(128, device="cuda")
    mod = load("bounded")
    with pytest.raises(RuntimeError, match=r"bounded\(\): the launch failed: CUDA_ERROR_.*at most 64 threads.*not 128"):
        mod.bounded[1, 128](x)
    assert torch.ones(3, device="cuda").sum().item() == 3
    mod.bounded[1, 64](x)
    assert x.tolist() == [*range(64), *[0] * 64]


def test_an_error_of_earlier_work_is_not_blamed_on_the_next_launch():
    program = """
import os, time, torch
from support.kernels import load
mod = load("bounded")
x = torch.zeros(1, device="cuda")
mod.fine(x)
torch.cuda.synchronize()
mod.wild(8)
for _ in range(1000):
    time.sleep(0.01)
    try:
        mod.fine(x)
    except RuntimeError as error:
        print(error, flush=True)
        break
os._exit(0)  # the context is lost, and nothing can be freed
"""
    message = run_program(program)
    assert message.startswith("fine(): ")
    assert "earlier work had failed with CUDA_ERROR_ILLEGAL_ADDRESS" in message
    assert "the launch failed" not in message


def test_a_kernel_prints():
    program = """
import torch
from support.kernels import load
load("talk").talk(42, 1.5)
torch.cuda.synchronize()
"""
    assert run_program(program) == "number 42, value 1.50\n"


def test_a_failed_assertion_names_its_line():
    program = """
import os, sys, torch
from support.kernels import load
demand = load("talk").demand
x, out = torch.tensor([5], dtype=torch.int32, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
demand(x, out, 5)
print(out.item(), flush=True)
os.dup2(1, 2)
demand(x, out, 6)
try:
    torch.cuda.synchronize()
except RuntimeError:
    print("caught", flush=True)
os._exit(0)
"""
    first, *remaining = run_program(program).splitlines()
    assert first == "5"
    assert any("talk.cu:8" in line and "*x >= least" in line for line in remaining)
    assert remaining[-1] == "caught"


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_pointers_to_every_element_type(dtype):
    bits = torch.randint(0, 2 if dtype == "bool" else 256, (1000 * torch.float64.itemsize,), dtype=torch.uint8)
    x, y = (data.cuda().view(getattr(torch, dtype)) for data in (bits, torch.zeros_like(bits)))
    load("elements")[f"copy_{dtype}"](x, y)
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))


def test_a_pointer_to_structures_takes_bytes_of_a_tensor():
    data = b"".join(struct.pack("fi", 0.5 * i, i) for i in range(10))
    pairs = torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda()
    out = torch.zeros((), device="cuda")
    load("structs").sum_pairs(pairs, out, 10)
    assert out.item() == sum(0.5 * i * i for i in range(10))


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_structures_from_one_byte_to_32_kilobytes(size):
    data = random.Random(size).randbytes(size)
    out = torch.zeros((), dtype=torch.int64, device="cuda")
    load("structs")[f"sum_block_{size}"]((ctypes.c_ubyte * size).from_buffer_copy(data), out)
    assert out.item() == sum(byte * (i % 251 + 1) for i, byte in enumerate(data))


def test_all_kinds_in_one_call():
    p = torch.tensor([2.25], device="cuda")
    out = torch.zeros(12, dtype=torch.float64, device="cuda")
    pair = struct.pack("fi", -0.5, 12345)
    load("structs").mixed(True, p, -300, pair, 255, 1e-300, b"\x00", 700, -(2**31), b"\x07\x08\x09", 2**53, out)
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
