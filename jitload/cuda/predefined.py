"""Names that nvcc knows without an #include, and NVRTC does not: lines that declare these names to NVRTC.

A source may declare such a name itself, and differently: `typedef long long int64_t;`. Therefore most lines are added
only after a compile has failed. Lines for macros are also added if the source tests a macro, which selects code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from jitload.errors import CompileError

UNDECLARED = r'identifier "(\w+)" is undefined'
_MISSING_IN_STD = 'namespace "std" has no member'
_CONDITION = r"(?m)^[ \t]*#[ \t]*(?:el)?if(?:n?def)?\b(?:.*\\\n)*.*"
# Types that NVRTC does not have. nvcc knows them without an #include, because cuda_runtime.h includes headers of the
# host.
_INTEGERS = {
    "int8_t": "signed char", "int16_t": "short", "int32_t": "int", "int64_t": "long", "intptr_t": "long",
    "intmax_t": "long", "uint8_t": "unsigned char", "uint16_t": "unsigned short", "uint32_t": "unsigned int",
    "uint64_t": "unsigned long", "uintptr_t": "unsigned long", "uintmax_t": "unsigned long", "ssize_t": "long",
    "uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long", "u_char": "unsigned char",
    "u_short": "unsigned short", "u_int": "unsigned int", "u_long": "unsigned long",
}  # fmt: skip
# Functions that NVRTC lacks, with the bodies that they have in <cuda_device_runtime_api.h>. They are templates, so that
# functions of the same names that the source declares are called instead.
_DEPENDENT_LAUNCH_FUNCTIONS = {
    "cudaGridDependencySynchronize": 'asm volatile("griddepcontrol.wait;" ::: "memory");',
    "cudaTriggerProgrammaticLaunchCompletion": 'asm volatile("griddepcontrol.launch_dependents;" :::);',
}
_DEPENDENT_LAUNCH = """\
template <class = void>
static __device__ __forceinline__ void {0}() {{
#if __CUDA_ARCH__ >= 900
  {1}
#endif
}}"""
# Functions of g++ that nvcc compiles for GPUs, too.
_FUNCTIONS_OF_GCC = {
    "clz": "__clz", "clzll": "__clzll", "ffs": "__ffs", "ffsll": "__ffsll", "popcount": "__popc",
    "popcountll": "__popcll", "memcpy": "memcpy", "memset": "memset",
}  # fmt: skip
_GNU_KEYWORDS = r"__extension__|__asm(?:__)?|__const|__signed__|__typeof(?:__)?"
# The headers of the C++ library that cuda_runtime.h includes.
_LIBRARY = "".join(
    f"#include <{name}>\n"
    for name in ("algorithm", "cmath", "cstddef", "cstdlib", "iosfwd", "limits", "new", "type_traits", "utility")
).rstrip()
_COMPLEX_HEADER = "thrust/complex.h"
# Macros that are defined in every source that nvcc compiles, each pattern with the header that defines them for NVRTC,
# the functions and keywords above, and what <thrust/complex.h> needs.
_DECLARED_FIRST = {
    r"(?:U?INT|U?LONG|U?LLONG|U?LONG_LONG|U?CHAR|SCHAR|U?SHRT)_(?:MAX|MIN|WIDTH)|(?:CHAR|LONG|WORD)_BIT": (
        "#include <limits.h>"
    ),
    r"INFINITY|NAN|HUGE_VALF?|MAXFLOAT|M_[A-Z0-9_]+|FP_[A-Z0-9]+": "#include <math.h>",
    r"(?:BYTE_ORDER|(?:LITTLE|BIG)_ENDIAN)|__(?:BYTE_ORDER|(?:LITTLE|BIG)_ENDIAN)": "#include <endian.h>",
    r"__(?:FLT|DBL|FLOAT|U?INT|SCHAR|SHRT|LONG|CHAR|SIZE|SIZEOF|PTRDIFF|WCHAR|WINT|SIG|BYTE|ORDER|ATOMIC)\w*_\w+": (
        "#include <_jitload/compiler_macros.h>"
    ),
    **{name: _DEPENDENT_LAUNCH.format(name, asm) for name, asm in _DEPENDENT_LAUNCH_FUNCTIONS.items()},
    _COMPLEX_HEADER: _LIBRARY,
    _GNU_KEYWORDS: "#include <_jitload/gnu_keywords.h>",
}
_KNOWN_TO_NVCC = {
    **_DECLARED_FIRST,
    r"(?:FLT|DBL)_[A-Z0-9_]+": "#include <float.h>",
    r"U?INT(?:_LEAST|_FAST)?\d+_(?:MAX|MIN)|U?INT(?:PTR|MAX)_(?:MAX|MIN)|SIZE_MAX|PTRDIFF_(?:MAX|MIN)|U?INT\d+_C": (
        "#include <stdint.h>"
    ),
    "assert": "#include <assert.h>",
    "offsetof": "#include <stddef.h>",
    **{f"__builtin_{name}": f"#define __builtin_{name} {to}" for name, to in _FUNCTIONS_OF_GCC.items()},
    **{name: f"typedef {integer} {name};" for name, integer in _INTEGERS.items()},
}


def declarations_for(error: CompileError, declared: tuple[str, ...]) -> tuple[str, ...]:
    """Return declarations of the unknown names in `error` that nvcc declares by itself, without those in `declared`.

    Raises:
        CompileError: There is nothing to add. The exception is `error` itself.
    """
    lines = _lines_for(re.findall(UNDECLARED, error.log), _KNOWN_TO_NVCC)
    if _MISSING_IN_STD in error.log:
        lines.append(_LIBRARY)
    if not (added := tuple(line for line in dict.fromkeys(lines) if line not in declared)):
        raise error
    return added


def declarations_for_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that define the macros in the conditions of texts, such as `#ifdef INT_MAX`, as nvcc does.

    Without these lines, NVRTC would silently compile another branch than nvcc. Also return the lines that
    <thrust/complex.h> and functions for dependent launches need. NVRTC may take seconds to find this out.
    """
    needed = {line for text in texts for line in _lines_for_text(text)}
    return tuple(line for line in _DECLARED_FIRST.values() if line in needed)


@functools.lru_cache(maxsize=1024)
def _lines_for_text(text: str) -> list[str]:
    """Return the lines for one text. They are remembered for the next source that includes the same header."""
    conditions = re.findall(_CONDITION, text) if "#" in text else ()
    names = {name for condition in conditions for name in re.findall(r"\w+", condition)}
    names.update(name for name in (*_DEPENDENT_LAUNCH_FUNCTIONS, _COMPLEX_HEADER) if name in text)
    names.update(re.findall(rf"\b(?:{_GNU_KEYWORDS})\b", text))
    return _lines_for(names, _DECLARED_FIRST)


def _lines_for(names: Iterable[str], known: dict[str, str]) -> list[str]:
    names = tuple(names)
    return [line for pattern, line in known.items() if any(re.fullmatch(pattern, name) for name in names)]
