"""Prepares PyTorch extension sources for the light headers in `include/torch_light/`, with which they are built.

The light headers replace torch's own headers. To keep them small, some parts are put in front of the text only if names
in the text need them: declarations of ATen's operators, and standard headers that torch's headers include.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from jitload.errors import JitLoadError
from jitload.request.arguments import Functions, Options, Pieces, TorchText
from jitload.request.sources import CUDA_SUFFIXES, HOST_SUFFIXES, Sources
from jitload.request.torch_operators import FLOAT8, operator_declarations, torch_abi
from jitload.toolchain.host import INCLUDE_DIR

LIGHT_HEADER_DIR = INCLUDE_DIR / "torch_light"
_QUOTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_ANY_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(?:[<\"]([^>\"\n]+)[>\"])?", re.MULTILINE)
_STD_NAME = re.compile(r"\bstd\s*::\s*(\w+)")
_WORD = re.compile(r"\b[A-Za-z_]\w*")

_CUDA_NAME = re.compile(r"\b(?:torch|at|c10)\s*::\s*cuda\b|\b(?:C10|AT)_CUDA_(?:KERNEL_LAUNCH_)?CHECK\b")
# With threads in the text, its functions run without the GIL, so that a thread that needs it does not wait for ever.
_THREADS = re.compile(
    r"\b(?:std\s*::\s*(?:thread|jthread|async|execution)|pthread_create|parallel_for|tbb)\b|pragma\s+omp\b"
    r'|_Pragma\s*\(\s*"omp|\bnamespace\s+(?:\w+\s*=\s*)?std\s*;[^\0]*\b(?:thread|jthread|async)\b'
)
_PYTHON_API = re.compile(r"\bPy[A-Z_]\w*\s*\(")
# Libraries that torch has already loaded; a second copy might be of another release.
_LIBRARY_OF_TORCH = re.compile(
    r"-l(?:torch\w*|c10\w*|cudart|cublas|cublasLt|curand|cusparse|cusolver|cufft|cudnn|nvrtc|nccl)"
)

# The options that torch 2.13 passes to the compilers.
CPP_FLAGS = ("-std=c++20", "-Wno-deprecated-declarations")
NVCC_FLAGS = (  # noqa: SIM905  a list of words
    "-std=c++20 --expt-relaxed-constexpr -D__CUDA_NO_HALF_OPERATORS__ -D__CUDA_NO_HALF_CONVERSIONS__ "
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__ -D__CUDA_NO_HALF2_OPERATORS__"
).split()

# Headers, each with the names that need it. The names in the first table are in std. The names in the second table are
# other words that torch's headers make known.
_SAME_NAMES = (
    "array chrono complex condition_variable deque exception filesystem initializer_list list map ostream "
    "queue set span stack string_view thread unordered_map unordered_set variant vector"
)


def _table(text: str) -> dict[str, str]:
    return dict(row.strip().split(": ") for row in text.split(";"))


_STD_HEADERS = {name: name for name in _SAME_NAMES.split()} | _table(
    "string: string to_string stoi stol stoul stoll stof stod getline; optional: optional nullopt make_optional; "
    "tuple: tuple make_tuple tie get apply tuple_size tuple_element tuple_cat forward_as_tuple ignore; utility: pair "
    "make_pair move forward swap exchange index_sequence make_index_sequence declval as_const; algorithm: min max "
    "sort clamp fill copy swap find transform any_of all_of for_each fill_n reverse min_element max_element count_if "
    "stable_sort nth_element lower_bound upper_bound partial_sort none_of count copy_n copy_if find_if unique remove "
    "remove_if rotate shuffle generate replace equal minmax minmax_element binary_search is_sorted; numeric: "
    "accumulate iota inner_product partial_sum reduce gcd lcm adjacent_difference; iterator: distance next prev "
    "advance back_inserter inserter begin end; map: map multimap; set: set multiset; functional: function plus "
    "multiplies hash less greater bind ref minus divides equal_to less_equal greater_equal cref; stdexcept: "
    "runtime_error invalid_argument out_of_range logic_error domain_error length_error overflow_error; iostream: cout "
    "cerr endl cin flush; sstream: ostringstream stringstream istringstream; iomanip: setprecision setw setfill; ios: "
    "fixed scientific hex boolalpha; limits: numeric_limits; new: bad_alloc; queue: queue priority_queue; memory: "
    "unique_ptr shared_ptr make_unique make_shared weak_ptr addressof enable_shared_from_this; variant: variant visit "
    "get_if holds_alternative monostate; type_traits: is_same is_same_v enable_if_t enable_if conditional_t decay_t "
    "is_floating_point is_integral is_floating_point_v remove_reference_t true_type false_type remove_const_t "
    "is_integral_v is_signed_v is_unsigned_v is_arithmetic_v is_void_v is_convertible_v remove_cv_t make_signed_t "
    "make_unsigned_t integral_constant void_t decay; mutex: mutex lock_guard unique_lock once_flag call_once "
    "scoped_lock recursive_mutex; fstream: ofstream ifstream; random: mt19937 normal_distribution "
    "uniform_real_distribution uniform_int_distribution random_device; atomic: atomic atomic_thread_fence "
    "memory_order_release memory_order_acquire memory_order_relaxed; exception: exception exception_ptr "
    "current_exception rethrow_exception; bit: bit_cast"
)
_ATOMIC = "gpuAtomicAdd gpuAtomicAddNoReturn gpuAtomicMax gpuAtomicMin gpuAtomicMul Atomic THCAtomics CUDAApplyUtils"
_WORD_HEADERS = _table(
    "vector: TensorList vec CUDAEvent; optional: optional nullopt CUDAEvent; functional: CUDAEvent; memory: "
    "CUDAEvent; mutex: CUDAEvent; algorithm: irange; ctime: time clock; cmath: cmath sqrt exp log pow fabs expf "
    "logf sqrtf powf tanhf fabsf INFINITY NAN M_PI HUGE_VALF fmaxf fminf isnan isinf floor ceil tanh sin cos roundf "
    "rintf floorf ceilf erff log1pf fmax fmin fmod atan atan2 acos asin tan sinh cosh exp2 log2 log10 log1p expm1 "
    "round trunc hypot cbrt erf erfc sinf cosf tanf atan2f fmodf truncf exp2f log2f copysign copysignf lround lrint "
    "rint fma isfinite signbit lgamma tgamma acosh asinh atanh ldexp frexp modf nextafter nearbyint remainder fdim "
    "logb ilogb scalbn llround llrint fpclassify M_PI_2 M_SQRT2 M_LN2 M_E; cstdio: printf fprintf snprintf stderr "
    "sprintf stdout fflush puts fopen; cstring: memcpy memset memcmp memmove strlen strcmp strncpy; stdlib.h: div "
    "malloc free exit abort getenv abs uint ushort rand srand RAND_MAX qsort atoi atof calloc realloc; cassert: "
    "assert; exception: Error what_without_backtrace value_error type_error index_error; string: str; "
    "cfloat: FLT_MAX FLT_MIN FLT_EPSILON DBL_MAX DBL_MIN DBL_EPSILON; climits: INT_MAX INT_MIN UINT_MAX "
    "LONG_MAX CHAR_BIT LLONG_MAX SHRT_MAX UCHAR_MAX; cuda_fp16.h: half half2 __half __half2 __float2half __half2float "
    f"__half_raw {_ATOMIC}; cuda_bf16.h: __nv_bfloat16 __nv_bfloat162 __float2bfloat16 __bfloat162float nv_bfloat16 "
    f"{_ATOMIC}; torch/headeronly/version.h: TORCH_VERSION TORCH_VERSION_MAJOR TORCH_VERSION_MINOR TORCH_VERSION_PATCH "
    "TORCH_ABI_VERSION; Python.h: PY_VERSION_HEX PY_MAJOR_VERSION"
)
# The include guards of those parts of libstdc++'s <cmath> and <algorithm> that few texts use. cuda_runtime.h includes
# <cmath>; without these parts, it is compiled in half the time.
_UNUSED_PARTS = ("_GLIBCXX_BITS_SPECFUN_H", "_PSTL_GLUE_ALGORITHM_DEFS_H", "_RANGES_ALGO_H")
_PYTHON_HEADER = re.compile(r"include\s*[<\"](?:Python|pybind11/|torch/(?:extension|python|torch|csrc/utils/py)).*\.h")
_PLAIN_NAME = re.compile(r"size_t|ptrdiff_t|nullptr_t|u?int\w+_t")
_PLAIN_INCLUDE = re.compile(
    r"(?:torch|ATen|c10|pybind11)/[\w/]+\.h|cu[a-z]\w+\.h|cooperative_groups(?:/\w+)?\.h|mma\.h|math_constants\.h"
    r"|device_launch_parameters\.h|vector_\w+\.h|(?:assert|ctype|errno|float|limits|math|std\w+|string|time)\.h"
    r"|c(?:assert|ctype|errno|float|inttypes|limits|math|std\w+|string|time)"
)
_LIBRARY_HEADERS = {"cublas": "cublas_v2", "cublasLt": "cublasLt", "cusparse": "cusparse", "cusolver": "cusolverDn"}
# Headers that torch's common headers include and the light ones do not, each with a pattern for the texts that need it.
_COMMON_HEADERS = (
    ("torch/library.h", re.compile(r"\bTORCH_LIBRARY|\bRegisterOperators\b")),
    ("ATen/Dispatch.h", re.compile(r"\bAT_(?:DISPATCH|PRIVATE)_")),
    ("c10/util/irange.h", re.compile(r"\birange\b")),
    ("ATen/cuda/detail/KernelUtils.h", re.compile(r"\bCUDA_KERNEL_LOOP|\bGET_BLOCKS\b")),
    ("ATen/cuda/Atomic.cuh", re.compile(r"\bgpuAtomic|/(?:Atomic|CUDAApplyUtils)\.cuh")),
    *((f"c10/util/Float8_{name}.h", re.compile(rf"Float8_{name}\b|FLOAT8_TYPES")) for name in FLOAT8),
)
# Stands behind the text, so that a missing closing brace gives an error here and not in our headers.
_END_OF_TEXT = ("the end of the text", "template <class> struct jitload_torch_end_of_text;")


def torch_sources(
    name: str, sources: Sources, functions: Functions | None, options: Options, torch: TorchText
) -> tuple[Sources, Options]:
    """Return sources and options that build PyTorch extension sources with jitload's light headers.

    Each file becomes one text, and so do all inline texts of one language together. Each resulting text begins with the
    declarations that it needs, and inline C++ ends with the exports of `functions=`.
    """
    host, cuda = (
        tuple((piece,) for piece in pieces) if sources.are_files else (pieces,) if pieces else ()
        for pieces in (sources.host, sources.cuda)
    )
    if functions is not None and not isinstance(functions, list | tuple | dict | str):
        raise JitLoadError(f"functions must be a list or dict of C++ names, got {type(functions).__name__}")
    if functions and not sources.are_files:
        binding = ("functions", binding_text(functions, wraps_errors=torch.wraps_errors))
        host = (((*host[0], _END_OF_TEXT, binding) if host else (binding,)),)
    directories = (*sources.directories, *options.include_dirs, *options.host_dirs)
    implicit = torch.has_implicit_headers and not sources.are_files
    standard = () if any(flag.startswith("-std") for flag in options.host) else CPP_FLAGS[:1]
    has_cuda_standard = any(flag.startswith(("-std", "--std")) for flag in options.cuda)
    # By default, the host code of CUDA sources is compiled with -O0, as torch does. Kernels keep -O3.
    host_level = () if any(flag.startswith("-O") for flag in options.cuda) else ("-O0",)
    texts = {unit: _texts_of(unit, directories) for unit in (*host, *cuda)}
    parts = [f"-D{guard}" for guard in _unused_parts(chain.from_iterable(texts.values()), directories)]
    return (
        sources._replace(
            cuda=tuple(_merge(name, unit, texts[unit], "cu", implicit=implicit) for unit in cuda),
            host=tuple(_merge(name, unit, texts[unit], "cpp", implicit=implicit) for unit in host),
            are_files=True,
        ),
        options._replace(
            host=(*standard, *CPP_FLAGS[1:], *parts, *filter(None, options.host)),
            cuda=(*NVCC_FLAGS[has_cuda_standard:], *host_level, *parts, *filter(None, options.cuda)),
            link=tuple(flag for flag in options.link if flag and not _LIBRARY_OF_TORCH.fullmatch(flag)),
            include_dirs=(LIGHT_HEADER_DIR, *options.include_dirs),
        ),
    )


def included_names(text: str) -> list[str]:
    """Return the names of the headers that a text includes. An `#include` of a macro gives ""."""
    return _ANY_INCLUDE.findall(text)


def _merge(name: str, pieces: Pieces, texts: Sequence[str], suffix: str, *, implicit: bool) -> tuple[str, str]:
    """Merge `(label, text)` pairs into one pair. `#line` directives keep the names and lines of the original texts.

    `texts` are the original texts and their headers. The result begins with declarations for the names in `texts`, and
    with the macro `TORCH_EXTENSION_NAME`. As a compiler option, the macro would prevent reuse of cached nvcc commands.
    """
    macros = f"#ifndef TORCH_EXTENSION_NAME\n#define TORCH_EXTENSION_NAME {name}\n#endif\n"
    macros += "#define TORCH_API_INCLUDE_EXTENSION_H 1\n"
    prelude = _prelude("\n".join(texts), is_cuda=suffix == "cu", implicit=implicit)
    lines = [f"#line 1 {string_literal(label)}\n{text}\n" for label, text in pieces]
    label = pieces[0][0]
    is_named = Path(label).suffix.lower() in (HOST_SUFFIXES if suffix == "cpp" else CUDA_SUFFIXES)
    return label if is_named else f"{label}.{suffix}", "".join((macros, prelude, *lines))


def _prelude(text: str, *, is_cuda: bool, implicit: bool) -> str:
    """Return the `#include` lines and declarations for the names in a text."""
    operators = operator_declarations(text)
    headers = {*_standard_headers(text, is_cuda=is_cuda), *operators.headers}
    if "cmath" in headers and (implicit or _PYTHON_HEADER.search(text)):
        headers.add("math.h")  # which Python.h includes: `sqrt(x)` of a float is then a float
    lines = [f"#include <{header}>" for header in sorted(headers)]
    lines.append(f"#define JITLOAD_TORCH_ABI {torch_abi()}")
    lines += _macro("JITLOAD_TORCH_METHODS", operators.methods)
    lines += _macro("JITLOAD_TORCH_FUNCTIONS", operators.functions)
    is_exclusive = _THREADS.search(text) and not _PYTHON_API.search(text)
    lines.append(f"#define JITLOAD_TORCH_GIL {'exclusive' if is_exclusive else 'kept'}")
    common = [header for header, names in _COMMON_HEADERS if names.search(text)]
    lines += [f"#include <{header}>" for header in common if is_cuda or not header.endswith(".cuh")]
    if implicit:
        lines.append(f"#include <torch/{'types' if is_cuda else 'extension'}.h>")
        lines += ["#include <cuda_runtime.h>"] if is_cuda else []
    if is_cuda or "CUDAContext" in text:  # torch's CUDAContext.h includes these libraries' headers
        for word, header in _LIBRARY_HEADERS.items():
            # Not for headers that the text includes: after an __has_include, g++ 12 would not report a missing one.
            if word in text and f"{header}.h" not in text:
                lines += [f"#if __has_include(<{header}.h>)", f"#include <{header}.h>", "#endif"]
    if is_cuda and _CUDA_NAME.search(text):
        lines.append("#include <ATen/cuda/CUDAContext.h>")
    if (is_cuda or "cuda/CUDA" in text) and re.search(r"\bcu[A-Z]\w+|\bCU[a-z]\w+|\bCUDA_(?:SUCCESS|VERSION)\b", text):
        lines.append("#include <cuda.h>")
    return "".join(f"{line}\n" for line in lines)


def _texts_of(pieces: Pieces, header_dirs: Sequence[Path]) -> list[str]:
    """Return the texts of `pieces`, and of the user's headers that they include directly or indirectly."""
    texts, seen = [text for _, text in pieces], set[Path]()
    for text in texts:  # the loop adds the headers that it finds
        for name in _QUOTED_INCLUDE.findall(text):
            path = next((path for directory in header_dirs if (path := directory / name).is_file()), None)
            if path is not None and path not in seen:
                seen.add(path)
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
    return texts


def _unused_parts(texts: Iterable[str], header_dirs: Sequence[Path]) -> tuple[str, ...]:
    """Return the include guards of libstdc++ parts that the texts do not need, or () if a text may need such a part."""
    texts = dict.fromkeys(texts)
    quoted = {name for text in texts for name in _QUOTED_INCLUDE.findall(text)}
    resolved = {name for name in quoted if any((directory / name).is_file() for directory in header_dirs)}
    names_in_tables = {*" ".join((*_STD_HEADERS.values(), *_WORD_HEADERS.values())).split()}
    for text in texts:
        names = {*_STD_NAME.findall(text)} - names_in_tables
        headers = {*included_names(text)} - resolved - _STD_HEADERS.keys()
        is_plain = all(map(_PLAIN_NAME.fullmatch, names)) and all(map(_PLAIN_INCLUDE.fullmatch, headers))
        if "namespace std" in text or not is_plain:
            return ()
    return _UNUSED_PARTS


def _macro(name: str, lines: Sequence[str]) -> list[str]:
    return [f"#define {name} \\", *(f"{line} \\" for line in lines), ""] if lines else []


def _standard_headers(text: str, *, is_cuda: bool) -> Iterator[str]:
    in_std = {match.group(1) for match in _STD_NAME.finditer(text)}
    words = {*_WORD.findall(text)}
    if "using namespace std" in text:
        in_std |= words
    for header, names in _STD_HEADERS.items():
        if not in_std.isdisjoint(names.split()):
            yield header
    may_use_cuda = is_cuda or "cuda/CUDA" in text  # torch's CUDAContext.h includes cuda_fp16.h
    for header, names in _WORD_HEADERS.items():
        if (may_use_cuda or not header.startswith("cuda_")) and not words.isdisjoint(names.split()):
            yield header


# ---- functions ---------------------------------------------------------------------------------------------------


def binding_text(functions: Functions, *, wraps_errors: bool) -> str:
    """Return the C++ that exports the functions named in `functions`, with their docstrings."""
    if isinstance(functions, str):
        functions = [functions]
    documented = functions if isinstance(functions, Mapping) else {name: name for name in functions}
    definitions = []
    for name, doc in documented.items():
        if not isinstance(name, str) or not re.fullmatch(r"(?:\w+::)*[A-Za-z_]\w*", name):
            raise JitLoadError(f"functions= has {name!r}, which is not the name of a C++ function")
        function = f"torch::wrap_pybind_function({name})" if wraps_errors else name
        text = doc if isinstance(doc, str) else name
        line = f"#line 1 {string_literal(f'functions[{name!r}]')}"  # what the compiler's messages call this line
        definitions.append(f'{line}\nm.def("{name}", {function}, {string_literal(text)});')
    return "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n" + "\n".join(definitions) + "\n}\n"


def string_literal(text: str) -> str:
    """Return a text as a C++ string literal. Non-ASCII characters are not escaped."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda control: f"\\{ord(control[0]):03o}", text) + '"'
