"""The modules that tvm-ffi has under `tvm_ffi.cpp`: names of dtypes in C++, and the loading functions."""

import numpy as np
import pytest
import torch

import jitload
import jitload.dtype
import jitload.extension

TYPES = [
    ("float32", "float"),
    ("torch.uint8", "uint8_t"),
    (torch.float16, "__half"),
    (torch.bfloat16, "__nv_bfloat16"),
    (torch.float8_e4m3fn, "__nv_fp8_e4m3"),
    (np.dtype("int64"), "int64_t"),
    (torch.bool, "bool"),
    (np.float32, "float"),
    (np.bool_, "bool"),
    (np.uint8, "uint8_t"),
]


@pytest.mark.parametrize(("dtype", "expected"), TYPES)
def test_the_cpp_type_of_a_dtype(dtype, expected):
    assert jitload.to_cpp_dtype(dtype) == expected


def test_a_dtype_without_a_cpp_type():
    with pytest.raises(ValueError, match=r"^CUDA has no C\+\+ type for dtype 'complex64'; it has types for float32, "):
        jitload.to_cpp_dtype(torch.complex64)


def test_the_loading_functions_under_the_path_of_upstream():
    assert jitload.extension.load_inline is jitload.load_inline
    assert jitload.extension.build is jitload.build
