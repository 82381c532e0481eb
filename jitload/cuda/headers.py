"""Headers that NVRTC receives in memory: short headers and generated headers.

jitload's other headers for NVRTC are files in `include/nvrtc`. NVRTC prefers a header in memory to any file, even to a
file in the directory of the including header. Therefore jitload's header is a file if CCCL has a header of that name
beside the headers that include it; CCCL before 2.5 has such a `chrono`. If a user's own header has the name of a
header in memory, `provide_headers` writes jitload's header to a file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# Headers that kernel files often include for their host code. Device code cannot use these headers.
_HOST_ONLY = """
    aio.h alloca.h any arpa/inet.h barrier bitset cctype cerrno charconv clocale codecvt condition_variable coroutine
    csetjmp csignal ctype.h cudaTypedefs.h cuda_gl_interop.h cuda_profiler_api.h cuchar
    cudnn.h cwchar cwctype cxxabi.h deque dirent.h dlfcn.h emmintrin.h err.h errno.h
    error.h exception execinfo.h execution fcntl.h features.h filesystem fnmatch.h format forward_list ftw.h
    future getopt.h glob.h grp.h immintrin.h langinfo.h latch libgen.h list locale locale.h
    malloc.h map memory_resource mutex netdb.h netinet/in.h nvToolsExt.h nvml.h nvrtc.h nvtx3/nvToolsExt.h omp.h
    poll.h pthread.h pwd.h queue random ranges regex regex.h sched.h scoped_allocator search.h semaphore
    semaphore.h set setjmp.h shared_mutex signal.h source_location spawn.h stack stdatomic.h stdnoreturn.h
    stop_token string string_view strstream sys/epoll.h sys/file.h sys/ioctl.h sys/mman.h sys/queue.h
    sys/random.h sys/resource.h sys/select.h sys/socket.h sys/stat.h sys/syscall.h sys/sysinfo.h sys/timeb.h sys/times.h
    sys/uio.h sys/utsname.h sys/wait.h syncstream syslog.h system_error termios.h thread threads.h typeindex typeinfo
    uchar.h ucontext.h unordered_map unordered_set utime.h valarray variant vector wchar.h wctype.h wordexp.h
    x86intrin.h xmmintrin.h
"""
# Headers of CUDA's libraries, whose functions only host code can call, each with the headers of types that it includes.
_LIBRARY_TYPES = {
    **dict.fromkeys(
        ("cublas.h", "cublasLt.h", "cublas_v2.h", "cusolverDn.h", "nccl.h"),
        ("cuComplex.h", "cuda_bf16.h", "cuda_fp16.h"),
    ),
    **dict.fromkeys(("cufft.h", "cufftXt.h", "cusparse.h"), ("cuComplex.h",)),
}
_FFT_TYPES = """\
typedef float cufftReal;
typedef double cufftDoubleReal;
typedef cuComplex cufftComplex;
typedef cuDoubleComplex cufftDoubleComplex;
"""
# Device code needs nothing of these headers. The operators of <iso646.h>, such as `and`, are part of C++, and libraries
# include <ciso646> only to find out which standard library is in use.
_EMPTY = ("ciso646", "iso646.h")
# Device code may declare operators for streams, as <thrust/complex.h> does, but not use streams.
_STREAMS = ("fstream", "iomanip", "ios", "iostream", "istream", "ostream", "sstream", "streambuf")
# Headers of CUDA whose declarations for device code are built into NVRTC. On systems without CUDA's headers, empty
# headers of these names are passed instead.
BUILT_IN = """
    builtin_types.h cuda_runtime.h cuda_runtime_api.h device_functions.h device_launch_parameters.h device_types.h
    driver_types.h host_defines.h math_functions.h nv/target surface_types.h texture_types.h vector_functions.h
    vector_types.h
"""

# The integer types of <stdint.h> as on Linux and in nvcc, where int64_t is long. A key is the part of the type's name
# between `int` and `_t`, and its value is the number of bits.
_INTEGERS = {
    "8": 8, "16": 16, "32": 32, "64": 64, "_least8": 8, "_least16": 16, "_least32": 32, "_least64": 64,
    "_fast8": 8, "_fast16": 64, "_fast32": 64, "_fast64": 64, "ptr": 64, "max": 64,
}  # fmt: skip
_SIGNED = {8: "signed char", 16: "short", 32: "int", 64: "long"}
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned int", 64: "unsigned long"}
_UNSIGNED_SUFFIX = {8: "", 16: "", 32: "U", 64: "UL"}
# The types of C in the macros of <limits.h>, such as SCHAR_MAX, and their bits.
_C_TYPES = {"SCHAR": 8, "SHRT": 16, "INT": 32, "LONG": 64, "LONG_LONG": 64}
_CHAR_LIMITS = """\
#ifdef __CHAR_UNSIGNED__
#define CHAR_MIN 0
#define CHAR_MAX UCHAR_MAX
#else
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#endif
"""
# The names of integer types in macros, INT32_MAX and __INT32_MAX__, and their bits.
_SIGNED_BITS = {f"INT{name.upper()}": bits for name, bits in _INTEGERS.items()}
_SIGNED_BITS |= {"PTRDIFF": 64, "SIG_ATOMIC": 32, "WCHAR": 32}
_UNSIGNED_BITS = {f"U{name}": bits for name, bits in _SIGNED_BITS.items() if name.startswith("INT")}
_UNSIGNED_BITS |= {"SIZE": 64, "WINT": 32}
# The macros of a compiler that describe float and double, `__FLT_DIG__` and `__DBL_DIG__`. In <float.h>, some have
# another name.
_FLOAT_LIMITS = {
    "DECIMAL_DIG": ("9", "17"), "DIG": ("6", "15"), "MANT_DIG": ("24", "53"), "MAX_10_EXP": ("38", "308"),
    "MAX_EXP": ("128", "1024"), "MIN_10_EXP": ("-37", "-307"), "MIN_EXP": ("-125", "-1021"), "HAS_DENORM": ("1", "1"),
    "HAS_INFINITY": ("1", "1"), "HAS_QUIET_NAN": ("1", "1"),
    "DENORM_MIN": ("1.40129846432481707092372958328991613e-45F", "4.94065645841246544176568792868221372e-324"),
    "EPSILON": ("1.19209289550781250000000000000000000e-7F", "2.22044604925031308084726333618164062e-16"),
    "MAX": ("3.40282346638528859811704183484516925e+38F", "1.79769313486231570814527423731704357e+308"),
    "MIN": ("1.17549435082228750796873653722224568e-38F", "2.22507385850720138309023271733240406e-308"),
}  # fmt: skip
_RENAMED_LIMITS = {"HAS_DENORM": "HAS_SUBNORM", "DENORM_MIN": "TRUE_MIN"}
_SIZES = {
    "DOUBLE": 8, "FLOAT": 4, "INT128": 16, "INT": 4, "LONG_LONG": 8, "LONG": 8, "POINTER": 8, "PTRDIFF_T": 8,
    "SHORT": 2, "SIZE_T": 8, "WCHAR_T": 4, "WINT_T": 4,
}  # fmt: skip
_COMPILER_CONSTANTS = {
    "__ATOMIC_RELAXED": "0", "__ATOMIC_CONSUME": "1", "__ATOMIC_ACQUIRE": "2", "__ATOMIC_RELEASE": "3",
    "__ATOMIC_ACQ_REL": "4", "__ATOMIC_SEQ_CST": "5", "__ORDER_LITTLE_ENDIAN__": "1234", "__ORDER_BIG_ENDIAN__": "4321",
    "__ORDER_PDP_ENDIAN__": "3412", "__BYTE_ORDER__": "__ORDER_LITTLE_ENDIAN__",
    "__FLOAT_WORD_ORDER__": "__ORDER_LITTLE_ENDIAN__", "__CHAR_BIT__": "8", "__CHAR16_TYPE__": "unsigned short",
    "__CHAR32_TYPE__": "unsigned int", "__FLT_EVAL_METHOD__": "0", "__FLT_RADIX__": "2", "__WINT_MIN__": "0U",
    "__WINT_WIDTH__": "32", "__SIZE_WIDTH__": "64", "__WCHAR_MIN__": "(-__WCHAR_MAX__ - 1)",
    "__SIG_ATOMIC_MIN__": "(-__SIG_ATOMIC_MAX__ - 1)",
    **{f"__SIZEOF_{name}__": str(size) for name, size in _SIZES.items()},
}  # fmt: skip
# Matches the lines with which a source declares one of these types as long long.
_LONG_LONG_TYPE = (
    r"\btypedef\s+(?:(?:signed|unsigned|int)\s+)*long\s+long\s+(?:(?:unsigned|int)\s+)*(u?int(?:64|max|ptr)_t)\s*;"
    r"|\busing\s+(u?int(?:64|max|ptr)_t)\s*=\s*(?:(?:signed|unsigned|int)\s+)*long\s+long\b"
)
_INTEGER_TYPES = [f"{sign}int{name}_t" for name in _INTEGERS for sign in ("", "u")]

# The C++ headers for the C library, each with the headers that it includes and the names that it adds to namespace std.
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
# __INTADDR__ makes offsetof a constant expression in every NVRTC.
_OFFSETOF = """\
#undef offsetof
#define offsetof(type, member) (static_cast<size_t>(__INTADDR__(&(static_cast<type*>(nullptr)->member))))
"""
# Headers of C and POSIX whose types and macros device code may use.
_POSIX_HEADERS = {
    "bits/types.h": "#include <sys/types.h>\n",
    "byteswap.h": "#define bswap_16(x) ((unsigned short)(__byte_perm((x), 0, 0x4401)))\n"
    "#define bswap_32(x) (__byte_perm((x), 0, 0x0123))\n"
    "#define bswap_64(x) (((unsigned long)bswap_32((x) & 0xffffffff) << 32) | bswap_32((unsigned long)(x) >> 32))\n",
    "ccomplex": "#include <complex>\n",
    "cfenv": "#include <fenv.h>\n",
    "complex.h": "#include <complex>\n",
    "cstdalign": "#include <stdalign.h>\n",
    "ctgmath": "#include <complex>\n#include <cmath>\n",
    "endian.h": "#define __LITTLE_ENDIAN 1234\n#define __BIG_ENDIAN 4321\n#define __BYTE_ORDER __LITTLE_ENDIAN\n"
    "#define LITTLE_ENDIAN __LITTLE_ENDIAN\n#define BIG_ENDIAN __BIG_ENDIAN\n#define BYTE_ORDER __BYTE_ORDER\n",
    "fenv.h": "#define FE_TONEAREST 0\n#define FE_DOWNWARD 0x400\n#define FE_UPWARD 0x800\n"
    "#define FE_TOWARDZERO 0xc00\n",
    "linux/types.h": "#include <stdint.h>\n"
    + "".join(
        f"typedef {integers[bits]} __{sign}{bits};\n"
        for sign, integers in (("s", {**_SIGNED, 64: "long long"}), ("u", {**_UNSIGNED, 64: "unsigned long long"}))
        for bits in (8, 16, 32, 64)
    ),
    "memory.h": "#include <string.h>\n",
    "stdalign.h": "#define __alignas_is_defined 1\n#define __alignof_is_defined 1\n",
    "strings.h": "#include <string.h>\n",
    "sys/cdefs.h": '#define __BEGIN_DECLS extern "C" {\n#define __END_DECLS }\n',
    "sys/param.h": "#include <sys/types.h>\n#include <limits.h>\n#define MIN(a, b) (((a) < (b)) ? (a) : (b))\n"
    "#define MAX(a, b) (((a) > (b)) ? (a) : (b))\n",
    "sys/time.h": "#include <sys/types.h>\nstruct timeval {\n  long tv_sec;\n  long tv_usec;\n};\n",
    "sys/types.h": "#include <time.h>\n#include <stddef.h>\n#include <stdint.h>\n"
    "typedef unsigned char u_char, u_int8_t;\ntypedef unsigned short u_short, ushort, u_int16_t;\n"
    "typedef unsigned int u_int, uint, u_int32_t, mode_t, uid_t, gid_t, id_t;\n"
    "typedef unsigned long u_long, ulong, u_int64_t, ino_t, dev_t, nlink_t, pthread_t;\n"
    "typedef long ssize_t, off_t, off64_t, blksize_t, blkcnt_t, suseconds_t;\ntypedef int pid_t, clockid_t;\n",
    "tgmath.h": "#include <complex>\n#include <cmath>\n",
    "unistd.h": "#include <sys/types.h>\n#define STDIN_FILENO 0\n#define STDOUT_FILENO 1\n#define STDERR_FILENO 2\n",
    "values.h": "#include <limits.h>\n#include <float.h>\n",
}
# What <bits/stdc++.h> includes: all headers of the C++ library that exist for device code and that NVRTC reads quickly.
_ALL_OF_THE_LIBRARY = """
    algorithm array cassert cfloat cinttypes climits cmath complex cstdarg cstddef cstdint cstdio cstdlib cstring
    ctime functional initializer_list iterator limits memory new numeric ratio tuple type_traits utility
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

# Headers of CCCL that define macros differently under NVRTC, each with the lines that define these macros again. Macros
# for numbers of type long have type long long in CCCL. INFINITY, NAN and (before CCCL 2.8) offsetof are not constant
# expressions there.
_REDEFINED_MACROS = {
    "cuda/std/cfloat": "#include <float.h>\n",
    "cuda/std/climits": "#include <limits.h>\n",
    "cuda/std/cmath": "#include <_jitload/math_macros.h>\n",
    "cuda/std/cstddef": _OFFSETOF,
}
# If __CUDACC_RTC__ is defined, these headers declare ::uint64_t as unsigned long long, which conflicts with <stdint.h>.
# So __CUDACC_RTC__ is undefined while NVRTC reads these headers.
_CONFLICTING = ("cuda_awbarrier_helpers.h", "cuda_pipeline_helpers.h")
# This header of CUTLASS declares enumerators with the names of macros of <math.h>, and then defines these macros.
_FLOAT_CLASSES = "cutlass/floating_point_nvrtc.h"
_WITHOUT_FLOAT_CLASSES = "#include <cutlass/platform/platform.h>\n" + "".join(
    f"#undef FP_{name}\n" for name in ("NAN", "INFINITE", "ZERO", "SUBNORMAL", "NORMAL")
)


@contextmanager
def provide_headers(
    include_dirs: Sequence[Path], users_headers: Collection[str] = (), source: str = ""
) -> Iterator[tuple[tuple[tuple[str, str], ...], tuple[Path, ...]]]:
    """Yield the headers in memory, as (name, text) pairs, and the directories that NVRTC should search last.

    If a name is in `users_headers`, jitload's header of this name is not passed in memory, but written to one of these
    directories. An #include of this name in quotes then reads the user's header. An #include in angle brackets reads
    jitload's header, unless the user's header is in an include directory.

    Args:
        include_dirs: The directories that NVRTC searches. Empty headers replace CUDA headers that are missing there.
        users_headers: The names in `STAND_INS` that headers of the user have, too.
        source: The text to compile. It decides whether <stdint.h> declares `int64_t` as `long` or `long long`.
    """
    headers = headers_in_memory(include_dirs, source)
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


def headers_in_memory(include_dirs: Sequence[Path], source: str = "") -> tuple[tuple[str, str], ...]:
    """Return the headers for one run of NVRTC as (name, text) pairs.

    Args:
        include_dirs: The directories that NVRTC searches. Empty headers replace CUDA headers that are missing there.
        source: The text to compile. It may declare types of <stdint.h> as `long long`, as CCCL does under NVRTC.
            jitload's <stdint.h> then does the same.
    """
    headers = _HEADERS
    matches = re.findall(_LONG_LONG_TYPE, source) if "_t" in source else ()
    if own := {name for names in matches for name in names if name}:
        text = dict(headers)["stdint.h"]
        for name in own:
            text = re.sub(rf"long (?={name};)", "long long ", text)
        headers = tuple((name, text if name == "stdint.h" else other) for name, other in headers)
    missing = (name for name in BUILT_IN.split() if not any((directory / name).is_file() for directory in include_dirs))
    return (*headers, *((name, "// NVRTC has built in what device code needs of this header.\n") for name in missing))


def _included_file(name: str) -> str:
    """Return the line with which a header in memory includes the file of the same name.

    Because of the `./`, the name differs from that of the header in memory, and NVRTC reads the file.
    """
    return f"#include <./{name}>\n"


def _once(name: str, text: str) -> str:
    guard = f"JITLOAD_NVRTC_{re.sub('[^a-z0-9]', '_', name).upper()}"
    return f"#ifndef {guard}\n#define {guard}\n{text}#endif\n"


def _redefining(text: str) -> str:
    """Return lines that may redefine macros, without NVRTC's warning 47 about redefined macros."""
    return f"#pragma nv_diagnostic push\n#pragma nv_diag_suppress 47\n{text}#pragma nv_diagnostic pop\n"


def _defines(macros: Mapping[str, str]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())


def _using(names: Sequence[str]) -> str:
    return "".join(f"using ::{name};\n" for name in names)


def _c_header(includes: str, names: str) -> str:
    lines = "".join(f"#include <{header}>\n" for header in includes.split())
    return f"{lines}namespace std {{\n{_using(names.split())}}}\n" if names else lines


def _suffix(name: str, bits: int) -> str:
    """Return the suffix of constants of a signed type, whose name in macros is `name`."""
    return "LL" if name in ("LLONG", "LONG_LONG") else "L" if bits == 64 else ""


def _range(name: str, bits: int) -> dict[str, str]:
    """Return the macros for the greatest and the least number of a signed type."""
    greatest = f"{2 ** (bits - 1) - 1}{_suffix(name, bits)}"
    return {f"{name}_MAX": greatest, f"{name}_MIN": f"(-{greatest} - 1)"}


def _limits() -> str:
    """Return <limits.h>, also without a guard."""
    macros = {"CHAR_BIT": "8", "CHAR_WIDTH": "8", "MB_LEN_MAX": "16", "LONG_BIT": "64", "WORD_BIT": "32"}
    for name, bits in {**_C_TYPES, "LLONG": 64}.items():
        unsigned = "UCHAR" if name == "SCHAR" else f"U{name}"
        macros |= _range(name, bits)
        macros[f"{unsigned}_MAX"] = f"{2**bits - 1}{'U' if bits > 16 else ''}{_suffix(name, bits)}"
        macros |= {f"{name}_WIDTH": str(bits), f"{unsigned}_WIDTH": str(bits)}
    return _redefining(f"{_defines(macros)}{_CHAR_LIMITS}")


def _float() -> str:
    """Return <float.h>, also without a guard."""
    macros = {"FLT_RADIX": "2", "FLT_ROUNDS": "1", "FLT_EVAL_METHOD": "0", "DECIMAL_DIG": "21"}
    for name, pair in _FLOAT_LIMITS.items():
        shown = _RENAMED_LIMITS.get(name, name)
        macros |= {f"FLT_{shown}": f"({pair[0]})", f"DBL_{shown}": f"({pair[1]})"}
    return _redefining(_defines(macros))


def _stdint() -> str:
    """Return <stdint.h>. Its macros have no guard, so that each #include restores those that CCCL redefines."""
    types = "".join(
        f"typedef {_SIGNED[bits]} int{name}_t;\ntypedef {_UNSIGNED[bits]} uint{name}_t;\n"
        for name, bits in _INTEGERS.items()
    )
    macros = {"WINT_MIN": "0U"}
    for name, bits in _SIGNED_BITS.items():
        macros |= _range(name, bits)
    for name, bits in _UNSIGNED_BITS.items():
        macros[f"{name}_MAX"] = f"{2**bits - 1}{_UNSIGNED_SUFFIX[bits]}"
    for name in ("8", "16", "32", "64", "max"):
        suffix = _UNSIGNED_SUFFIX[_INTEGERS[name]]
        macros[f"INT{name.upper()}_C(x)"] = "x##L" if "L" in suffix else "x"
        macros[f"UINT{name.upper()}_C(x)"] = f"x##{suffix}" if suffix else "x"
    return _CONFIG + _once("stdint.h types", types) + _redefining(_defines(macros))


def _compiler_macros() -> str:
    """Return the macros of the host compiler that describe types, with the values that g++ has on 64-bit Linux.

    The macros that name the compiler, the system and the processor stay undefined, because they select host code.
    """
    macros = dict(_COMPILER_CONSTANTS)
    for name, pair in _FLOAT_LIMITS.items():
        macros |= {f"__FLT_{name}__": f"({pair[0]})", f"__DBL_{name}__": f"({pair[1]})"}
    for name, bits in {**_SIGNED_BITS, **_C_TYPES}.items():
        macros[f"__{name}_MAX__"] = f"{2 ** (bits - 1) - 1}{_suffix(name, bits)}"
        macros |= {} if name[3:].isdigit() else {f"__{name}_WIDTH__": str(bits)}
    macros |= {f"__{name}_MAX__": f"{2**bits - 1}{_UNSIGNED_SUFFIX[bits]}" for name, bits in _UNSIGNED_BITS.items()}
    macros |= {f"__{name}_TYPE__": _SIGNED[bits] for name, bits in _SIGNED_BITS.items()}
    macros |= {f"__{name}_TYPE__": _UNSIGNED[bits] for name, bits in _UNSIGNED_BITS.items()}
    return _defines(macros)


def _inttypes() -> str:
    """Return <inttypes.h> with the format macros alone. The functions of this header are for the host."""
    macros = (
        f'#define PRI{conversion}{name.lstrip("_").upper()} "{"l" if bits == 64 else ""}{conversion}"\n'
        for conversion in "diouxX"
        for name, bits in _INTEGERS.items()
    )
    return "#include <stdint.h>\n" + "".join(macros)


def _cccl_cstdint() -> str:
    """Return a <cuda/std/cstdint> with the types of <stdint.h>. Under NVRTC, CCCL's own declares int64_t as long long.

    While CCCL's file is read, macros rename its types to names that nothing uses. CCCL's namespace then gets the types
    of <stdint.h>. The headers that CCCL's file includes are read first, because the macros must not affect them.
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


def _library_header(name: str) -> str:
    types = _FFT_TYPES if name.startswith("cufft") else ""
    lines = "".join(f"#include <{header}>\n" for header in _LIBRARY_TYPES[name])
    return f"#if __has_include(<cuComplex.h>)\n{lines}{types}#endif\n"


LIBRARIES = {name: _once(name, _library_header(name)) for name in _LIBRARY_TYPES}
_HEADERS = tuple(
    {
        **dict.fromkeys(_HOST_ONLY.split(), "// This header is for host code. Device code cannot use it.\n"),
        **LIBRARIES,
        **dict.fromkeys(_STREAMS, "#include <iosfwd>\n"),
        **dict.fromkeys(_EMPTY, "// NVRTC needs nothing of this header.\n"),
        **{name: _c_header(*row) for name, row in _C_HEADERS.items()},
        **{name: _once(name, text) for name, text in _POSIX_HEADERS.items()},
        "bits/stdc++.h": _c_header(_ALL_OF_THE_LIBRARY, ""),
        "_jitload/compiler_macros.h": _once("compiler macros", _compiler_macros()),
        "float.h": _float(),
        "inttypes.h": _inttypes(),
        "limits.h": _limits(),
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
        _FLOAT_CLASSES: _once(_FLOAT_CLASSES, _WITHOUT_FLOAT_CLASSES + _included_file(_FLOAT_CLASSES)),
    }.items()
)

# The names of the headers in memory that the user's own headers may replace. Every other header in memory
# includes the file of the same name and corrects it.
STAND_INS = frozenset((*BUILT_IN.split(), *(name for name, text in _HEADERS if "#include <./" not in text)))
