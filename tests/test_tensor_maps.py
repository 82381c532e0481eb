"""Tensor maps that a call encodes from its tensors: what the driver gets, refusals, and the examples for Hopper."""

import runpy
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from builds import ARCH, ROOT
from support.arrays import CudaArray
from support.driver import StubDriver
from support.triton import aligned_array

import jitload
from jitload import Launch, Tma, Tune
from jitload.errors import LaunchSpecError
from jitload.request.recording import _decode, _encode

SOURCE = """
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#define MAP const __grid_constant__ CUtensorMap
extern "C" __global__ void gemm(MAP a_map, MAP b_map, __nv_bfloat16* c, int m, int k) {}
extern "C" __global__ void both(const float* a, MAP load, MAP store, int n) {}
extern "C" __global__ void image(MAP x_map, int n) {}
extern "C" __global__ void pointers(MAP x_map, MAP z_map, const void* x, float2* z, __nv_fp8_e8m0* scales) {}
template <class T, int B> __global__ void tiled(const T* a, MAP a_map) {}
"""
A = Tma("a", box=(128, 64), dtype="bfloat16", swizzle="128B")
B = Tma("b", box=(64, 32), dtype="float8_e4m3fn", swizzle="32B", l2_promotion="256B", writes=True)
IM2COL = Tma("x", lower=(-1, -2), upper=(1, 2), box=(96, 64), dtype="float16", fill="nan", swizzle="128B")
PLAIN = Tma("x", box=(1, 8, 4), dtype="float64", swizzle="32B", l2_promotion=None)
FUNCTIONS = {
    "gemm": Launch(grid="m", block=32, args={"m": "a.shape[0]", "k": "a.shape[1]"}, tma={"a_map": A, "b_map": B}),
    "both": Launch(grid=1, block=32, tma={"load": Tma("a", box=(8, 16)), "store": Tma("a", box=("4 * 2", 4))}),
    "image": Launch(grid=1, block=32, tma={"x_map": IM2COL}),
    "plain": Launch(grid=1, block=32, kernel="image", tma={"x_map": PLAIN}),
    "pointers": Launch(grid=1, block=32,
                       tma={"x_map": Tma("x", box=(8, 16), dtype="int32"), "z_map": Tma("z", box=(8, 16))}),
    "tiled": Launch(grid=1, block=32, kernel="tiled<{a.dtype}, {B}>", dtypes=("float32", "float16"),
                    tma={"a_map": Tma("a", box=(1, "2 * B"))}, tune=Tune(B=(8, 16), key="a.shape[0]")),
}  # fmt: skip


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("maps", cuda_sources=SOURCE, functions=FUNCTIONS, arch=ARCH)


def tensor(
    shape: Sequence[int], dtype: str = "float32", strides: Sequence[int] | None = None, offset: int = 0
) -> CudaArray:
    return CudaArray(aligned_array(offset).array, dtype=dtype, shape=shape, strides=strides)


def encoded(driver: StubDriver, kind: str = "Tiled") -> list[dict[str, str]]:
    return [dict(call.fields) for call in driver.calls(f"cuTensorMapEncode{kind}")]


def test_the_tensors_take_the_places_of_the_maps(mod, stub_driver):
    a, b = tensor((300, 200), "bfloat16", (208, 1)), tensor((96, 48), "float8_e4m3fn")
    c = tensor((8,), "bfloat16")
    mod.gemm(a, b, c)
    first, second = encoded(stub_driver)
    assert first.items() >= {"type": "9", "rank": "2", "swizzle": "3", "promotion": "2", "fill": "0"}.items()
    assert (first["extents"], first["strides"], first["box"]) == ("200,300", "416", "64,128")
    assert second.items() >= {"type": "0", "swizzle": "1", "promotion": "3", "interleave": "0"}.items()
    assert (second["extents"], second["box"], second["steps"]) == ("48,96", "32,64", "1,1")
    (launch,) = stub_driver.launches()
    assert launch.grid == (300, 1, 1)
    assert [len(argument) for argument in launch.arguments] == [128, 128, 8, 4, 4]
    maps = [struct.unpack_from("<2Q", argument) for argument in launch.arguments[:2]]
    assert maps == [(a.address, 2), (b.address, 2)]
    assert [int.from_bytes(argument, "little") for argument in launch.arguments[2:]] == [c.address, 300, 200]
    assert mod.gemm.__doc__ is not None
    assert "gemm(const __nv_bfloat16* a, __nv_fp8_e4m3* b, __nv_bfloat16* c)" in mod.gemm.__doc__


def test_a_pointer_of_the_kernel_may_have_several_maps(mod, stub_driver):
    a = tensor((64, 32))
    mod.both(a, 7)
    assert [call["box"] for call in encoded(stub_driver)] == ["16,8", "4,8"]
    (launch,) = stub_driver.launches()
    assert [len(argument) for argument in launch.arguments] == [8, 128, 128, 4]
    assert int.from_bytes(launch.arguments[0], "little") == a.address
    with pytest.raises(ValueError, match="must be contiguous, got shape"):
        mod.both(tensor((64, 32), strides=(36, 1)), 7)


def test_im2col_and_no_promotion(mod, stub_driver):
    mod.image(tensor((2, 10, 12, 64), "float16"), 1)
    (call,) = encoded(stub_driver, "Im2col")
    assert call.items() >= {"type": "6", "rank": "4", "fill": "1", "channels": "64", "pixels": "96"}.items()
    assert (call["extents"], call["strides"]) == ("64,12,10,2", "128,1536,15360")
    assert (call["lower"], call["upper"], call["steps"]) == ("-2,-1", "2,1", "1,1,1,1")
    mod.plain(tensor((2, 8, 4), "float64"), 1)
    assert encoded(stub_driver)[0].items() >= {"interleave": "0", "swizzle": "1", "promotion": "0"}.items()


def test_a_map_is_encoded_again_only_if_the_layout_changes(mod, stub_driver):
    base = aligned_array()

    def call(shape: tuple[int, int], strides: tuple[int, int] | None = None) -> list[bytes]:
        stub_driver.clear()
        mod.gemm(CudaArray(base.array, dtype="bfloat16", shape=shape, strides=strides), b, c)
        return stub_driver.launches()[0].arguments

    b, c = tensor((96, 48), "float8_e4m3fn"), tensor((8,), "bfloat16")
    first = call((100, 64))
    assert len(encoded(stub_driver)) >= 1
    assert call((100, 64)) == first
    assert not encoded(stub_driver)
    for shape, strides in (((64, 100), (104, 1)), ((100, 64), (72, 1)), ((100, 64), None), ((101, 64), None)):
        call(shape, strides)
        (changed,) = encoded(stub_driver)
        assert changed["extents"] == f"{shape[1]},{shape[0]}"
        assert changed["strides"] == str(2 * (strides or (shape[1], 1))[0])


def test_a_map_of_a_pointer_without_a_dtype_and_of_pairs(mod, stub_driver):
    x, z, scales = tensor((8, 16), "int32"), tensor((8, 16)), tensor((8,), "float8_e8m0fnu")
    mod.pointers(x, z, scales)
    assert [call["type"] for call in encoded(stub_driver)] == ["3", "7"]
    with pytest.raises(TypeError, match="'x' must be an int32 CUDA tensor, got float32"):
        mod.pointers(z, z, scales)
    with pytest.raises(TypeError, match="'z' must be a float32 CUDA tensor, got complex64"):
        mod.pointers(x, tensor((8, 16), "complex64"), scales)  # its shape and strides do not count float32 elements
    scale_map = {"x_map": Tma("scales", box=(16,))}
    with pytest.raises(LaunchSpecError, match=r"tma\['x_map'\]: .* a dtype of uint8.* has float8_e8m0fnu"):
        build(scale_map, kernel="pointers")


def test_dtypes_and_values_of_a_variant(mod, stub_driver):
    mod.tiled(tensor((4, 64)))
    mod.tiled(tensor((4, 64), "float16"))
    assert [(call["type"], call["box"]) for call in encoded(stub_driver)] == [("7", "16,1"), ("6", "16,1")]


BAD_CALLS = {
    "dimensions": (tensor((4, 64, 8), "bfloat16"), "'a' must have 2 dimensions for its tensor map, got 3"),
    "dtype": (tensor((4, 64)), "'a' must be a bfloat16 CUDA tensor, got float32"),
    "stride": (tensor((4, 64), "bfloat16", (68, 1)), r"below 2\*\*40 for its tensor map, but axis 0 has 68 elements"),
    "column": (tensor((4, 64), "bfloat16", (128, 2)), "must be contiguous in its last axis for its tensor map"),
    "empty": (tensor((4, 0), "bfloat16"), "must have 1 to 4294967296 elements in axis 1 for its tensor map, got 0"),
    "address": (tensor((4, 64), "bfloat16", offset=8), "'a' must be aligned to 16 bytes for its tensor map"),
    "number": (7, "'a' must be a bfloat16 CUDA tensor"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_calls_that_are_refused(mod, stub_driver, name):
    argument, message = BAD_CALLS[name]
    error = TypeError if name in ("dtype", "number") else ValueError
    with pytest.raises(error, match=message):
        mod.gemm(argument, tensor((96, 48), "float8_e4m3fn"), tensor((8,), "bfloat16"))
    assert not encoded(stub_driver)


def test_another_refusal_of_the_driver_names_the_argument(mod, stub_driver):
    stub_driver.fail("cuTensorMapEncodeTiled", 801)
    with pytest.raises(RuntimeError, match=r"gemm\(\): the driver cannot make the tensor map of argument 'a'"):
        mod.gemm(tensor((7, 64), "bfloat16"), tensor((96, 48), "float8_e4m3fn"), tensor((8,), "bfloat16"))


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"tensor": "a b"}, "Tma.tensor: 'a b' is not an identifier"),
    "swizzle": ({"swizzle": "16B"}, "Tma.swizzle: must be '32B' or '64B' or '128B', got '16B'"),
    "dtype": ({"dtype": "complex64"}, "Tma.dtype: must be 'uint8' or "),
    "256": ({"box": (257, 8)}, r"Tma.box\[0\]: must be from 1 to 256, got 257"),
    "corners": ({"lower": (1,)}, "Tma.box: must have 1 to 5 numbers; for im2col, two, with lower"),
    "rank": ({"box": (1,) * 6}, "Tma.box: must have 1 to 5 numbers"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_records_that_are_refused(name):
    fields, message = BAD_RECORDS[name]
    with pytest.raises(LaunchSpecError, match=message):
        Tma(**{"tensor": "a", "box": (8, 8), **fields})


BAD_LAUNCHES = {
    "bytes": (Tma("a", box=(8, 12), dtype="float16"), "last axis of the box must have a multiple of 16 bytes, got 24"),
    "swizzle": (Tma("a", box=(8, 64), dtype="float16", swizzle="64B"), "at most 64B for its swizzle, got 128"),
    "expression": (Tma("a", box=("m", 64), dtype="float16"), "tma: must be constant when the kernel is compiled: Tma"),
    "no dtype": (Tma("a", box=(8, 8)), r"tma\['a_map'\]: .* a dtype of uint8, int8, .*; 'a' has None"),
    "other dtype": (Tma("c", box=(8, 8), dtype="float16"), r"tma\['a_map'\]: .*; 'c' has bfloat16"),
    "integer": (Tma("k", box=(8, 8), dtype="float16"), "the map needs a pointer, .* 'k' has"),
}


@pytest.mark.parametrize("name", BAD_LAUNCHES)
def test_launches_that_are_refused(name):
    tma, message = BAD_LAUNCHES[name]
    with pytest.raises(LaunchSpecError, match=message):
        build({"a_map": tma, "b_map": B})


def build(tma: Any, kernel: str = "gemm", **options: Any) -> jitload.Module:
    functions = {kernel: Launch(grid=1, block=1, tma=tma)}
    return jitload.load_inline("maps", cuda_sources=SOURCE, functions=functions, **{"arch": ARCH, **options})


def test_a_map_of_no_parameter_and_the_cpu_are_refused():
    with pytest.raises(LaunchSpecError, match="'c' is not a const __grid_constant__ CUtensorMap of gemm"):
        build({"c": A})
    with pytest.raises(LaunchSpecError, match="tensor maps exist only on GPUs: build the kernel without"):
        build({"a_map": A}, arch=(ARCH, "cpu"))
    with pytest.raises(LaunchSpecError, match="must be a mapping from names of parameters to Tma records"):
        build({"a_map": (8, 8)})


def test_architectures_may_put_a_map_at_different_offsets(stub_driver):
    mod = build({"a_map": A, "b_map": B}, arch=("sm_90a", "sm_120a"))
    mod.gemm(tensor((4, 64), "bfloat16"), tensor((96, 48), "float8_e4m3fn"), tensor((8,), "bfloat16"), 1, 2)
    (launch,) = stub_driver.launches()
    assert [len(argument) for argument in launch.arguments] == [128, 128, 8, 4, 4]


def test_a_launch_with_maps_is_a_key_and_can_be_recorded():
    launch = FUNCTIONS["gemm"]
    assert hash(launch) == hash(Launch(grid="m", block=32, args=launch.args, tma={"a_map": A, "b_map": B}))
    assert "tma=(('a_map', Tma(tensor='a'" in repr(launch)
    assert "tma" not in repr(Launch(grid=1))
    assert _decode(_encode(launch)) == launch


EXAMPLES = sorted((ROOT / "examples" / "hopper").glob("*.py"))


def rows(*shape: int) -> CudaArray:
    return tensor(shape, "bfloat16")


# For each function, the arguments of a call and what it launches: grid, shared memory, numbers, and sizes of the maps.
EXAMPLE_CALLS: dict[str, tuple[tuple[CudaArray, ...], tuple[Any, ...]]] = {
    "gemm": (
        (rows(1000, 512), rows(520, 512), rows(1000, 520)),
        ((132, 1, 1), 4 * 384 * 128 + 1024, [1000, 520, 512, 8], ["512,1000", "512,520"]),
    ),
    "attention": ((rows(2, 300, 128),) * 4, ((3, 2, 1), 7 * 32768 + 1024, [300], ["128,300,2"] * 3)),
}


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_compiles_and_launches(path, caplog, stub_driver):
    names = runpy.run_path(str(path))
    mod = jitload.load_inline(path.stem, cuda_sources=names["SOURCE"], functions=names["FUNCTIONS"], arch="sm_90a")
    assert caplog.text == ""  # ptxas would say that it serializes wgmma, or that it ignores setmaxnreg
    assert {mod[name].kernels["sm_90a"].local_bytes for name in names["FUNCTIONS"]} == {0}
    assert len(path.read_text().splitlines()) < 200
    args, expected = EXAMPLE_CALLS[path.stem]
    mod[path.stem](*args)
    (launch,) = stub_driver.launches()
    numbers = [int.from_bytes(argument, "little") for argument in launch.arguments if len(argument) == 4]
    maps = [dict(call.fields) for call in stub_driver.calls("cuTensorMapEncodeTiled")]
    assert (launch.grid, launch.shared_bytes, numbers, [each["extents"] for each in maps]) == expected
    assert {(each["box"].removesuffix(",1"), each["swizzle"]) for each in maps} == {("64,128", "3")}


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path):
    assert torch.cuda.is_available()
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to torch's result" in done.stdout
