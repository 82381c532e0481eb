"""The C++ types of tensor elements, for programs that generate source. A replacement for `tvm_ffi.cpp.dtype`."""

from __future__ import annotations

from typing import Any

_CPP_TYPES = {
    **{f"{prefix}int{bits}": f"{prefix}int{bits}_t" for prefix in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
    "float8_e8m0fnu": "__nv_fp8_e8m0",
    "float4_e2m1": "__nv_fp4_e2m1",
    "float4_e2m1fn_x2": "__nv_fp4x2_e2m1",
}


def to_cpp_dtype(dtype_str: str | Any) -> str:
    """Return the C++ type in CUDA code that corresponds to a dtype.

    Args:
        dtype_str: A dtype of torch, NumPy or JAX, a NumPy type such as `np.float16`, or a name such as `"float16"`.

    Raises:
        ValueError: CUDA has no C++ type for the dtype.

    Example:
        >>> to_cpp_dtype("bfloat16")
        '__nv_bfloat16'
    """
    name = str(dtype_str).removeprefix("torch.")
    if isinstance(dtype_str, type) and dtype_str.__module__ != "builtins":  # Python's own types have no fixed size
        name = dtype_str.__name__.rstrip("_")  # NumPy 1 calls its type for truth values `bool_`
    if name not in _CPP_TYPES:
        raise ValueError(f"CUDA has no C++ type for dtype {name!r}; it has types for {', '.join(_CPP_TYPES)}")
    return _CPP_TYPES[name]
