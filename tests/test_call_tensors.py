"""What a typed function takes for a pointer: element types, devices, layout and alignment, in that order."""

import re
import struct
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from support.arrays import CPU, CUDA_MANAGED, DTYPES, CudaArray, tensor_of
from support.calls import array, assert_refused
from support.driver import StubDriver
from support.raw import RawCallError, call_raw

import jitload
from jitload import Launch
from jitload.element_types import ELEMENT_TYPES

# A pointer's element type, and the dtypes its tensor may have; "" takes any.
POINTERS = {
    **{row.cpp: row.dtype for row in ELEMENT_TYPES.values() if row.cpp},
    "char": "int8", "unsigned": "uint32", "long": "int64", "unsigned long": "uint64", "int8_t": "int8",
    "uint64_t": "uint64", "size_t": "uint64", "half": "float16",
    "float2": "float32 complex64", "double2": "float64 complex128", "float3": "float32", "float4": "float32",
    "char4": "int8", "uchar4": "uint8", "int2": "int32", "uint4": "uint32", "longlong2": "int64", "half2": "float16",
    "__nv_bfloat162": "bfloat16", "__nv_fp8x4_e4m3": "float8_e4m3fn",
    "const float": "float32", "volatile int": "int32", "const volatile double": "float64", "void": "", "const void": "",
    "Point": "", "float*": "int64 uint64", "const float* const": "int64 uint64", "Opaque": "",
    "Level": "int32", "Small": "uint8", "Row": "float32", "Table": "int64",
    "cuda::std::complex<float>": "float32 complex64", "const cuda::std::complex<double>": "float64 complex128",
}  # fmt: skip
DTYPES_OF_C = [*DTYPES, "float32x4"]
ALIGNED = {"float4": 16, "float3": 4, "float2": 8, "int2": 8, "half2": 4, "char4": 4, "double2": 16, "longlong2": 16}
ALIGNED |= {"float": 4, "double": 8, "__half": 2}
INCLUDED = {row.header for row in ELEMENT_TYPES.values() if row.header} | {"stdint.h", "cuda/std/complex"}
HEADERS = "".join(f"#include <{header}>\n" for header in sorted(INCLUDED))
DECLARED = """
struct Point { float x, y; };
struct Opaque;
enum class Level { low, high };
enum class Small : uint8_t { a };
typedef float Row[4];
typedef long Table[2][3];
"""


def slug(text: str) -> str:
    return "take_" + re.sub(r"\W+", "_", text.replace("*", "p"))


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    kernels = [f'extern "C" __global__ void {slug(text)}({text}* x) {{}}' for text in POINTERS]
    kernels += ['extern "C" __global__ void restricted(float* __restrict__ x) {}']
    kernels += ['extern "C" __global__ void two(const float* x, float* y) {}']
    kernels += ['extern "C" __global__ void mixed(float* x, int n, const void* any, float* y) {}']
    names = [*map(slug, POINTERS), "restricted", "two", "mixed"]
    functions = {name: Launch(grid=1, block=1) for name in names}
    functions["two_strided"] = Launch(grid=1, block=1, kernel="two", strided="x")
    functions["two_nullable"] = Launch(grid=1, block=1, kernel="two", nullable=("x", "y"))
    source = HEADERS + DECLARED + "\n".join(kernels)
    return jitload.load_inline("tensors", cuda_sources=source, functions=functions, arch="sm_90a")


def addresses(driver: StubDriver, function: Any, *arguments: Any) -> list[int]:
    """Return the addresses that a call launches."""
    driver.clear()
    function(*arguments)
    (launch,) = driver.launches()
    return [int.from_bytes(argument, "little") for argument in launch.arguments if len(argument) == 8]


def claimed(dtype: str) -> CudaArray:
    if dtype == "float32x4":
        return CudaArray(np.zeros(4, np.float32), dtype=(2, 32, 4), address=4096)
    return array(dtype, address=4096)


@pytest.mark.parametrize("text", POINTERS)
def test_a_pointer_takes_tensors_of_its_element_type(mod, stub_driver, text):
    function = mod[slug(text)]
    fits = POINTERS[text].split()
    for dtype in DTYPES_OF_C:
        if not fits or dtype in fits:
            assert addresses(stub_driver, function, claimed(dtype)) == [4096]
            continue
        article = "an" if fits[0][0] == "i" else "a"
        kind = "CUDA tensor of addresses (torch.tensor([x.data_ptr() for x in …]))" if "*" in text else "CUDA tensor"
        message = f"{slug(text)}(): argument 'x' must be {article} {fits[0]} {kind}, got {dtype}"
        assert_refused(TypeError, message, function, claimed(dtype))


def test_an_optional_pointer_says_so(mod, stub_driver):
    message = "two_nullable(): argument 'y' must be a float32 CUDA tensor or None, got float16"
    assert_refused(TypeError, message, mod.two_nullable, None, array("float16"))
    assert addresses(stub_driver, mod.two_nullable, None, None) == [0, 0]


PLACES = [
    (CPU, 0, "cpu"), (3, 0, "cuda_host (pinned memory)"), (10, 1, "rocm:1"), (11, 0, "a device of DLPack type 11"),
    (8, 0, "metal"),
    (4, 0, "a device of DLPack type 4"), (14, 0, "a device of DLPack type 14"),
]  # fmt: skip


@pytest.mark.parametrize(("device_type", "device", "text"), PLACES)
def test_a_tensor_is_on_a_cuda_device(mod, stub_driver, device_type, device, text):
    elsewhere = array(device_type=device_type, device=device)
    message = f"two(): argument 'y' must be a CUDA tensor, but it is on {text}"
    assert_refused(ValueError, message, mod.two, array(), elsewhere)
    assert stub_driver.calls() == []


def test_tensors_of_the_cpu_are_refused_whoever_made_them(mod, stub_driver):
    message = "two(): argument 'x' must be a CUDA tensor, but it is on cpu"
    for x in (torch.zeros(4), torch.zeros(4, requires_grad=True), np.zeros(4, np.float32), torch.zeros(())):
        assert_refused(ValueError, message, mod.two, x, array())
    assert stub_driver.calls() == []


def test_all_tensors_are_on_one_device(mod, stub_driver):
    rule = "all tensors must be on one device"
    message = f"two(): argument 'y' is on cuda:1, but 'x' is on cuda:0; {rule}"
    assert_refused(ValueError, message, mod.two, array(), array(device=1))
    message = f"mixed(): argument 'y' is on cuda:0, but 'x' is on cuda:1; {rule}"
    assert_refused(ValueError, message, mod.mixed, array(device=1), 1, array(device=1), array())
    assert stub_driver.calls() == []
    mod.two(array(device=1), array(device=1))
    assert [launch.device for launch in stub_driver.launches()] == [1]


def test_managed_memory_is_a_cuda_device(mod, stub_driver):
    managed = array(device_type=CUDA_MANAGED, device=1)
    mod.two(managed, array(device=1))
    assert [launch.device for launch in stub_driver.launches()] == [1]
    message = "two(): argument 'y' is on cuda_managed, but 'x' is on cuda:0; all tensors must be on one device"
    assert_refused(ValueError, message, mod.two, array(), managed)


# shape, strides, is it contiguous?
LAYOUTS: list[tuple[tuple[int, ...], tuple[int, ...] | str, Any]] = [
    ((), (), True), ((), "null", True), ((8,), (1,), True), ((8,), "null", True), ((8,), (2,), False),
    ((8,), (0,), False),
    ((8,), (-1,), False), ((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((2, 3), (4, 1), False),
    ((2, 3), "null", True),
    ((1,), (77,), True), ((1, 5), (99, 1), True), ((5, 1), (1, 99), True), ((2, 1, 3), (3, -7, 1), True),
    ((2, 1, 3), (6, 3, 1), False), ((1, 1, 1), (5, 6, 7), True), ((0,), (5,), True), ((4, 0), (9, 9), True),
    ((0, 4), (9, 9), True), ((3, 0, 4), (7, 8, 9), True), ((2, 2, 2), (4, 2, 1), True), ((2, 2, 2), (2, 4, 1), False),
    ((2, 2, 2), (0, 0, 0), False), ((2**20, 2**20), (2**20, 1), True), ((2**31 + 5,), (1,), True),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "strides", "is_contiguous"), LAYOUTS)
def test_a_tensor_is_contiguous_unless_the_launch_says_otherwise(mod, stub_driver, shape, strides, is_contiguous):
    x, y = CudaArray(np.zeros(1, np.float32), shape=shape, strides=strides), array()
    assert addresses(stub_driver, mod.two_strided, x, y) == [x.address, y.address]
    if is_contiguous:
        assert addresses(stub_driver, mod.two, x, y) == [x.address, y.address]
        return
    rule = f"must be contiguous, got shape {list(shape)} with strides {list(strides)}"
    message = f"two(): argument 'x' {rule}; pass x.contiguous(), or name it in Launch(strided=…)"
    assert_refused(ValueError, message, mod.two, x, y)
    copy = "pass a copy and copy the result back (tmp = y.contiguous(); two_strided(…, tmp, …); y.copy_(tmp))"
    message = f"two_strided(): argument 'y' {rule}; {copy}, or name it in Launch(strided=…)"
    assert_refused(ValueError, message, mod.two_strided, y, x)


def test_a_c_caller_may_leave_strides_out(mod, stub_driver):
    call_raw(mod.two, array(shape=(2, 4), strides="null"), array(strides="null", shape=(0,)))
    assert len(stub_driver.launches()) == 1
    with pytest.raises(
        RawCallError, match=r"^ValueError: two\(\): argument 'y' must be contiguous, got shape \[2, 2\]"
    ):
        call_raw(mod.two, array(), array(shape=(2, 2), strides=(1, 2)))


def test_the_address_is_data_and_offset(mod, stub_driver):
    for offset in (0, 4, 256):
        x, y = array(byte_offset=offset), array(byte_offset=8)
        assert addresses(stub_driver, mod.two, x, y) == [x.address, y.address]
        call_raw(mod.two, x, y)
        assert stub_driver.launches()[-1].arguments[0] == struct.pack("<Q", x.address)


def test_an_empty_tensor_may_have_no_memory(mod, stub_driver):
    nothing = array(shape=(0,), address=0)
    assert addresses(stub_driver, mod.two, nothing, nothing) == [0, 0]
    assert addresses(stub_driver, mod.take_float4, nothing) == [0]


@pytest.mark.parametrize("text", ALIGNED)
def test_a_pointer_is_aligned_to_what_it_points_to(mod, stub_driver, text):
    """On a GPU, a misaligned access is an error that loses the context."""
    alignment, name = ALIGNED[text], slug(text)
    dtype, function = POINTERS[text].split()[0], mod[slug(text)]
    for address in (4096, 4096 + alignment, 4096 - alignment):
        assert addresses(stub_driver, function, array(dtype, address=address)) == [address]
        shifted = array(dtype, address=address, byte_offset=address - 8)
        assert addresses(stub_driver, function, shifted) == [address]
    for off in {1, alignment // 2, alignment - 1}:
        rule = f"must be aligned to {alignment} bytes, but its address is {4096 + off:#x}"
        copy = f"pass a copy and copy the result back (tmp = x.clone(); {name}(…, tmp, …); x.copy_(tmp))"
        message = f"{name}(): argument 'x' ({function.kernel.parameters[0].type}) {rule}; {copy}"
        assert_refused(ValueError, message, function, array(dtype, address=4096 + off))
    assert addresses(stub_driver, mod.take_void, array("uint8", address=4097)) == [4097]


def test_tensors_of_tvm_ffi_are_taken_as_they_are(mod, stub_driver):
    x = array()
    tensor = tensor_of(x)
    assert addresses(stub_driver, mod.two, tensor, x) == [x.address, x.address]
    assert addresses(stub_driver, mod.restricted, tensor) == [x.address]


def test_a_call_keeps_no_tensor(mod, stub_driver):
    tensors = array(), array(shape=(2, 2), strides=(1, 2)), array("float16"), array(device_type=CPU)
    counts = [sys.getrefcount(x.memory) for x in tensors]
    for x in tensors:
        for y in (tensors[0], 3):
            with suppress(TypeError, ValueError):
                mod.two(x, y)
    assert [sys.getrefcount(x.memory) for x in tensors] == counts
    assert len(stub_driver.launches()) == 1
