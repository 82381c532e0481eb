"""Headers that NVRTC receives in memory: those of a line or two, and those that are written by a rule.

The others are files in `include/nvrtc`. NVRTC prefers a header in memory to any file, even to one that is beside the
header that includes it. So a name that libraries give to headers of their own has to be a file there: projects may have
a signal.h, and CCCL before 2.5 has a chrono. The user's own headers are recognized for each source.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Kernel files often include these for their host code. Device code cannot use them.
_HOST_ONLY = """
    any bitset cctype cerrno charconv condition_variable csignal ctype.h cudaTypedefs.h cwchar deque exception
    filesystem fstream future iomanip ios iostream istream list map mutex omp.h ostream queue random ranges regex set
    shared_mutex sstream stack streambuf string string_view sys/time.h sys/types.h system_error thread typeindex
    typeinfo unistd.h unordered_map unordered_set valarray variant vector wchar.h
"""
# In C++ the words of <iso646.h> are built in. Libraries include <ciso646> to find out which standard library this is.
_EMPTY = ("ciso646", "iso646.h")
# NVRTC has built in what device code needs of these. They are for systems without CUDA's headers.
BUILT_IN = """
    builtin_types.h cuda_runtime.h cuda_runtime_api.h device_functions.h device_launch_parameters.h device_types.h
    driver_types.h host_defines.h math_functions.h nv/target surface_types.h texture_types.h vector_functions.h
    vector_types.h
"""

# The integer types of <stdint.h> as on Linux and in nvcc, where int64_t is long: the middle of the name, and the bits.
_INTEGERS = {
    "8": 8, "16": 16, "32": 32, "64": 64, "_least8": 8, "_least16": 16, "_least32": 32, "_least64": 64,
    "_fast8": 8, "_fast16": 64, "_fast32": 64, "_fast64": 64, "ptr": 64, "max": 64,
}  # fmt: skip
_SIGNED = {8: "signed char", 16: "short", 32: "int", 64: "long"}
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned int", 64: "unsigned long"}
_UNSIGNED_SUFFIX = {8: "", 16: "", 32: "U", 64: "UL"}
_INTEGER_TYPES = [f"{sign}int{name}_t" for name in _INTEGERS for sign in ("", "u")]

# C++ headers of the C library: the headers that they include, and the names that they add to namespace std.
_C_HEADERS = {
    "cassert": ("assert.h", ""),
    "cfloat": ("float.h", ""),
    "cinttypes": ("inttypes.h cstdint", ""),
    "cstdarg": ("stdarg.h", "va_list"),
    "cstdbool": ("stdbool.h", ""),
    "cstdio": ("stdio.h", "printf"),
    "cstring": ("string.h", "memchr memcmp memcpy memmove memset strcmp strcpy strlen strncmp strncpy"),
}

_CONFIG = "#include <_jitload/config.h>\n"
_NULL = "#ifndef NULL\n#define NULL 0\n#endif\n"
# __INTADDR__ makes it a constant expression in every NVRTC.
_OFFSETOF = """\
#undef offsetof
#define offsetof(type, member) (static_cast<size_t>(__INTADDR__(&(static_cast<type*>(nullptr)->member))))
"""
_STDDEF = f"""\
// size_t, ptrdiff_t and wchar_t are built into NVRTC.
{_CONFIG}{_NULL}{_OFFSETOF}
#ifndef JITLOAD_NVRTC_STDDEF_H
#define JITLOAD_NVRTC_STDDEF_H
using std::nullptr_t;
typedef struct {{
  alignas(16) long long __integer;
  alignas(16) double __floating[2];
}} max_align_t;
#endif
"""

# CCCL headers that define macros differently under NVRTC, and the lines that define them again: its integers are long
# long and not long, and its INFINITY, NAN and (before CCCL 2.8) offsetof are not constant expressions.
_REDEFINED_MACROS = {
    "cuda/std/cfloat": "#include <float.h>\n",
    "cuda/std/climits": "#include <limits.h>\n",
    "cuda/std/cmath": "#include <_jitload/math_macros.h>\n",
    "cuda/std/cstddef": _OFFSETOF,
}
# If __CUDACC_RTC__ is defined, these declare ::uint64_t as unsigned long long, which conflicts with <stdint.h>. So the
# macro is undefined while they are read.
_CONFLICTING = ("cuda_awbarrier_helpers.h", "cuda_pipeline_helpers.h")


@contextmanager
def provide_headers(
    include_dirs: Sequence[Path], users_headers: Collection[str] = ()
) -> Iterator[tuple[tuple[tuple[str, str], ...], tuple[Path, ...]]]:
    """Yield the headers in memory, and directories for NVRTC to search last.

    Headers of the user's own are left out, and ours of the same names are files in such a directory: an #include in
    quotes then reads the user's, and one in angle brackets ours, unless the user's is in an include directory.

    Args:
        include_dirs: The directories that NVRTC searches, as for `headers_in_memory`.
        users_headers: Names in `STAND_INS` that headers of the user's own have.
    """
    headers = headers_in_memory(include_dirs)
    replaced = [(name, text) for name, text in headers if name in users_headers]
    if not replaced:
        yield headers, ()
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="jitload-headers-") as directory:
        for name, text in replaced:
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield tuple(header for header in headers if header not in replaced), (Path(directory),)


def headers_in_memory(include_dirs: Sequence[Path]) -> tuple[tuple[str, str], ...]:
    """Return names and texts of the headers for one run of NVRTC.

    Args:
        include_dirs: The directories that NVRTC searches. A stand-in for a header of CUDA is left out if they have the
            real one.
    """
    missing = (name for name in BUILT_IN.split() if not any((directory / name).is_file() for directory in include_dirs))
    return (*_HEADERS, *((name, "// NVRTC has built in what device code needs of this header.\n") for name in missing))


def _included_file(name: str) -> str:
    """Return the line with which a header in memory includes the file of the same name: `./` makes it another name."""
    return f"#include <./{name}>\n"


def _once(name: str, text: str) -> str:
    guard = f"JITLOAD_NVRTC_{re.sub('[^a-z]', '_', name).upper()}"
    return f"#ifndef {guard}\n#define {guard}\n{text}#endif\n"


def _redefining(text: str) -> str:
    """Return lines that may redefine macros, so that they do it without a warning."""
    return f"#pragma nv_diagnostic push\n#pragma nv_diag_suppress 47\n{text}#pragma nv_diagnostic pop\n"


def _using(names: Sequence[str]) -> str:
    return "".join(f"using ::{name};\n" for name in names)


def _c_header(includes: str, names: str) -> str:
    lines = "".join(f"#include <{header}>\n" for header in includes.split())
    return f"{lines}namespace std {{\n{_using(names.split())}}}\n" if names else lines


def _stdint() -> str:
    """Return <stdint.h>. Its macros have no guard, because CCCL redefines some of them and they must be restored."""
    types = "".join(
        f"typedef {_SIGNED[bits]} int{name}_t;\ntypedef {_UNSIGNED[bits]} uint{name}_t;\n"
        for name, bits in _INTEGERS.items()
    )
    signed = {f"INT{name.upper()}": bits for name, bits in _INTEGERS.items()}
    signed |= {"PTRDIFF": 64, "SIG_ATOMIC": 32, "WCHAR": 32}
    unsigned = {f"UINT{name.upper()}": bits for name, bits in _INTEGERS.items()} | {"SIZE": 64, "WINT": 32}
    macros = {"WINT_MIN": "0U"}
    for name, bits in signed.items():
        greatest = f"{2 ** (bits - 1) - 1}{'L' if bits == 64 else ''}"
        macros |= {f"{name}_MAX": greatest, f"{name}_MIN": f"(-{greatest} - 1)"}
    for name, bits in unsigned.items():
        macros[f"{name}_MAX"] = f"{2**bits - 1}{_UNSIGNED_SUFFIX[bits]}"
    for name in ("8", "16", "32", "64", "max"):
        suffix = _UNSIGNED_SUFFIX[_INTEGERS[name]]
        macros[f"INT{name.upper()}_C(x)"] = "x##L" if "L" in suffix else "x"
        macros[f"UINT{name.upper()}_C(x)"] = f"x##{suffix}" if suffix else "x"
    lines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return _CONFIG + _once("stdint.h types", types) + _redefining(lines)


def _inttypes() -> str:
    """Return the format macros of <inttypes.h>; its functions are for the host."""
    macros = (
        f'#define PRI{conversion}{name.lstrip("_").upper()} "{"l" if bits == 64 else ""}{conversion}"\n'
        for conversion in "diouxX"
        for name, bits in _INTEGERS.items()
    )
    return "#include <stdint.h>\n" + "".join(macros)


def _cccl_cstdint() -> str:
    """Return <cuda/std/cstdint>, whose types CCCL declares again under NVRTC, int64_t as long long.

    <stdint.h> comes first. CCCL's header then declares its types under names that nothing uses, and its namespace gets
    ours instead. The headers that CCCL's includes must be read before the names change.
    """
    renamed = "".join(f"#define {name} __jitload_cccl_{name}\n" for name in _INTEGER_TYPES)
    restored = "".join(f"#undef {name}\n" for name in _INTEGER_TYPES)
    declarations = "".join((renamed, _included_file("cuda/std/cstdint"), restored, "#include <stdint.h>\n"))
    return f"""\
#include <stdint.h>
#include <cuda/std/climits>
#include <cuda/std/version>
{_redefining(declarations)}
namespace cuda {{
namespace std {{
#ifdef _LIBCUDACXX_ABI_NAMESPACE
inline namespace _LIBCUDACXX_ABI_NAMESPACE {{
#endif
{_using(_INTEGER_TYPES)}
#ifdef _LIBCUDACXX_ABI_NAMESPACE
}}
#endif
}}
}}
"""


_HEADERS = tuple(
    {
        **dict.fromkeys(_HOST_ONLY.split(), "// This header is for host code. Device code cannot use it.\n"),
        **dict.fromkeys(_EMPTY, "// NVRTC needs nothing of this header.\n"),
        **{name: _c_header(*row) for name, row in _C_HEADERS.items()},
        "inttypes.h": _inttypes(),
        "stdarg.h": "// va_list and its macros are built into NVRTC.\n" + _CONFIG,
        "stdbool.h": "#define __bool_true_false_are_defined 1\n",
        "stddef.h": _STDDEF,
        "stdint.h": _stdint(),
        "stdio.h": f"// printf is built into NVRTC.\n{_CONFIG}{_NULL}#define EOF (-1)\n",
        "cuda/std/cstdint": _once("cuda/std/cstdint", _cccl_cstdint()),
        **{name: _once(name, _redefining(_included_file(name) + text)) for name, text in _REDEFINED_MACROS.items()},
        **{
            name: _once(
                name, f"#include <stdint.h>\n#undef __CUDACC_RTC__\n{_included_file(name)}#define __CUDACC_RTC__ 1\n"
            )
            for name in _CONFLICTING
        },
    }.items()
)

# The headers in memory that a header of the user's may replace. The others correct the file of the same name.
STAND_INS = frozenset((*BUILT_IN.split(), *(name for name, text in _HEADERS if "#include <./" not in text)))
