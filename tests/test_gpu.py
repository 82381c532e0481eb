"""Launches on a GPU against torch's own results, and the ways a library gets there."""

import ctypes

import pytest
import torch
from support.gpu import run_program, values
from support.kernels import FACTS, build, load

import jitload
from jitload.elf.cubin import read_image
from jitload.nvrtc import nvrtc_compile

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.fixture(scope="module")
def mod(gpu: None) -> jitload.Module:
    return load("vector")


@pytest.fixture(scope="module")
def library(gpu: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    return build("vector", str(tmp_path_factory.mktemp("library") / "vector.so"))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 100_003])
def test_result_is_torchs(mod, size):
    x = torch.randn(size, device="cuda")
    y = torch.full_like(x, -1)
    mod.add_one(x, y)
    torch.testing.assert_close(y, x + 1)


def test_more_than_2_31_elements(mod):
    size = 2**31 + 5000
    if torch.cuda.mem_get_info()[0] < 2 * size:
        pytest.skip("needs 4.4 GB of free device memory")
    x = torch.zeros(size, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match=r"computed parameter 'n' \(int\) must be from -2147483648 to 2147483647"):
        mod.narrow(x)
    mod.add_to_bytes(x)
    assert values(x[: 2**31].view(-1, 2**20).amax(dim=1)) == [1]
    assert values(x[: 2**31].view(-1, 2**20).amin(dim=1)) == [1]
    assert values(x[2**31 :]) == [2]


CHECK = """
x = torch.arange(1000.0, device="cuda")
y = torch.empty_like(x)
mod.add_one(x, y)
print("right" if torch.equal(y, x + 1) else y)
"""


def test_a_library_works_in_plain_tvm_ffi(library):
    program = """
import sys, torch, tvm_ffi
mod = tvm_ffi.load_module(sys.argv[1])
"""
    tail = """
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(50_000_000)
    x.fill_(7)
    mod.add_one(x, y)
side.synchronize()
assert "jitload" not in sys.modules
print(y.unique().tolist())
"""
    assert run_program(program + CHECK + tail, library) == "right\n[8.0]\n"


def native_arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def test_native_is_this_gpu_with_its_suffix(mod):
    assert f"({native_arch()})" in repr(mod)


def test_nvrtc_compile_asks_the_gpu():
    cubin = nvrtc_compile(FACTS)
    assert isinstance(cubin, bytes)
    assert read_image(cubin, name="facts").arch == native_arch()


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
