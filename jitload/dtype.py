"""The C++ types of tensor elements, for programs that generate source. A replacement for `tvm_ffi.cpp.dtype`."""

from __future__ import annotations

from typing import Any

from jitload.element_types import CPP_TYPES

_CPP_TYPES = {
    **{name: f"{name}_t" if "int" in name else cpp for name, cpp in CPP_TYPES.items()},
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
