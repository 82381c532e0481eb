"""Arrays that claim a CUDA device reach a tvm-ffi function as they claim to be."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tvm_ffi
from support.arrays import CUDA_MANAGED, DTYPES, CudaArray, DataType, DLTensor, exported_count, tensor_of
from support.driver import find_compiler
from support.raw import DLTENSOR_POINTER, POINTER, RawCallError, RawValue, call_raw
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDER = r"""
#include <tvm/ffi/c_api.h>
#define EXPORT __attribute__((visibility("default")))

EXPORT DLTensor recorded;
EXPORT int64_t recorded_shape[8], recorded_strides[8];
EXPORT int32_t recorded_kind, recorded_has_strides;

EXPORT int __tvm_ffi_record(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  if (num_args != 1) return -1;
  recorded_kind = args[0].type_index;
  if (args[0].type_index != kTVMFFITensor && args[0].type_index != kTVMFFIDLTensorPtr) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "no tensor");
    return -1;
  }
  const int is_bare = args[0].type_index == kTVMFFIDLTensorPtr;
  /* A Tensor is an object header, then the DLTensor. */
  recorded = *(const DLTensor*)(is_bare ? args[0].v_ptr : (void*)(args[0].v_obj + 1));
  recorded_has_strides = recorded.strides != NULL;
  for (int i = 0; i < recorded.ndim && i < 8; ++i) {
    recorded_shape[i] = recorded.shape[i];
    if (recorded_has_strides) recorded_strides[i] = recorded.strides[i];
  }
  return 0;
}
"""
TENSOR_KIND = 70


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a function got."""

    kind: int
    address: int
    byte_offset: int
    device: tuple[int, int]
    dtype: DataType
    shape: list[int]
    strides: list[int] | None


class Recorder:
    def __init__(self, library_path: Path) -> None:
        self.function = tvm_ffi.load_module(str(library_path)).record
        self.library = ctypes.CDLL(str(library_path))

    def __call__(self, argument: Any) -> Seen:
        self.function(argument)
        return self.seen()

    def seen(self) -> Seen:
        tensor = DLTensor.in_dll(self.library, "recorded")
        has_strides = ctypes.c_int32.in_dll(self.library, "recorded_has_strides").value
        return Seen(
            kind=ctypes.c_int32.in_dll(self.library, "recorded_kind").value,
            address=(tensor.data or 0) + tensor.byte_offset,
            byte_offset=tensor.byte_offset,
            device=(tensor.device_type, tensor.device_id),
            dtype=(tensor.code, tensor.bits, tensor.lanes),
            shape=self._extents("recorded_shape", tensor.ndim),
            strides=self._extents("recorded_strides", tensor.ndim) if has_strides else None,
        )

    def _extents(self, name: str, count: int) -> list[int]:
        return list((ctypes.c_int64 * 8).in_dll(self.library, name))[:count]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    work_dir = tmp_path_factory.mktemp("recorder")
    source, library = work_dir / "recorder.c", work_dir / "recorder.so"
    source.write_text(RECORDER, encoding="utf-8")
    includes = [f"-I{find_include_path()}", f"-I{find_dlpack_include_path()}"]
    subprocess.run([*find_compiler(), "-shared", "-fPIC", *includes, str(source), "-o", str(library)], check=True)
    return Recorder(library)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    yield
    if exported_count():  # what only a cycle holds
        gc.collect()
    assert exported_count() == 0


def test_a_view_arrives_with_its_own_strides_and_address(record: Recorder) -> None:
    view = np.arange(24, dtype=np.float32).reshape(4, 6)[1:, ::2]
    assert record(CudaArray(view, 3)) == Seen(
        kind=TENSOR_KIND,
        address=view.ctypes.data,
        byte_offset=0,
        device=(2, 3),
        dtype=(2, 32, 1),
        shape=[3, 3],
        strides=[6, 2],
    )


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_element_type_can_be_claimed(record: Recorder, name: str) -> None:
    assert record(CudaArray(np.zeros(4, np.uint8), dtype=name)).dtype == DTYPES[name]


def test_numpy_types_are_claimed_as_they_are_and_any_other_by_its_code(record: Recorder) -> None:
    found = [record(CudaArray(np.zeros(2, dtype))).dtype for dtype in ("int8", "u8", "f2", "c16", "bool")]
    assert found == [(0, 8, 1), (1, 64, 1), (2, 16, 1), (5, 128, 1), (6, 8, 1)]
    assert record(CudaArray(np.zeros(2, "f4"), dtype=(2, 32, 4))).dtype == (2, 32, 4)


def test_strides_can_be_made_up(record: Recorder) -> None:
    array = np.zeros((2, 3), np.int32)
    assert record(CudaArray(array)).strides == [3, 1]
    assert record(CudaArray(array, strides=(1, 7))).strides == [1, 7]


def test_strides_that_were_left_out_are_filled_in_by_python_only(record: Recorder) -> None:
    array = CudaArray(np.zeros((2, 3), np.int32), 1, strides="null", byte_offset=8)
    assert record(array).strides == [3, 1]
    call_raw(record.function, array)
    assert record.seen() == Seen(
        kind=DLTENSOR_POINTER,
        address=array.address,
        byte_offset=8,
        device=(2, 1),
        dtype=(0, 32, 1),
        shape=[2, 3],
        strides=None,
    )


@pytest.mark.parametrize("argument", [None, 1, True, 0.5, RawValue(kind=POINTER)])
def test_a_raw_call_raises_what_the_function_says(record: Recorder, argument: Any) -> None:
    with pytest.raises(RawCallError, match=r"^TypeError: no tensor$") as caught:
        call_raw(record.function, argument)
    assert (caught.value.kind, caught.value.message) == ("TypeError", "no tensor")
    with pytest.raises(RawCallError, match="set no error"):
        call_raw(record.function)


def test_a_part_of_the_address_can_be_the_offset(record: Recorder) -> None:
    array = np.zeros(8, np.float32)
    seen = record(CudaArray(array, byte_offset=256))
    assert (seen.address, seen.byte_offset) == (array.ctypes.data, 256)


def test_shape_and_address_can_be_claimed_beyond_the_memory(record: Recorder) -> None:
    seen = record(CudaArray(np.zeros(1, np.int8), shape=(2, 2**32), address=0x7000))
    assert (seen.shape, seen.strides, seen.address) == ([2, 2**32], [2**32, 1], 0x7000)
    empty = record(CudaArray(np.zeros((0, 4), np.int8), address=0))
    assert (empty.shape, empty.address) == ([0, 4], 0)
    assert record(CudaArray(np.zeros((), np.int8))).shape == []


def test_other_devices_can_be_claimed(record: Recorder) -> None:
    array = np.zeros(1, np.int8)
    assert record(CudaArray(array, 1, device_type=CUDA_MANAGED)).device == (13, 1)


def test_a_tensor_of_tvm_ffi_keeps_the_memory_until_it_is_dropped(record: Recorder) -> None:
    array = np.arange(4, dtype=np.int64)
    tensor = tensor_of(CudaArray(array, 1))
    assert isinstance(tensor, tvm_ffi.Tensor)
    assert record(tensor).address == array.ctypes.data
    assert record(tensor).device == (2, 1)
    address = array.ctypes.data
    del array
    gc.collect()
    assert exported_count() == 1
    assert list((ctypes.c_int64 * 4).from_address(address)) == [0, 1, 2, 3]
    del tensor
    assert exported_count() == 0


def test_a_capsule_that_nobody_takes_is_freed() -> None:
    capsule = CudaArray(np.zeros(1)).__dlpack__(stream=1, max_version=(1, 0), dl_device=(2, 0), copy=False)
    assert exported_count() == 1
    del capsule
    assert exported_count() == 0


def test_what_cannot_be_handed_over_is_refused() -> None:
    array = CudaArray(np.zeros(1), 1)
    with pytest.raises(BufferError, match="cannot be copied"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"is on \(2, 1\) and stays there, not on \(1, 0\)"):
        array.__dlpack__(dl_device=(1, 0))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"strides": (1, 1)}, "2 strides for 1 dimensions"),
        ({"byte_offset": -1}, "byte_offset -1 is not a part of the address"),
        ({"byte_offset": 8, "address": 4}, "byte_offset 8 is not a part of the address 4"),
        ({"dtype": "float7"}, "'float7' is no element type: give \\(code, bits, lanes\\) or one of int8, "),
    ],
)
def test_claims_that_make_no_tensor_are_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CudaArray(np.zeros(4), **keywords)


def test_types_that_dlpack_has_not_must_be_replaced() -> None:
    with pytest.raises(TypeError, match="DLPack has no type for NumPy's datetime64"):
        CudaArray(np.zeros(4, "datetime64[s]"))
