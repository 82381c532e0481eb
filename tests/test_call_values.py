"""What a typed function takes for a number, a structure and an address: the kinds, the ranges and the bytes."""

import ctypes
import enum
import math
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
from support.calls import array, assert_refused
from support.driver import StubDriver

import jitload
from jitload import Launch
from jitload.model import Kernel

TYPES = {
    "flag": "bool", "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short", "i32": "int",
    "u32": "unsigned", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double",
    "tensor": "const float*", "address": "float*", "optional": "float*", "wide": "float4*", "pair": "Pair",
    "empty": "Empty", "odd": "Bytes<3>", "map": "const __grid_constant__ Map", "large": "Bytes<32764>",
}  # fmt: skip
STRUCTS = """
struct Pair { float a; int b; };
struct Empty {};
template <int N> struct Bytes { unsigned char data[N]; };
struct alignas(64) Map { unsigned long long opaque[16]; };
struct Big { int head; Bytes<3> odd; double tail; };
"""
SIZES = (1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 129, 4095, 4096)
MIXED = "bool b, float* p, short h, Pair s, unsigned char c, double d, Empty e, Map m, int i, Bytes<3> o, long long l"


def source() -> str:
    kernels = [f'extern "C" __global__ void take_{name}({text} v) {{}}' for name, text in TYPES.items()]
    kernels += [f'extern "C" __global__ void bytes_{size}(Bytes<{size}> v) {{}}' for size in SIZES]
    kernels += [f'extern "C" __global__ void mixed({MIXED}) {{}}']
    kernels += ['extern "C" __global__ void nothing() {}']
    return STRUCTS + "\n".join(kernels)


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    special: dict[str, dict[str, Any]] = {
        "take_address": {"raw_pointers": "v"},
        "take_optional": {"nullable": "v"},
        "take_wide": {"raw_pointers": "v", "nullable": "v"},
        "mixed": {"raw_pointers": "p"},
    }
    names = [*(f"take_{name}" for name in TYPES), *(f"bytes_{size}" for size in SIZES), "mixed", "nothing"]
    functions = {name: Launch(grid=1, block=1, **special.get(name, {})) for name in names}
    return jitload.load_inline("values", cuda_sources=source(), functions=functions, arch="sm_90a")


def sent(driver: StubDriver, function: Any, *arguments: Any) -> bytes:
    """Return the bytes of the parameters that a call launches, without the gaps."""
    driver.clear()
    function(*arguments)
    (launch,) = driver.launches()
    return b"".join(launch.arguments)


def placed(kernel: Kernel, arguments: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the bytes of each parameter at the offset that the kernel's record tells, behind a gap of zeros."""
    end = 0
    for parameter, data in zip(kernel.parameters, arguments, strict=True):
        assert len(data) == parameter.size
        yield bytes(parameter.offset - end) + data
        end = parameter.offset + parameter.size


class Colour(enum.IntEnum):
    RED = 8


# A value, what messages call it, and the kinds of parameters that take it.
VALUES: list[tuple[Any, str, str]] = [
    (None, "None", "optional"), (4, "int", "flag int float address"), (np.int8(4), "int", "flag int float address"),
    (Colour.RED, "int", "flag int float address"), (True, "bool", "flag int float"), (1.5, "float", "float"),
    (np.float32(1.5), "float", "float"), (np.float64(1.5), "float", "float"), ("s", "str", ""),
    (b"b", "bytes", "struct"),
    (bytearray(3), "bytes", "struct"), ([1], "a list or tuple", ""),
    ((1, 2), "a list or tuple", ""), (torch.Size([1]), "a list or tuple", ""), ({}, "a dict", ""),
    (torch.zeros(2), "a float32 tensor on cpu", "pointer"),
    (np.zeros(2, np.int64), "an int64 tensor on cpu", "pointer"),
    (array(), "a float32 tensor on cuda:0", "pointer"),
    (array(device_type=13), "a float32 tensor on cuda_managed", "pointer"), (torch.float32, "a dtype", ""),
    (print, "a function", ""),
    (torch.device("cpu"), "torch.device", ""), (1j, "complex", ""),
    (np.bool_(1), f"numpy.{np.bool_.__name__}", "flag struct"), (object(), "object", ""),

    (Fraction(1, 2), "float", "float"), (ctypes.c_void_p(16), "a pointer", "pointer"),
    (ctypes.c_int(3), "ctypes.c_int", "struct"), (memoryview(b"ab"), "memoryview", "struct"),
    (tvm_ffi.Shape((1,)), "a list or tuple", ""),
    (tvm_ffi.device("cuda:0"), "a device", ""),
]  # fmt: skip
EXPECTED = {
    "flag": ("a bool", "flag"),
    **dict.fromkeys(("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"), ("an int", "int")),
    **dict.fromkeys(("f32", "f64"), ("a float", "float")),
    "tensor": ("a float32 CUDA tensor", "pointer"),
    "address": ("a float32 CUDA tensor or an int address", "pointer address"),
    "optional": ("a float32 CUDA tensor or None", "pointer optional"),
    "wide": ("a float32 CUDA tensor or None or an int address", "pointer optional address"),
    "map": ("bytes or a ctypes structure of 128 bytes", "struct"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_kind_of_parameter_takes_its_own_kinds_of_values(mod, stub_driver, name):
    expected, accepted = EXPECTED[name]
    function = mod[f"take_{name}"]
    for value, kind, fits in VALUES:
        if not set(accepted.split()) & set(fits.split()):
            message = f"take_{name}(): argument 'v' must be {expected}, got {kind}"
            assert_refused(TypeError, message, function, value)
        elif name not in ("map", "wide") and not hasattr(value, "__dlpack__"):
            function(value)
    assert {launch.kernel for launch in stub_driver.launches()} <= {f"take_{name}"}


INTEGERS = {
    "i8": ("signed char", "<b"), "u8": ("unsigned char", "<B"), "i16": ("short", "<h"), "u16": ("unsigned short", "<H"),
    "i32": ("int", "<i"), "u32": ("unsigned int", "<I"), "i64": ("long long", "<q"),
    "u64": ("unsigned long long", "<Q"),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_has_the_range_of_its_type(mod, stub_driver, name):
    text, code = INTEGERS[name]
    bits = int(name[1:])
    low, high = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    function = mod[f"take_{name}"]
    for value in {low, low + 1, -1, 0, 1, high // 2, high - 1, high} - ({-1} if low == 0 else set()):
        assert sent(stub_driver, function, value) == struct.pack(code, value)
    for value in {low - 1, high + 1, -(2**31) - 1, 2**32, 2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**30}:
        if low <= value <= high:
            continue
        got = str(value) if -(2**63) <= value < 2**64 else "an integer beyond 64 bits"
        message = f"take_{name}(): argument 'v' ({text}) must be from {low} to {high}, got {got}"
        assert_refused(ValueError, message, function, value)


def test_a_bool_is_one_byte_of_0_or_1(mod, stub_driver):
    for value in (np.bool_(0), np.bool_(1), np.any([False, True])):
        assert sent(stub_driver, mod.take_flag, value) == bytes([bool(value)])
    for value in (False, True, 0, 1, 2, 256, 2**40, -1, -(2**63)):
        assert sent(stub_driver, mod.take_flag, value) == bytes([bool(value)])
        assert sent(stub_driver, mod.take_i64, bool(value)) == struct.pack("<q", bool(value))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_an_integer_beyond_64_bits_is_no_float_and_no_bool(mod, stub_driver, value):
    for name, expected in (("f32", "a float"), ("f64", "a float"), ("flag", "a bool")):
        message = f"take_{name}(): argument 'v' must be {expected}, got an int that does not fit in 64 bits"
        assert_refused(TypeError, message, mod[f"take_{name}"], value)
    assert stub_driver.launches() == []


def test_an_address_may_be_an_integer_where_the_launch_says_so(mod, stub_driver):
    for value in (0, 4, 0x7F00_0000_1000, 2**63 - 4, 2**63, 2**64 - 4):
        assert sent(stub_driver, mod.take_address, value) == struct.pack("<Q", value)
    for value in (0, 4, 2**63, 2**64 - 4):
        for function in (mod.take_tensor, mod.take_address):
            assert sent(stub_driver, function, ctypes.c_void_p(value)) == struct.pack("<Q", value)


@pytest.mark.parametrize(("value", "got"), [(-1, "-1"), (2**64, "an integer beyond 64 bits")])
def test_an_address_has_64_bits(mod, stub_driver, value, got):
    rule = f"must be from 0 to 18446744073709551615, got {got}"
    assert_refused(ValueError, f"take_address(): argument 'v' (float*) {rule}", mod.take_address, value)
    assert_refused(ValueError, f"take_wide(): argument 'v' (float4*) {rule}", mod.take_wide, value)
    assert stub_driver.calls() == []


def test_an_address_of_a_vector_is_aligned(mod, stub_driver):
    for value in (0, 16, 2**64 - 16):
        assert sent(stub_driver, mod.take_wide, value) == struct.pack("<Q", value)
    for value in (8, 2**63 + 8, 2**64 - 1):
        message = f"take_wide(): argument 'v' (float4*) must be aligned to 16 bytes, but its address is {value:#x}"
        assert_refused(ValueError, message, mod.take_wide, value)
        assert_refused(ValueError, message, mod.take_wide, ctypes.c_void_p(value))


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_float), ("b", ctypes.c_int))


PAIR = struct.pack("<fi", 1.5, -7)
RECORD = np.array([(1.5, -7)], dtype=[("a", "<f4"), ("b", "<i4")])[0]


@pytest.mark.parametrize(
    "value", [PAIR, bytearray(PAIR), memoryview(PAIR), RECORD, Pair(1.5, -7), (ctypes.c_uint8 * 8)(*PAIR)]
)
def test_a_structure_comes_as_anything_with_its_bytes(mod, stub_driver, value):
    assert sent(stub_driver, mod.take_pair, value) == PAIR


@pytest.mark.parametrize("size", SIZES)
def test_a_structure_of_any_size_arrives_whole(mod, stub_driver, size):
    data = np.random.default_rng(size).bytes(size)
    assert sent(stub_driver, mod[f"bytes_{size}"], data) == data
    assert sent(stub_driver, mod[f"bytes_{size}"], memoryview(data)) == data
    for wrong in (b"", data[1:], data + b"x", memoryview(data + b"xyz")):
        expected = f"{size} bytes" if size > 1 else "1 byte"
        message = f"bytes_{size}(): argument 'v' (Bytes<{size}>) must have {expected}, got {len(wrong)}"
        assert_refused(ValueError, message, mod[f"bytes_{size}"], wrong)


def test_the_smallest_and_the_largest_structure_arrive_whole(mod, stub_driver):
    data = np.random.default_rng(0).bytes(32764)
    assert sent(stub_driver, mod.take_large, data) == data
    assert sent(stub_driver, mod.take_empty, b"\x05") == b"\x05"
    message = "take_empty(): argument 'v' (Empty) must have 1 byte, got 0"
    assert_refused(ValueError, message, mod.take_empty, b"")


def test_a_tensor_map_is_128_bytes_with_an_alignment_of_its_own(mod, stub_driver):
    class Map(ctypes.Structure):
        _fields_ = (("opaque", ctypes.c_uint64 * 16),)

    value = Map((ctypes.c_uint64 * 16)(*range(16)))
    assert sent(stub_driver, mod.take_map, value) == bytes(value)
    assert mod.take_map.kernel.parameters[0].size == 128
    message = "take_map(): argument 'v' (Map) must have 128 bytes, got 8"
    assert_refused(ValueError, message, mod.take_map, ctypes.c_uint64(1))


def test_a_kernel_of_every_kind_gets_each_parameter_at_its_place(mod, stub_driver):
    x = array()
    opaque = bytes(range(128))
    mod.mixed(True, x, -2, Pair(1.5, -7), 255, -0.0, b"e", opaque, -5, bytearray(b"odd"), -(2**63))
    mod.mixed(0, 2**64 - 4, 300, PAIR, 0, math.inf, b"\0", memoryview(opaque), 2**31 - 1, b"123", 2**63 - 1)
    first, second = stub_driver.launches()
    end = [opaque, struct.pack("<i", -5), b"odd", struct.pack("<q", -(2**63))]
    start = [b"\1", struct.pack("<Q", x.address), struct.pack("<h", -2), PAIR, b"\xff", struct.pack("<d", -0.0), b"e"]
    assert list(first.arguments) == [*start, *end]
    assert first.params == b"".join(placed(mod.mixed.kernel, first.arguments))
    start = [b"\0", b"\xfc" + b"\xff" * 7, struct.pack("<h", 300), PAIR, b"\0", struct.pack("<d", math.inf), b"\0"]
    end = [opaque, struct.pack("<i", 2**31 - 1), b"123", struct.pack("<q", 2**63 - 1)]
    assert list(second.arguments) == [*start, *end]


def test_a_kernel_may_have_no_parameters(mod, stub_driver):
    assert sent(stub_driver, mod.nothing) == b""
    assert_refused(TypeError, "nothing() takes 0 arguments, got 1", mod.nothing, None)
