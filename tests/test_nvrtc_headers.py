"""Headers that stand in for the C and C++ library under NVRTC, beside CUDA's own, and names that need no include."""

import math
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.nvrtc import Answer, ask_nvrtc, nvrtc_path

import jitload
from jitload import compile_cubin
from jitload.cuda.headers import BUILT_IN, headers_in_memory
from jitload.errors import ToolchainError
from jitload.nvrtc import nvrtc_compile
from jitload.settings import read_settings
from jitload.sources import cpu
from jitload.toolchain.cuda import find_cuda_toolchain

TESTS_DIR = Path(__file__).parent
SHIM_DIR = TESTS_DIR.parent / "jitload" / "include" / "nvrtc"
KIT_INCLUDES = ("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include", "cu13/include", "cu13/include/cccl")
EMPTY_KERNEL = 'extern "C" __global__ void kernel() {}\n'


@dataclass(frozen=True)
class Case:
    """One source to compile; `needs` are headers of the kit without which it is skipped."""

    name: str
    source: str
    dialect: str = "c++17"
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def shim_headers() -> dict[str, str]:
    """Return names and texts of the headers that NVRTC lacks, without corrections of CUDA's and stand-ins for them."""
    files = {path.relative_to(SHIM_DIR).as_posix(): path for path in SHIM_DIR.rglob("*") if path.is_file()}
    texts = {name: path.read_text() for name, path in files.items()}
    texts |= {name: text for name, text in headers_in_memory(()) if "<./" not in text and name not in BUILT_IN.split()}
    return {name: texts[name] for name in sorted(texts) if not name.startswith(("_jitload/", "cub/"))}


def includes(*headers: str) -> str:
    """Return the include lines for these headers."""
    return "".join(f"#include <{header}>\n" for header in headers)


FROM_CCCL = ("bit", "concepts", "optional", "span")  # jitload's headers that include CCCL's, which takes long
# CUDA's own headers in two groups, because one with CCCL costs about a second however many of its headers it includes.
CUDA_HEADERS = {
    "cuda_headers": "cuda.h cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_runtime.h cuda_runtime_api.h"
    " device_launch_parameters.h cuComplex.h vector_types.h math_constants.h cudaTypedefs.h mma.h cuda_pipeline.h"
    " cuda_pipeline_primitives.h cuda_awbarrier.h",
    "cccl_headers": "cuda/std/cstdint cuda/std/cstddef cuda/std/climits cuda/std/cfloat cuda/std/type_traits"
    " cuda/std/limits cuda/std/cmath cuda/std/array cuda/std/tuple cuda/std/utility cuda/std/complex cuda/std/chrono"
    " cuda/std/functional cuda/std/bit cuda/std/span cuda/std/ctime cuda/std/cstdlib cuda/std/cassert"
    " cuda/atomic cuda/barrier cuda/ptx cuda/pipeline cuda/semaphore cuda/functional"
    " cub/cub.cuh"
    " cooperative_groups.h cooperative_groups/reduce.h cooperative_groups/scan.h cooperative_groups/memcpy_async.h",
}
# CUDA 12.4's CCCL wheel has lost every header without a suffix, and with them all of CCCL.
GROUP_NEEDS = {
    "cuda_headers": ("cuda_fp16.h", "crt/mma.h"),
    "cccl_headers": ("cooperative_groups.h", "cub/block/block_reduce.cuh", "cuda/std/cstdint"),
}
CUDA_STD_USE = """
static_assert(cuda::std::is_same<cuda::std::int64_t, long>::value, "");
__global__ void both(cuda::std::array<float, 2> a, std::array<float, 2> b, cuda::std::complex<float>* z) {
  const auto [x, y] = cuda::std::make_tuple(a[0], b[1]);
  const auto [v, w] = std::make_tuple(x, y);
  auto [k, l] = b;
  *z = cuda::std::complex<float>(v + k, w + l + cuda::std::sqrt(x) + cuda::std::numeric_limits<float>::max());
}
"""
STANDARD_USE = """
__global__ void standard(int64_t* a, uint64_t b, size_t n) {
  static_assert(std::is_same<int64_t, long>::value && std::is_same<std::uint64_t, unsigned long>::value, "");
  static_assert(std::is_same<decltype(INT64_MAX), long>::value && std::is_same<decltype(LONG_MAX), long>::value, "");
  static_assert(INFINITY > FLT_MAX && NAN != NAN && offsetof(div_t, rem) == 4, "");
  a[n] = static_cast<int64_t>(std::numeric_limits<int64_t>::max() + std::sqrt(float(b)));
}
"""


def alone_cases() -> Iterator[Case]:
    """Each shim by itself, twice, so that its guard is tested; all of them in each dialect; options that matter."""
    headers = shim_headers()
    cheap = [header for header in headers if header not in FROM_CCCL]
    distinct = {headers[header]: header for header in cheap}.values()  # many say only that they are for host code
    yield from (Case(f"alone/{header}", includes(header, header) + EMPTY_KERNEL) for header in distinct)
    for header in cheap:
        if "namespace" in headers[header]:
            yield Case(f"alone-c++20/{header}", includes(header) + EMPTY_KERNEL, "c++20")
    whole = "__device__ std::optional<int> x{std::in_place, 1};"
    yield Case("alone/optional", includes(*FROM_CCCL) + whole, "c++20", needs=("cuda/std/optional",))
    for dialect in ("c++11", "c++14", "c++17", "c++20", "c++23"):
        yield Case(f"all/{dialect}", includes(*cheap) + STANDARD_USE, dialect)
    yield Case("all-reversed", includes(*reversed(cheap)) + STANDARD_USE)


def meaning_cases() -> Iterator[Case]:
    """The sources beside this file, which check what the headers mean."""
    oldest = {"limits": "c++11", "device": "c++11", "type_traits": "c++17", "library": "c++17"}
    for name, first in oldest.items():
        source = (TESTS_DIR / "nvrtc_sources" / f"{name}.cu").read_text()
        for dialect in (first, "c++23"):
            needs = ("cuda/std/span",) if name == "library" and dialect == "c++23" else ()
            yield Case(f"meaning/{name}/{dialect}", source, dialect, needs=needs)
        yield Case(f"meaning/{name}/options", source, options=("--use_fast_math", "-default-device", "--fmad=false"))


def coexistence_cases() -> Iterator[Case]:
    """CUDA's headers before the shims and after them."""
    shims = includes(*(header for header in shim_headers() if header not in FROM_CCCL))
    for group, names in CUDA_HEADERS.items():
        cuda, needs = includes(*names.split()), GROUP_NEEDS[group]
        use = STANDARD_USE + (CUDA_STD_USE if "cuda/std/tuple" in names else "")
        # CCCL 3, which CUDA 13's cooperative_groups.h reads too, wants C++17 at least.
        dialect = "c++11" if group == "cuda_headers" else "c++20"
        first = includes(*(name for name in names.split() if not name.startswith("cub/")))  # which includes the others
        yield Case(f"with/{group}/before", first + shims + use, needs=needs)
        yield Case(f"with/{group}/after/{dialect}", shims + cuda + use, dialect, needs=needs)


@pytest.fixture(scope="module")
def kit_dirs() -> tuple[Path, ...]:
    """The header directories of the NVRTC that is tested."""
    nvidia = nvrtc_path().parents[2]
    return tuple(nvidia / name for name in KIT_INCLUDES if (nvidia / name).is_dir())


def compile_case(case: Case, *directories: Path) -> Answer:
    """Compile with the shims before other directories, as jitload does.

    The shims come before the user's include paths because /usr/include is often among those, and glibc's headers
    cannot work under NVRTC: they define `__attribute__` away, and `__device__` with it.
    """
    folders = (SHIM_DIR, *directories)
    options = ["-arch=sm_90", "--device-int128", f"-std={case.dialect}", *case.options]
    options += [f"-I{folder}" for folder in folders]
    return ask_nvrtc(case.source, options, headers=dict(headers_in_memory(folders)))


def complaint(answer: Answer) -> str:
    """Return the log when the compile failed or speaks of the source or of the shims; a kit may warn of itself."""
    files = {line.partition("(")[0] for line in answer.log.splitlines()}
    is_own = not answer.cubin or not files.isdisjoint({"k.cu", *dict(headers_in_memory(()))})
    is_own = is_own or str(SHIM_DIR) in answer.log
    return answer.log or "NVRTC failed" if is_own else ""


@pytest.mark.parametrize("case", [*alone_cases(), *meaning_cases(), *coexistence_cases()], ids=lambda case: case.name)
def test_compiles_silently(kit_dirs, case):
    """No error, and no warning either: a user did not write these headers."""
    for header in case.needs:
        if not any((folder / header).is_file() for folder in kit_dirs):
            pytest.skip(f"this kit has no {header}")
    answer = compile_case(case, *kit_dirs)
    if case.dialect == "c++23" and not answer.cubin and "--std" in answer.log:
        pytest.skip("this kit has no c++23")
    assert not complaint(answer)


LAST_CASES = r"""
#include <climits>
#include <cmath>
#include <numeric>
#include <type_traits>
constexpr float kMost = 0x1.fffffep127f, kLeast = 0x1p-149f;
static_assert(std::lerp(-kMost, kMost, 0.5f) == 0 && std::lerp(kMost, -kMost, 1.0f) == -kMost, "");
static_assert(std::lerp(0.1f, 0.9f, 1.0f) == 0.9f && std::lerp(0.1f, 0.9f, 0.0f) == 0.1f, "");
static_assert(std::lerp(1.0f, 1.0f + 0x1p-23f, 0x1.fffffep-1f) <= 1.0f + 0x1p-23f, "");
static_assert(std::lerp(3.0, 5.0, 2.0) == 7 && std::lerp(5.0, 3.0, -1.0) == 7, "");
static_assert(std::lerp(0, 10, 0.5f) == 5 && std::lerp(1.0f, 2.0, 0.5f) == 1.5, "");
static_assert(std::is_same_v<decltype(std::lerp(1, 2, 3)), double>, "");
static_assert(std::is_same_v<decltype(std::lerp(1.0f, 2.0f, 0.5f)), float>, "");
static_assert(std::midpoint(kLeast, kLeast) == kLeast && std::midpoint(kMost, kMost) == kMost, "");
static_assert(std::midpoint(-kMost, kMost) == 0 && std::midpoint(kMost, kLeast) == kMost / 2, "");
static_assert(std::midpoint(3.0, 4.0) == 3.5 && std::midpoint(0x1p-1074, 0x1p-1073) == 0x1p-1073, "");
static_assert(std::midpoint(INT_MAX, INT_MIN) == 0 && std::midpoint(INT_MIN, INT_MAX) == -1, "");
static_assert(std::midpoint((signed char)-128, (signed char)127) == -1 && std::midpoint(~0u, ~0u - 2) == ~0u - 1, "");
constexpr int kFour[4] = {};
static_assert(std::midpoint(kFour, kFour + 3) == kFour + 1 && std::midpoint(kFour + 3, kFour) == kFour + 2, "");
"""


def test_last_cases_are_those_of_the_hosts_library(kit_dirs):
    """What NVRTC works out with our headers is what g++ does with its own."""
    answer = compile_case(Case("last", LAST_CASES, "c++20"), *kit_dirs)
    assert (answer.cubin != b"", answer.log) == (True, "")
    command = ["c++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=LAST_CASES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("directory", ["cuda/std/detail/libcxx/include/__cccl", "cuda/std/__cccl"])
def test_structured_bindings_beside_cccl_before_3_2(tmp_path, directory):
    """CCCL 2.3 to 3.1 declares templates of namespace std otherwise, and 2.3 has its version elsewhere."""
    (tmp_path / directory).mkdir(parents=True)
    (tmp_path / directory / "version.h").write_text("#define CCCL_VERSION 2003002\n")
    source = f"""{includes("utility", "tuple")}
    namespace std {{ template <class... T> struct tuple_size; template <size_t i, class... T> struct tuple_element; }}
    __global__ void k(int* x) {{ const auto [a, b] = std::make_tuple(1, 2); *x = a + b; }}"""
    answer = compile_case(Case("tuples", source), tmp_path)
    assert (answer.cubin != b"", answer.log) == (True, "")


def test_cuda_h_gives_tensor_maps(kit_dirs):
    """A CUtensorMap parameter has the size and the alignment of the kit's CUDA."""
    source = """#include <cuda.h>
    static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == (CUDA_VERSION >= 13000 ? 128 : 64), "");
    static_assert(CUDA_VERSION / 1000 == __CUDACC_VER_MAJOR__ && sizeof(CUdeviceptr) == 8, "");
    __global__ void load(const __grid_constant__ CUtensorMap map, CUdeviceptr p, cuuint64_t n) {}"""
    answer = compile_case(Case("tensor maps", source), *kit_dirs)
    assert (answer.cubin != b"", answer.log) == (True, "")
    assert b"_Z4load14CUtensorMap_stym\0" in answer.cubin


def test_stand_ins_need_no_cuda_headers(kit_dirs):
    """With NVRTC and nothing else a kernel file's usual first lines compile."""
    source = includes(*BUILT_IN.split(), "cuda.h", "iostream", "vector")
    source += "__global__ void k(CUtensorMap m, float4* x, cudaTextureObject_t t) { *x = make_float4(1, 2, 3, 4); }"
    answer = compile_case(Case("stand-ins", source))
    assert (answer.cubin != b"", answer.log) == (True, "")


C_HEADERS = """
    assert.h ctype.h errno.h float.h inttypes.h limits.h math.h memory.h stdarg.h stdbool.h stddef.h stdint.h stdio.h
    stdlib.h string.h strings.h sys/param.h sys/time.h sys/types.h time.h unistd.h wchar.h
"""


@pytest.mark.parametrize("compile_source", [jitload.compile_cubin, nvrtc_compile])
def test_c_headers_may_be_included_within_extern_c(compile_source):
    text = f"""extern "C" {{
    {includes(*C_HEADERS.split())}}}
    {includes("complex", "algorithm", "cmath")}
    using namespace std;
    template <class T> struct plus {{}}; struct Sum : plus<int> {{}};  // <algorithm> has no names of <functional>
    __global__ void k(double* x, ssize_t n, uint m, timeval t) {{
      x[0] = sqrt(2) + std::abs(-3) + div(7, 2).quot + MIN(n, m) + strlen("abc") + t.tv_sec + (NULL == nullptr);
    }}"""
    assert compile_source(text, arch="sm_90")


@pytest.mark.parametrize(
    ("compile_source", "header"), [(jitload.compile_cubin, "cooperative_groups.h"), (nvrtc_compile, "cuda/ptx")]
)
def test_a_texts_own_integers_of_64_bits_are_those_of_all_headers(kit_dirs, compile_source, header):
    """Upstream's nvrtc_compile takes such a text, because CCCL declares the same types under NVRTC."""
    if not any((folder / "cuda/std/cstdint").is_file() for folder in kit_dirs):
        pytest.skip("this kit has no cuda/std/cstdint")
    text = f"""typedef unsigned long long uint64_t;
    typedef long long int int64_t; typedef unsigned int uint32_t;
    {includes("stdint.h", "cuda/std/cstdint", "cstdint", header)}
    static_assert(sizeof(cuda::std::int64_t) == 8 && UINT64_MAX == std::uint64_t(-1), "");
    __global__ void k(uint64_t* x, cuda::std::uint64_t y) {{ x[0] = atomicAdd(x + 1, y); }}"""
    result = compile_source(text, arch="sm_90")
    assert b"_Z1kPyy" in bytes(getattr(result, "data", result))


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
