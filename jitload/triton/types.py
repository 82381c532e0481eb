"""Triton's text for a type in, what the cubin has in its place out."""

from __future__ import annotations

import re
from typing import Literal

from jitload.errors import SignatureError
from jitload.model import ParameterKind

# Element types by Triton's names, and their names in DLPack; None where DLPack has none.
ELEMENTS: dict[str, str | None] = {
    "i1": "bool", "u1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz", "fp8e5b16": "float8_e5m2fnuz",
    "fp8e4b15": None, "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "void": None,
}  # fmt: skip
SCALARS: dict[str, tuple[ParameterKind, int, str | None]] = {
    "i1": ("bool", 1, None), "u1": ("bool", 1, None), "i8": ("int", 1, None), "i16": ("int", 2, None),
    "i32": ("int", 4, None), "i64": ("int", 8, None), "u8": ("uint", 1, None), "u16": ("uint", 2, None),
    "u32": ("uint", 4, None), "u64": ("uint", 8, None), "fp16": ("float", 2, "float16"),
    "bf16": ("float", 2, "bfloat16"), "fp32": ("float", 4, "float32"), "fp64": ("float", 8, "float64"),
}  # fmt: skip
_ALIASES = {
    "bool": "i1", "int1": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "half": "fp16", "float16": "fp16",
    "bfloat16": "bf16", "float": "fp32", "float32": "fp32", "f32": "fp32", "double": "fp64", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8e4nv": "fp8e4nv", "float8_e5m2": "fp8e5", "float8e5": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8", "float8e4b8": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
    "float8e5b16": "fp8e5b16", "float8e4b15": "fp8e4b15",
}  # fmt: skip
POINTER = r"(?P<const>const\s+)?(?P<stars>\**)(?P<k>k?)(?P<element>\w+)"
DESCRIPTOR = r"tensordesc<\s*(\w+)\s*\[([\d\s,]+)\]\s*>"

Hint = Literal["16", "1", "null", ""]  # a multiple of 16; always 1; always None
TypeText = tuple[str, Hint]  # a type in Triton's spelling, and what a caller promises of its values


def read_type(value: object, where: str) -> TypeText:
    """Read one type of a `signature=`: `"*fp32:16"`, `"i32"`, `"constexpr"`, None for a pointer that is never there.

    Args:
        value: What was given.
        where: The parameter, for a message.

    Raises:
        SignatureError: It is no type of Triton's.
    """
    if value is None:
        return "constexpr", "null"
    if not isinstance(value, str):
        raise SignatureError(f"{where}: a type is a text such as '*fp32:16' or 'i32', got {value!r}")
    written, _, hint = (part.strip() for part in value.partition(":"))
    text = _canonical(written)
    if text is None:
        raise _unknown(value, where)
    is_int = not text.startswith("*") and text in SCALARS and SCALARS[text][0] in ("int", "uint")
    if hint not in ("", "16", "1") or (hint == "1" and not is_int):
        raise SignatureError(
            f"{where}: {value!r} has a hint that Triton does not know: ':16' is a multiple of 16 (an integer, or a "
            "pointer's address), ':1' an integer that is always 1"
        )
    if hint == "16" and not (is_int or text.startswith("*")):
        raise SignatureError(f"{where}: {value!r}: only a pointer or an integer can be a multiple of 16")
    return text, hint  # type: ignore[return-value]  # one of the hints, as just seen


def _canonical(text: str) -> str | None:
    """Return a type in Triton's spelling, or None."""
    if text in ("constexpr", "nvTmaDesc") or text in SCALARS or (text[:1] == "*" and text[1:] in ELEMENTS):
        return text  # most are; compiling a pattern would cost a hit more than all the rest here
    if found := re.fullmatch(DESCRIPTOR, text):
        element = _ALIASES.get(found[1], found[1])
        shape = ", ".join(number.strip() for number in found[2].split(","))
        return f"tensordesc<{element}[{shape}]>" if element in ELEMENTS else None
    found = re.fullmatch(POINTER, text)
    if found is None or len(found["stars"]) > 1:
        return None
    element = _ALIASES.get(found["element"], found["element"])
    if not found["stars"]:
        return element if element in SCALARS and not (found["const"] or found["k"]) else None
    constant = "k" if found["const"] or found["k"] else ""
    return f"{found['stars']}{constant}{element}" if element in ELEMENTS else None


def _unknown(value: str, where: str) -> SignatureError:
    if "**" in value:  # which Triton 3.9 ends the process for
        raise SignatureError(
            f"{where}: {value!r}: Triton has no pointers to pointers: give '*u64', and let the kernel make a pointer "
            "of what it loads, .to(tl.pointer_type(tl.float32))"
        )
    import difflib  # for this message alone

    known = (*SCALARS, *(f"*{name}" for name in ELEMENTS), "constexpr")
    near = difflib.get_close_matches(value.partition(":")[0].strip(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "types are such as '*fp32', 'i32', 'tensordesc<fp16[128, 64]>'."
    return SignatureError(f"{where}: unknown type {value!r}; {hint}")
