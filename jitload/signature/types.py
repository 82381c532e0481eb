"""What the text of a C++ type says about a parameter: its kind, size, dtype and alignment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from jitload.element_types import ELEMENT_TYPES
from jitload.signature.demangle import find_outside_brackets, split_top_level

if TYPE_CHECKING:
    from jitload.model import Parameter, ParameterKind


@lru_cache(maxsize=1024)
def describe_type(text: str, promoted: str = "") -> Parameter:
    """Return what a type says about a parameter, which has no name and no offset. A size of 0 is not known.

    Args:
        text: The type, in the demangler's spelling (`float const*`) or a person's (`const float *`).
        promoted: The same type with an enum replaced by its integer type, or "" if the compiler has not reported it.

    Example:
        >>> describe_type("float4 const*")[1:]
        ('const float4*', 'pointer', 8, 0, 'float32', 16, '')
    """
    from jitload.model import Parameter  # what compiles does not wait for this import

    parts, type_ = _split_declarator(promoted or text), readable_type(text)
    element = _find_element(parts.base)
    if parts.is_member_pointer:
        return Parameter("", type_, "struct", 0, 0)
    if parts.rest:
        target = element if parts.is_plain_pointer else _ADDRESS if parts.has_addresses else None
        facts = (target.dtype, target.alignment) if target else (None, 1)
        return Parameter("", type_, "pointer", 8, 0, *facts)
    if element is None or element.kind == "struct":
        size = element.size if element else _OPAQUE_SIZES.get(parts.base, 0)
        scalars = scalars_in(type_)
        layout = f"={scalars[0]}{scalars[1]}*{scalars[2]}@0" if scalars else f"b{size}*1@0" if size else ""
        return Parameter("", type_, "struct", size, 0, layout=layout)
    return Parameter("", type_, element.kind, element.size, 0, element.dtype if element.kind == "float" else None)


def readable_type(text: str) -> str:
    """Return a type as people write it: qualifiers first, no space before `*`, no `restrict`.

    Example:
        >>> readable_type("float const* const* restrict")
        'const float* const*'
    """
    parts = _split_declarator(text)
    return " ".join([*parts.qualifiers, parts.base]) + parts.rest


def resolve_aliases(text: str) -> str:
    """Replace the aliases of CUDA and the C library by their types: `int32_t` becomes `int`.

    Example:
        >>> resolve_aliases("const uint8_t* x")
        'const unsigned char* x'
    """
    return re.sub(r"(?<![\w:])(?:(?:cuda::)?std::)?(\w+)\b(?!::)", lambda word: _ALIASES.get(word[1], word[0]), text)


def scalars_in(text: str) -> tuple[str, int, int] | None:
    """Return the kind, the size in bytes and the number of the scalars in a value of a type.

    A vector contains several scalars. A pointer counts as one unsigned integer. The kind is `f` for a float, `r` for a
    bfloat16, `b` for an 8-bit float, `i` for a signed integer, or else `u`.

    Return None for a type without known scalars, such as a user-defined type.

    Example:
        >>> scalars_in("int3")
        ('i', 4, 3)
    """
    parts = _split_declarator(text)
    if parts.rest:
        return ("u", 8, 1) if not parts.is_member_pointer else None
    element = _find_element(parts.base)
    if element is None or element.dtype is None:
        return None
    row = ELEMENT_TYPES[element.dtype]
    kind = {"float": "b" if row.size == 1 else "f", "int": "i"}.get(row.kind, "u")
    return "r" if row.dtype == "bfloat16" else kind, row.size, element.size // row.size


def is_pointer_to_pointer(text: str) -> bool:
    """Return whether a type is a pointer to pointers, `float**`."""
    return _split_declarator(text).has_addresses


def is_read_only(text: str) -> bool:
    """Return whether a kernel cannot write through a parameter of this type: `const float*`, or Triton's `*kfp32`."""
    return text.startswith("*k") or (text.startswith("const ") and text.count("*") <= 1)


def find_undeclared_name(text: str) -> str | None:
    """Return the name of a type that neither C++ nor CUDA declares. Such a type is user-defined or misspelled.

    Return None for other types, and for a type with a tag, such as `struct Params`.
    """
    parts = _split_declarator(text)
    if parts.is_tagged or parts.base in _ELEMENTS or parts.base in _OPAQUE_SIZES or parts.base == "void":
        return None
    return parts.base


def split_type(text: str) -> tuple[str, str]:
    """Return a type without qualifiers, tags, pointers and arrays, and what follows it as it was written.

    For `const float* const*`, return `("float", "* const*")`.
    """
    plain = _without_restrict(text)
    return _split_declarator(text).base, plain[_base_end(plain) :]


class _Element(NamedTuple):
    """A type of elements in memory: its kind, the dtype of a tensor of such elements, size and alignment in bytes."""

    kind: ParameterKind
    dtype: str | None
    size: int
    alignment: int


def _scalar(kind: ParameterKind, dtype: str, size: int) -> _Element:
    return _Element(kind, dtype, size, size)


def _vectors() -> Iterator[tuple[str, _Element]]:
    """Yield (name, element) pairs for CUDA's vector types.

    Vectors of 1, 2 or 4 elements are aligned to their size, up to 16 bytes.
    """
    words = ("char", "short", "int", "long", "longlong")
    elements = {word: _SCALARS[word.replace("longlong", "long long")] for word in words}
    elements |= {f"u{word}": _SCALARS["unsigned " + word.replace("longlong", "long long")] for word in words}
    elements |= {"float": _SCALARS["float"], "double": _SCALARS["double"]}
    for word, element in elements.items():
        for count in (1, 2, 3, 4):
            size = count * element.size
            alignment = min(size, 16) if count in (1, 2, 4) else element.size
            yield f"{word}{count}", _Element("struct", element.dtype, size, alignment)
        # CUDA 13.0 introduced the following types.
        for alignment in (16, 32) if word.removeprefix("u") in ("long", "longlong", "double") else ():
            yield (f"{word}4_{alignment}a", _Element("struct", element.dtype, 32, alignment))
    yield "dim3", _Element("struct", "uint32", 12, 4)


# The integers that the table of dtypes has under another name, with their sizes in bytes.
_INTEGERS = {"char": 1, "long": 8, "wchar_t": 4}
_UNSIGNED = {"unsigned long": 8, "char8_t": 1, "char16_t": 2, "char32_t": 4}
_SCALARS = {
    **{name: _scalar("int", f"int{8 * size}", size) for name, size in _INTEGERS.items()},
    **{name: _scalar("uint", f"uint{8 * size}", size) for name, size in _UNSIGNED.items()},
    **{row.cpp: _scalar(row.kind, row.dtype, row.size) for row in ELEMENT_TYPES.values() if row.cpp},
}
_ELEMENTS = {
    **_SCALARS,
    **dict(_vectors()),
    "__half2": _Element("struct", "float16", 4, 4),
    "__nv_bfloat162": _Element("struct", "bfloat16", 4, 4),
    **{
        name.replace("_e", f"x{count}_e"): _Element("struct", scalar.dtype, count, count)
        for name, scalar in _SCALARS.items()
        if name.startswith("__nv_fp")
        for count in (2, 4)
    },
}
_ADDRESS = _scalar("int", "int64", 8)
# Types that can only be passed by value; a pointer to one accepts any tensor.
_OPAQUE_SIZES = {"__int128": 16, "unsigned __int128": 16, "CUtensorMap_st": 128, "decltype(nullptr)": 8}
_ALIASES = {
    **{f"{u}int{bits}_t": t for u, sign in (("", ""), ("u", "unsigned ")) for bits, t in (
        (8, "unsigned char" if u else "signed char"), (16, f"{sign}short"), (32, f"{sign}int"), (64, f"{sign}long"),
    )},
    "size_t": "unsigned long",
    "uintptr_t": "unsigned long",
    "ssize_t": "long",
    "ptrdiff_t": "long",
    "intptr_t": "long",
    "uint": "unsigned int",
    "ushort": "unsigned short",
    "ulong": "unsigned long",
    **{name: t.cpp for t in ELEMENT_TYPES.values() for name in t.aliases},
    "half2": "__half2",
    "nv_bfloat162": "__nv_bfloat162",
    "cuComplex": "float2",
    "cuFloatComplex": "float2",
    "cuDoubleComplex": "double2",
    "CUtensorMap": "CUtensorMap_st",
    "CUdeviceptr": "unsigned long long",
    "cudaTextureObject_t": "unsigned long long",
    "cudaSurfaceObject_t": "unsigned long long",
    "nullptr_t": "decltype(nullptr)",
}  # fmt: skip
# The types that C++ or CUDA declares.
TYPE_NAMES = (*_ELEMENTS, *(name for name in _ALIASES if "::" not in name), *_OPAQUE_SIZES, "void")

_COMPLEX = r"(?:(?:cuda::)?std|thrust)::(?:\w+::)*complex<(\w+)>"


def is_complex(text: str) -> bool:
    """Return whether a type is a pointer that accepts a complex tensor, such as `float2*`."""
    parts = _split_declarator(text)
    is_pair = parts.base in ("float2", "double2", "__half2") or re.fullmatch(_COMPLEX, parts.base) is not None
    return is_pair and parts.is_plain_pointer


def _find_element(base: str) -> _Element | None:
    match = re.fullmatch(_COMPLEX, base) if "complex" in base else None
    scalar = _SCALARS.get(match[1]) if match else None
    if scalar is None:
        return _ELEMENTS.get(base)
    return _Element("struct", scalar.dtype, 2 * scalar.size, 2 * scalar.size)


class _Declarator(NamedTuple):
    """The parts of a type: `const float* const*` has the qualifiers `("const",)`, base `float` and rest `* const*`."""

    base: str
    qualifiers: tuple[str, ...]
    rest: str
    is_tagged: bool

    @property
    def is_plain_pointer(self) -> bool:
        """Whether the type has one level of indirection: `T*`, `T&`, `T[4]`, `T (*)[4]` or `T (&)[4]`."""
        return bool(_POINTER.fullmatch(self.rest))

    @property
    def has_addresses(self) -> bool:
        """Whether the type is a pointer to pointers."""
        return re.fullmatch(r"(?:[*&](?: const| volatile)*){2,}", self.rest) is not None

    @property
    def is_member_pointer(self) -> bool:
        return self.base.endswith("::") or bool(re.match(r"\s*\([^*&()]*::\s*\*", self.rest))


_POINTER = re.compile(r"[*&](?: const| volatile)*| ?\[[^\]]*\]| ?\([*&](?: ?const| ?volatile)*\)(?: ?\[[^\]]*\])+")
_QUALIFIERS = ("const", "volatile")
_RESTRICT = r"\s*\b(?:__restrict__|__restrict|restrict)\b"
_TAGS = ("struct", "class", "union", "enum", "typename")
_INTEGER_WORDS = ("unsigned", "signed", "long", "short", "int", "char", "__int128")


@lru_cache(maxsize=4096)  # kernels of one source share most of their types
def _split_declarator(text: str) -> _Declarator:
    plain = _without_restrict(text)
    end = _base_end(plain)
    words = _split_words(plain[:end])
    names = [word for word in words if word not in (*_QUALIFIERS, *_TAGS)]
    return _Declarator(
        base=_canonical_integer(names) or " ".join(names).replace(" <", "<").removeprefix("::"),
        qualifiers=tuple(word for word in _QUALIFIERS if word in words),
        rest=_normalize_rest(plain[end:]),
        is_tagged=any(tag in words for tag in _TAGS),
    )


def _without_restrict(text: str) -> str:
    return re.sub(_RESTRICT, "", text.strip()) if "restrict" in text else text.strip()


def _base_end(text: str) -> int:
    """Return the index where the declarator (`*`, `&`, `[`, `(*` and the like) begins, or else the text's length."""
    declarator = r"[*&[]|\(\s*(?:[\w:]+::)?\s*[*&]"
    starts = (i for i in find_outside_brackets(text, "*&[(") if re.match(declarator, text[i:]))
    return next(starts, len(text))


def _split_words(text: str) -> list[str]:
    """Split at white space, except within template arguments."""
    return [word for word in split_top_level(re.sub(r"\s", " ", text), " ") if word]


def _canonical_integer(words: list[str]) -> str:
    """Return `unsigned long` for `long unsigned int`, or "" if the words are not a built-in integer type."""
    if not words or any(word not in _INTEGER_WORDS for word in words):
        return ""
    sign = "unsigned " if "unsigned" in words else ""
    if "char" in words:
        return "signed char" if "signed" in words else f"{sign}char"
    if "__int128" in words:
        return f"{sign}__int128"
    length = " ".join(word for word in words if word in ("long", "short"))
    return sign + (length or "int")


def _normalize_rest(text: str) -> str:
    normalized = ""
    for piece in re.findall(r"[*&]|const|volatile|[(\[].*", text, re.DOTALL):
        normalized += piece if piece in ("*", "&") else f" {piece}"
    return normalized
