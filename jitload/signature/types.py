"""The text of a C++ type in, what a parameter of that type is out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from jitload.model import ParameterKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """What a type says of a parameter.

    Attributes:
        text: The type as a person writes it, `const float*`.
        kind: As in `Parameter`.
        size: Bytes by value, or None where only the compiler knows.
        dtype: As in `Parameter`.
        alignment: As in `Parameter`.
    """

    text: str
    kind: ParameterKind
    size: int | None = None
    dtype: str | None = None
    alignment: int = 1


@lru_cache(maxsize=1024)
def describe_type(text: str, promoted: str = "") -> TypeFacts:
    """Work out what a parameter of this type is.

    Args:
        text: The type, in the demangler's spelling (`float const*`) or a person's (`const float *`).
        promoted: The same type with an enum replaced by its integer, when the compiler told it.

    Example:
        >>> describe_type("float4 const*")
        TypeFacts(text='const float4*', kind='pointer', size=8, dtype='float32', alignment=16)
    """
    facts = _describe(_split_declarator(promoted or text))
    return replace(facts, text=readable_type(text))


def readable_type(text: str) -> str:
    """Write a type as people do: qualifiers first, no space before `*`, no `restrict`.

    Example:
        >>> readable_type("float const* const* restrict")
        'const float* const*'
    """
    parts = _split_declarator(text)
    return " ".join([*parts.qualifiers, parts.base]) + parts.rest


def resolve_aliases(text: str) -> str:
    """Replace the names that CUDA and the C library define as other names of a type: `int32_t` by `int`.

    Example:
        >>> resolve_aliases("const uint8_t* x")
        'const unsigned char* x'
    """
    return re.sub(r"(?<![\w:])(?:(?:cuda::)?std::)?(\w+)\b(?!::)", lambda word: _ALIASES.get(word[1], word[0]), text)


def unknown_name(text: str) -> str | None:
    """Return the type's name when neither C++ nor CUDA defines it, so that it may be a slip of the pen."""
    parts = _split_declarator(text)
    if parts.is_tagged or parts.base in _ELEMENTS or parts.base in _OPAQUE_SIZES or parts.base == "void":
        return None
    return parts.base


def known_names() -> tuple[str, ...]:
    """Return the names of all types that need no declaration."""
    return (*_ELEMENTS, *_ALIASES, *_OPAQUE_SIZES, "void")


@dataclass(frozen=True, slots=True)
class _Element:
    """A type that memory can be made of: the dtype of a tensor of it, size and alignment in bytes."""

    kind: ParameterKind
    dtype: str | None
    size: int
    alignment: int = 1


def _integers() -> Iterator[tuple[str, _Element]]:
    signed = {"char": 1, "signed char": 1, "short": 2, "int": 4, "long": 8, "long long": 8, "wchar_t": 4}
    unsigned = {"unsigned char": 1, "unsigned short": 2, "unsigned int": 4, "unsigned long": 8}
    unsigned |= {"unsigned long long": 8, "char8_t": 1, "char16_t": 2, "char32_t": 4}
    for name, size in signed.items():
        yield name, _Element("int", f"int{8 * size}", size)
    for name, size in unsigned.items():
        yield name, _Element("uint", f"uint{8 * size}", size)


def _vectors() -> Iterator[tuple[str, _Element]]:
    """Yield CUDA's vector types: those of 2 and 4 elements are aligned as a whole, up to 16 bytes."""
    words = ("char", "short", "int", "long", "longlong")
    elements = {word: _SCALARS[word.replace("longlong", "long long")] for word in words}
    elements |= {f"u{word}": _SCALARS["unsigned " + word.replace("longlong", "long long")] for word in words}
    elements |= {"float": _SCALARS["float"], "double": _SCALARS["double"]}
    for word, element in elements.items():
        for count in (1, 2, 3, 4):
            size = count * element.size
            alignment = min(size, 16) if count in (1, 2, 4) else element.size
            yield f"{word}{count}", _Element("struct", element.dtype, size, alignment)
        for alignment in (16, 32) if word.removeprefix("u") in ("long", "longlong", "double") else ():  # since 13.0
            yield (f"{word}4_{alignment}a", _Element("struct", element.dtype, 32, alignment))
    yield "dim3", _Element("struct", "uint32", 12, 4)


_SCALARS = {
    "bool": _Element("bool", "bool", 1),
    **dict(_integers()),
    "float": _Element("float", "float32", 4),
    "double": _Element("float", "float64", 8),
    "__half": _Element("float", "float16", 2),
    "__nv_bfloat16": _Element("float", "bfloat16", 2),
    "__nv_fp8_e4m3": _Element("float", "float8_e4m3fn", 1),
    "__nv_fp8_e5m2": _Element("float", "float8_e5m2", 1),
    "__nv_fp8_e8m0": _Element("float", "float8_e8m0fnu", 1),
}
_ELEMENTS = {
    **_SCALARS,
    **dict(_vectors()),
    "__half2": _Element("struct", "float16", 4, 4),
    "__nv_bfloat162": _Element("struct", "bfloat16", 4, 4),
    **{
        f"__nv_fp8x{count}_{form}": _Element("struct", _SCALARS[f"__nv_fp8_{form}"].dtype, count, count)
        for form in ("e4m3", "e5m2", "e8m0")
        for count in (2, 4)
    },
}
# Passed by value as they are; a pointer to one takes any tensor.
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
    "half": "__half",
    "half2": "__half2",
    "nv_bfloat16": "__nv_bfloat16",
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


_COMPLEX = re.compile(r"(?:(?:cuda::)?std|thrust)::(?:\w+::)*complex<(\w+)>")


def is_complex(text: str) -> bool:
    """Tell whether a type is a pointer to pairs of numbers as a complex tensor has them."""
    parts = _split_declarator(text)
    is_pair = parts.base in ("float2", "double2", "__half2") or _COMPLEX.fullmatch(parts.base) is not None
    return is_pair and parts.is_plain_pointer


def _element_of(base: str) -> _Element | None:
    found = _COMPLEX.fullmatch(base)
    part = _SCALARS.get(found[1]) if found else None
    if part is None:
        return _ELEMENTS.get(base)
    return _Element("struct", part.dtype, 2 * part.size, 2 * part.size)


def _describe(parts: _Declarator) -> TypeFacts:
    element = _element_of(parts.base)
    if parts.is_member_pointer:
        return TypeFacts(text="", kind="struct")
    if parts.rest:
        target = element if parts.is_plain_pointer else None
        return TypeFacts(
            text="",
            kind="pointer",
            size=8,
            dtype=target.dtype if target else None,
            alignment=target.alignment if target else 1,
        )
    if element is None:
        return TypeFacts(text="", kind="struct", size=_OPAQUE_SIZES.get(parts.base))
    dtype = element.dtype if element.kind == "float" else None
    return TypeFacts(text="", kind=element.kind, size=element.size, dtype=dtype)


@dataclass(frozen=True, slots=True)
class _Declarator:
    """A type taken apart: `const float* const*` is `("const",)`, `float` and `* const*`."""

    base: str
    qualifiers: tuple[str, ...]
    rest: str
    is_tagged: bool

    @property
    def is_plain_pointer(self) -> bool:
        """Whether it is one pointer or reference to its base, or to an array of it, or an array."""
        return bool(_POINTER.fullmatch(self.rest))

    @property
    def is_member_pointer(self) -> bool:
        return self.base.endswith("::") or bool(re.match(r"\s*\([^*&()]*::\s*\*", self.rest))


_POINTER = re.compile(r"[*&](?: const| volatile)*| ?\[[^\]]*\]| ?\([*&](?: ?const| ?volatile)*\)(?: ?\[[^\]]*\])+")
_QUALIFIERS = ("const", "volatile")
_RESTRICT = re.compile(r"\s*\b(?:__restrict__|__restrict|restrict)\b")
_TAGS = ("struct", "class", "union", "enum", "typename")
_INTEGER_WORDS = ("unsigned", "signed", "long", "short", "int", "char", "__int128")


def _split_declarator(text: str) -> _Declarator:
    plain = _RESTRICT.sub("", text.strip())
    end = _base_end(plain)
    words = _split_words(plain[:end])
    names = [word for word in words if word not in (*_QUALIFIERS, *_TAGS)]
    return _Declarator(
        base=_canonical_integer(names) or " ".join(names).replace(" <", "<").removeprefix("::"),
        qualifiers=tuple(word for word in _QUALIFIERS if word in words),
        rest=_write_rest(plain[end:]),
        is_tagged=any(tag in words for tag in _TAGS),
    )


def _base_end(text: str) -> int:
    """Return where the first `*`, `&`, `[` or `(*` outside template arguments begins."""
    depth = 0
    for at, character in enumerate(text):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth == 0 and (character in "*&[" or (character == "(" and _is_declarator(text, at))):
            return at
    return len(text)


def _is_declarator(text: str, at: int) -> bool:
    return bool(re.match(r"\(\s*(?:[\w:]+::)?\s*[*&]", text[at:]))


def _split_words(text: str) -> list[str]:
    """Split at white space, except within template arguments."""
    words, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character.isspace() and depth == 0:
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word]


def _canonical_integer(words: list[str]) -> str:
    """Write `long unsigned int` as `unsigned long`; anything but a built-in integer gives an empty text."""
    if not words or any(word not in _INTEGER_WORDS for word in words):
        return ""
    sign = "unsigned " if "unsigned" in words else ""
    if "char" in words:
        return "signed char" if "signed" in words else f"{sign}char"
    if "__int128" in words:
        return f"{sign}__int128"
    length = " ".join(word for word in words if word in ("long", "short"))
    return sign + (length or "int")


def _write_rest(text: str) -> str:
    written = ""
    for piece in re.findall(r"[*&]|const|volatile|[(\[].*", text, re.DOTALL):
        written += piece if piece in ("*", "&") else f" {piece}"
    return written
