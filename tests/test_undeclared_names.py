"""Names that nvcc knows without an include: the same ones for a GPU and for the CPU, with the same values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import jitload
from jitload import compile_cubin

INTEGERS = {
    "CHAR": np.int8, "SCHAR": np.int8, "SHRT": np.int16, "INT": np.int32, "LONG": np.int64, "LLONG": np.int64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "INT_LEAST8": np.int8,
    "INT_FAST64": np.int64, "INTMAX": np.int64, "INTPTR": np.int64, "PTRDIFF": np.int64,
}  # fmt: skip
UNSIGNED = {
    "UCHAR": np.uint8, "USHRT": np.uint16, "UINT": np.uint32, "ULONG": np.uint64, "ULLONG": np.uint64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "UINTPTR": np.uint64, "UINTMAX": np.uint64,
    "SIZE": np.uint64,
}  # fmt: skip
FLOATS = {"FLT": np.finfo(np.float32), "DBL": np.finfo(np.float64)}
CONSTANTS = {"M_PI": math.pi, "M_E": math.e, "M_PI_2": math.pi / 2, "M_SQRT2": math.sqrt(2), "M_LN2": math.log(2)}
HEADERS = ("", "#include <climits>\n#include <cfloat>\n#include <cstdint>\n#include <cmath>\n")


def number(value: int) -> str:
    """Return C++ for an integer; the smallest has no literal."""
    if value == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"{value}ULL" if value > 2**63 - 1 else f"{value}LL"


def values() -> dict[str, str]:
    found = {"CHAR_BIT": "8", "FLT_DIG": "6", "DBL_DIG": "15", "FLT_MANT_DIG": "24", "INT64_C(5)": "5LL"}
    for name, kind in INTEGERS.items():
        found |= {f"{name}_MAX": number(np.iinfo(kind).max), f"{name}_MIN": number(np.iinfo(kind).min)}
    found |= {f"{name}_MAX": number(np.iinfo(kind).max) for name, kind in UNSIGNED.items()}
    for name, info in FLOATS.items():
        found |= {
            f"{name}_{end}": repr(float(v)) for end, v in (("MAX", info.max), ("MIN", info.tiny), ("EPSILON", info.eps))
        }
    return found | {name: repr(value) for name, value in CONSTANTS.items()}


def for_the_cpu(text: str) -> None:
    jitload.load_inline("names", cuda_sources=text, arch="cpu")


def for_a_gpu(text: str) -> None:
    compile_cubin(text, arch="sm_90")


@pytest.mark.parametrize("first", HEADERS, ids=["bare", "with includes"])
@pytest.mark.parametrize("build", [for_the_cpu, for_a_gpu])
def test_names_without_an_include(build: Callable[[str], None], first: str) -> None:
    checks = "".join(f'static_assert({name} == {value}, "{name}");\n' for name, value in values().items())
    build(f"{first}{checks}__global__ void f(float* x) {{ x[0] = INFINITY + NAN + HUGE_VALF; assert(x[0] != 0); }}")


@pytest.mark.parametrize("build", [for_the_cpu, for_a_gpu])
def test_types_without_an_include(build: Callable[[str], None]) -> None:
    sizes = {
        "int8_t": 1, "uint16_t": 2, "int32_t": 4, "uint64_t": 8, "size_t": 8, "ptrdiff_t": 8, "uintptr_t": 8,
        "ssize_t": 8, "uint": 4, "ushort": 2, "ulong": 8, "clock_t": 8, "wchar_t": 4, "float4": 16, "dim3": 12,
    }  # fmt: skip
    checks = "".join(f'static_assert(sizeof({name}) == {size}, "");\n' for name, size in sizes.items())
    build(f"{checks}__global__ void f(int64_t* x) {{ *x = UINT32_MAX; }}")
