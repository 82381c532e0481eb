"""Host-side tensor descriptors: what the driver is asked to encode, what the kernel gets, and what is refused."""

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.arrays import CudaArray
from support.calls import assert_refused, fresh
from support.driver import StubDriver
from support.raw import call_raw
from support.triton import (
    TensorDescriptor,
    aligned_array,
    build_triton,
    descriptor_parameters,
    function,
    parameter,
    specialize,
    stand_in,
)

import jitload
from jitload.model import Descriptor

# As `tensordesc_meta` has them; the driver's differ for 8 to 10.
FLOAT16, FLOAT32, BFLOAT16, TF32, FP4 = 6, 7, 10, 11, 14


def _two() -> Any:
    """Return a kernel of two descriptors with a scalar between them."""
    types = (
        ("a", "tensordesc<fp16[128, 64]>", "float16"),
        ("n", "i32"),
        ("b", "tensordesc<bf16[2, 4, 64]>", "bfloat16"),
    )
    arguments = [parameter(*type_) for type_ in types]
    taken = [*descriptor_parameters("a", 2), arguments[1], *descriptor_parameters("b", 3)]
    a = Descriptor(parameter="a", dtype="float16", block_shape=(128, 32), swizzle=2, elem_size=2, elem_type=FLOAT16)
    b = Descriptor(parameter="b", dtype="bfloat16", block_shape=(2, 4, 64), swizzle=3, elem_size=2, elem_type=BFLOAT16)
    return specialize("two", arguments, parameters=taken, descriptors=(a, b))


def _one(name: str, type_: str, dtype: str, **facts: Any) -> Any:
    """Return a kernel of one descriptor."""
    arguments = [parameter("a", type_, dtype)]
    shape = tuple(map(int, type_.partition("[")[2].strip("]>").split(",")))
    flags = facts.get("flags") if facts.get("is_expanded") else None
    descriptor = Descriptor(**{"parameter": "a", "dtype": dtype, "block_shape": shape, **facts})
    taken = descriptor_parameters("a", len(shape), flags=flags)
    return specialize(name, arguments, parameters=taken, descriptors=(descriptor,), hidden_pointers=0)


SPECS = {
    "two": _two(),
    "one": _one("one", "tensordesc<fp32[64]>", "float32", elem_size=4, elem_type=FLOAT32),
    "fp4": _one("fp4", "tensordesc<u8[16, 64]>", "uint8", elem_size=1, elem_type=FP4, fp4_padded=True),
    "plain": _one("plain", "tensordesc<fp16[8, 16]>", "float16", is_expanded=True, flags=2, elem_size=2),
    "plain34": _one("plain34", "tensordesc<fp16[8, 16]>", "float16", is_expanded=True, flags=0),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    functions = [function(name, (name, stand_in(spec)), grid="a.shape[0]") for name, spec in SPECS.items()]
    small = _one("small", "tensordesc<fp16[32, 64]>", "float16", elem_size=2, elem_type=FLOAT16)
    large = _one("large", "tensordesc<fp16[64, 64]>", "float16", elem_size=2, elem_type=FLOAT16)
    pick = function("pick", ("pick__32", stand_in(small)), ("pick__64", stand_in(large)))
    return build_triton(tmp_path_factory.mktemp("triton") / "descriptors", *functions, pick)


@pytest.fixture
def mod(library: Path, stub_driver: StubDriver) -> jitload.Module:
    return fresh(library)


def tensor(shape: Sequence[int], dtype: str = "float16", strides: Any = None, offset: int = 0) -> CudaArray:
    """Return an array at a multiple of 256 bytes, plus an offset, that claims a shape."""
    return CudaArray(aligned_array(offset).array, dtype=dtype, shape=shape, strides=strides)


def encoded(driver: StubDriver) -> list[dict[str, str]]:
    return [dict(call.fields) for call in driver.calls("cuTensorMapEncodeTiled")]


def numbers(arguments: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(argument, "little", signed=True) for argument in arguments]


def test_a_c_caller_may_leave_out_strides(mod, stub_driver):
    base = tensor((4, 64))
    call_raw(mod.pick, CudaArray(base.array, dtype="float16", shape=(4, 64), strides="null"))
    assert encoded(stub_driver)[0]["strides"] == "128"
    call_raw(mod.one, CudaArray(base.array, dtype="float32", shape=(64,)))
    assert encoded(stub_driver)[1]["strides"] == ""


def test_four_bit_elements_count_twice(mod, stub_driver):
    mod.fp4(tensor((32, 64), "uint8"))
    (call,) = encoded(stub_driver)
    assert (call["type"], call["extents"], call["strides"]) == ("14", "128,32", "64")
    assert numbers(stub_driver.launches()[0].arguments[1:]) == [32, 64, 64, 1]


def test_below_hopper_the_descriptor_is_plain_parameters(mod, stub_driver):
    a = tensor((3, 16))
    mod.plain(a)
    mod.plain34(TensorDescriptor(a, [3, 16], [16, 1], [8, 16]))
    mod.plain(TensorDescriptor(a, [3, 16], [16, 1], [8, 16], "nan", round_f32_to_tf32=True))
    tensors, bare, flagged = stub_driver.launches()
    assert numbers(tensors.arguments) == [a.address, 3, 16, 16, 1, 0, 0, 3, 16, 16, 1]
    assert [len(argument) for argument in tensors.arguments] == [8, 8, 8, 8, 8, 1, 1, 4, 4, 8, 8]
    assert numbers(bare.arguments) == [a.address, 3, 16, 16, 1, 3, 16, 16, 1]
    assert numbers(flagged.arguments) == [a.address, 3, 16, 16, 1, 1, 1, 3, 16, 16, 1]
    assert encoded(stub_driver) == []


def test_triton_s_own_descriptor_says_shape_strides_and_padding(mod, stub_driver):
    a = tensor((4096,))
    mod.pick(TensorDescriptor(a, (5, 48), (64, 1), [32, 64], "nan"))
    (call,) = encoded(stub_driver)
    assert (call["extents"], call["strides"], call["fill"], call["type"]) == ("48,5", "128", "1", "6")
    (launch,) = stub_driver.launches()
    assert launch.kernel == "small"
    assert struct.unpack("<Q", launch.arguments[0][:8]) == (a.address,)
    mod.one(TensorDescriptor(tensor((64,), "float32"), [64], [1], [64], round_f32_to_tf32=True))
    assert encoded(stub_driver)[1]["type"] == str(TF32)
    mod.two(TensorDescriptor(tensor((4, 64)), [4, 64], [64, 1], [128, 64]), 7, tensor((5, 6, 64), "bfloat16"))
    assert encoded(stub_driver)[2]["box"] == "32,128"  # a part of the block


def test_the_block_shape_picks_the_variant(mod, stub_driver):
    mod.pick(TensorDescriptor(tensor((5, 64)), [5, 64], [64, 1], [64, 64]))
    assert stub_driver.launches()[0].kernel == "large"
    small_block = TensorDescriptor(tensor((5, 64)), [5, 64], [64, 1], [16, 64])
    with pytest.raises(
        ValueError, match=r"^pick\(\): argument 'a' must have the block shape of tensordesc<fp16\[32, 64"
    ):
        mod.pick(small_block)


def test_a_descriptor_of_a_lazily_negated_tensor_is_refused(mod, stub_driver):
    torch = pytest.importorskip("torch")
    base = torch.ones(64)
    for lazy in (torch._neg_view(base), torch.ones(64, dtype=torch.complex64).conj().imag):
        text = "one(): argument 'a' is a tensor with a pending operation; pass a copy of it, x.resolve_neg"
        with pytest.raises(TypeError, match=text.replace("()", r"\(\)")):
            mod.one(TensorDescriptor(lazy, [64], [1], [64]))
    assert stub_driver.launches() == []


def test_an_object_that_is_no_descriptor_is_refused(mod, stub_driver):
    text = "one(): argument 'a' must be a float32 CUDA tensor or a TensorDescriptor, got "
    assert_refused(TypeError, text + "complex", mod.one, 1j)
    broken = [
        TensorDescriptor(tensor((64,)), [64], [1, 1], [64]),
        TensorDescriptor(tensor((64,)), [64], [1], "no"),
        TensorDescriptor(tensor((64,)), [1] * 6, [1] * 6, [1] * 6),
    ]
    for descriptor in broken:
        assert_refused(TypeError, text + "support.triton.TensorDescriptor", mod.one, descriptor)
    text = "one(): argument 'a' must be a float32 CUDA tensor or a TensorDescriptor, got float16"
    assert_refused(TypeError, text, mod.one, TensorDescriptor(tensor((64,)), [64], [1], [64]))
    assert stub_driver.launches() == []


def test_a_layout_that_the_hardware_cannot_read_is_refused(mod, stub_driver):
    """What test_tensor_maps.py shows of maps in CUDA sources, with Triton's limit for an axis."""
    b = tensor((5, 6, 64), "bfloat16")
    text = "two(): argument 'a' must have 1 to 2147483647 elements in axis 1 for its tensor map, got 0"
    assert_refused(ValueError, text, mod.two[1], tensor((8, 0)), 1, b)
    text = "two(): argument 'a' must have 2 dimensions for its tensor map, got 1"
    assert_refused(ValueError, text, mod.two[1], tensor((300,)), 1, b)
    assert stub_driver.launches() == []


def test_a_misaligned_tensor_is_refused(mod, stub_driver):
    a = tensor((8, 64), "uint8", offset=16)
    text = f"fp4(): argument 'a' must be aligned to 32 bytes for its tensor map, but its address is {a.address:#x}"
    assert_refused(ValueError, text, mod.fp4, a)
    assert stub_driver.launches() == []


def test_a_pointer_has_no_shape(mod, stub_driver):
    text = "pick__32(): argument 'a' must be a tensor for its tensor map"
    assert_refused(TypeError, text, mod.pick, ctypes.c_void_p(4096))
    assert stub_driver.launches() == []
