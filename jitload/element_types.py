"""The types of tensors' elements: their names in DLPack, CUDA C++ and Triton, and what compilers and checks need."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jitload.model import ParameterKind  # its dataclasses slow `import jitload` down

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6  # DLPack's codes, of which each float8 has its own


class ElementType(NamedTuple):
    """A type of elements, which is also the type of a parameter that is passed by value.

    Attributes:
        dtype: DLPack's name.
        code: DLPack's code, `kDL…`.
        size: The size in bytes.
        kind: The value of `Parameter.kind`.
        cpp: The type in CUDA C++, as compilers print it, or "" if CUDA has none.
        triton: Triton's name, or "" if Triton has none.
        header: CUDA's header that declares the C++ type.
        aliases: Other names in C++.
        tolerance: The relative and absolute tolerance of comparisons, those of torch.testing.assert_close.
    """

    dtype: str
    code: int
    size: int
    kind: ParameterKind
    cpp: str
    triton: str
    header: str = ""
    aliases: tuple[str, ...] = ()
    tolerance: tuple[float, float] = (0.0, 0.0)


_E4M3, _E5M2, _E8M0 = (0.125, 1e-5), (0.25, 1e-5), (0.5, 1e-5)
_ROWS = (
    ("float32", _FLOAT, 4, "float", "float", "fp32", "", (), (1.3e-6, 1e-5)),
    ("float64", _FLOAT, 8, "float", "double", "fp64", "", (), (1e-7, 1e-7)),
    ("float16", _FLOAT, 2, "float", "__half", "fp16", "cuda_fp16.h", ("half", "cutlass::half_t"), (1e-3, 1e-5)),
    ("bfloat16", _BFLOAT, 2, "float", "__nv_bfloat16", "bf16", "cuda_bf16.h",
     ("nv_bfloat16", "cutlass::bfloat16_t"), (1.6e-2, 1e-5)),
    ("float8_e4m3fn", 10, 1, "float", "__nv_fp8_e4m3", "fp8e4nv", "cuda_fp8.h", ("cutlass::float_e4m3_t",), _E4M3),
    ("float8_e5m2", 12, 1, "float", "__nv_fp8_e5m2", "fp8e5", "cuda_fp8.h", ("cutlass::float_e5m2_t",), _E5M2),
    ("float8_e8m0fnu", 14, 1, "float", "__nv_fp8_e8m0", "", "cuda_fp8.h", (), _E8M0),
    ("float8_e4m3fnuz", 11, 1, "float", "", "fp8e4b8", "", (), _E4M3),
    ("float8_e5m2fnuz", 13, 1, "float", "", "fp8e5b16", "", (), _E5M2),
    ("int8", _INT, 1, "int", "signed char", "i8"),
    ("int16", _INT, 2, "int", "short", "i16"),
    ("int32", _INT, 4, "int", "int", "i32"),
    ("int64", _INT, 8, "int", "long long", "i64"),
    ("uint8", _UINT, 1, "uint", "unsigned char", "u8"),
    ("uint16", _UINT, 2, "uint", "unsigned short", "u16"),
    ("uint32", _UINT, 4, "uint", "unsigned int", "u32"),
    ("uint64", _UINT, 8, "uint", "unsigned long long", "u64"),
    ("bool", _BOOL, 1, "bool", "bool", "i1"),
)  # fmt: skip
ELEMENT_TYPES = {row[0]: ElementType(*row) for row in _ROWS}
CPP_TYPES = {row.dtype: row.cpp for row in ELEMENT_TYPES.values() if row.cpp}
