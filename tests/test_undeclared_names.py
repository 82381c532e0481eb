"""Names that nvcc knows without an include: the same ones for a GPU and for the CPU, with the same values."""

import math

import numpy as np
import pytest

import jitload
from jitload import compile_cubin
from jitload.errors import ToolchainError
from jitload.settings import read_settings
from jitload.sources import cpu
from jitload.toolchain.cuda import find_cuda_toolchain

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
    expected = {"CHAR_BIT": "8", "FLT_DIG": "6", "DBL_DIG": "15", "FLT_MANT_DIG": "24", "INT64_C(5)": "5LL"}
    for name, kind in INTEGERS.items():
        expected |= {f"{name}_MAX": number(np.iinfo(kind).max), f"{name}_MIN": number(np.iinfo(kind).min)}
    expected |= {f"{name}_MAX": number(np.iinfo(kind).max) for name, kind in UNSIGNED.items()}
    for name, info in FLOATS.items():
        ends = {"MAX": info.max, "MIN": info.tiny, "EPSILON": info.eps}
        expected |= {f"{name}_{end}": repr(float(value)) for end, value in ends.items()}
    return expected | {name: repr(value) for name, value in CONSTANTS.items()}


def for_the_cpu(text: str) -> None:
    jitload.load_inline("names", cuda_sources=text, arch="cpu")


def for_a_gpu(text: str) -> None:
    compile_cubin(text, arch="sm_90")


SIZES = {
    "int8_t": 1, "uint16_t": 2, "int32_t": 4, "uint64_t": 8, "size_t": 8, "ptrdiff_t": 8, "uintptr_t": 8,
    "ssize_t": 8, "uint": 4, "ushort": 2, "ulong": 8, "u_char": 1, "u_int": 4,
    "clock_t": 8, "wchar_t": 4, "float4": 16, "dim3": 12, "__INT64_TYPE__": 8,
}  # fmt: skip
# Functions of the library and of GCC, keywords of GNU C, and constants.
KERNELS = """
__global__ void f(float* x, double* y) {
  std::size_t n = std::numeric_limits<int>::digits;
  x[0] = std::abs(x[1]) + std::sqrt(x[2]) + std::pow(x[3], 2.0f) + std::min(1, 2) + M_PIf;
  x[1] = INFINITY + NAN + HUGE_VALF;
  assert(x[0] != 0);
  y[0] = std::isnan(y[1]) ? std::fabs(y[2]) : static_cast<double>(n);
  static_assert(std::is_same<std::nullptr_t, decltype(nullptr)>::value, "");
}
__global__ void builtins(const unsigned* x, unsigned* y) {
  __builtin_memcpy(y, x, 4);
  __builtin_memset(y + 1, 0, 4);
  y[2] = __builtin_clz(*x) + __builtin_clzll(*x) + __builtin_ffs(*x) + __builtin_ffsll(*x);
  y[3] = __builtin_popcount(*x) + __builtin_popcountll(*x) + UINT32_MAX;
}
struct P { __extension__ union { int n; float x; }; };
template <class T> struct Q { __typeof__(T::n) n; };
__global__ void gnu(P* x, __const __signed__ char* y) {
  __typeof__(*x) a = {};
  a.n = offsetof(Q<P>, n);
  __asm__ __volatile__("" ::: "memory");
  *x = a;
}
"""
# Macros of the host compiler and of <limits.h>, which every source for nvcc may test.
COMPILER_MACROS = {
    "__CHAR_BIT__": "8", "__INT_MAX__": "2147483647", "__LONG_LONG_MAX__": "9223372036854775807LL",
    "__SIZEOF_INT128__": "16", "__SIZEOF_LONG__": "8", "__UINT64_MAX__": "18446744073709551615UL",
    "__INT_FAST16_WIDTH__": "64", "__FLT_MANT_DIG__": "24", "__DBL_MAX_EXP__": "1024", "__SIZE_MAX__": "~0UL",
    "LONG_LONG_MAX": "9223372036854775807LL", "INT_WIDTH": "32", "BYTE_ORDER": "1234", "__BYTE_ORDER__": "1234",
}  # fmt: skip


@pytest.mark.parametrize("first", HEADERS, ids=["bare", "with includes"])
@pytest.mark.parametrize("build", [for_the_cpu, for_a_gpu])
def test_names_need_no_include(build, first):
    checks = {**values(), **{f"sizeof({name})": str(size) for name, size in SIZES.items()}}
    build(first + "".join(f'static_assert({name} == {value}, "");\n' for name, value in checks.items()) + KERNELS)


@pytest.mark.parametrize("build", [for_the_cpu, for_a_gpu])
def test_conditions_take_the_branch_of_nvcc(build, tmp_path):
    """A macro that nvcc defines, and that only conditions name, would otherwise count as 0 without an error."""
    major, minor = find_cuda_toolchain(read_settings()).version[:2]
    release = f"{1000 * major + 10 * minor}"
    macros = COMPILER_MACROS | {
        "CUDART_VERSION": release, "__CUDART_API_VERSION": release, "__CUDACC_VER_MAJOR__": str(major),
        "__CUDACC_VER_MINOR__": str(minor), "__CUDA_API_VER_MAJOR__": str(major), "__CUDA_API_VER_MINOR__": str(minor),
    }  # fmt: skip
    wrong = "#if !defined({0}) || {0} != {1}\n#error {0}\n#endif\n"
    tests = "".join(wrong.format(name, value) for name, value in macros.items())
    tests += "#ifndef INT_MAX\n#error INT_MAX\n#endif\n#ifndef M_PI\n#define M_PI 3\n#endif\n"
    (tmp_path / "tests.h").write_text("#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__\n#error the order of bytes\n#endif\n")
    pi = 'static_assert(M_PI == 3.14159265358979323846, "");\n'
    build(f'#include "{tmp_path}/tests.h"\n{tests}{pi}__global__ void f(int* x) {{ *x = 1; }}')


def test_the_release_is_unknown_without_headers(monkeypatch):
    monkeypatch.setattr(cpu, "find_cuda_headers", lambda settings: None)
    source = "#if CUDART_VERSION < 9000\n#define N 1\n#else\n#define N 2\n#endif\n__global__ void f(int* x) { *x = N; }"
    with pytest.raises(ToolchainError, match=r"CUDART_VERSION.*pip install 'jitload\[cu13\]'"):
        for_the_cpu(source)
