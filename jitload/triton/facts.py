"""Triton's text for a type in, what stands for it in a kernel's parameter block out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jitload.model import ParameterKind
from jitload.triton.types import DESCRIPTOR, ELEMENTS, POINTER, SCALARS


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """What stands for a type in a kernel's parameter block, and what a caller gives for it."""

    kind: ParameterKind
    size: int
    dtype: str | None = None
    block_shape: tuple[int, ...] | None = None  # of a tensor descriptor


def type_facts(text: str) -> TypeFacts | None:
    """Return the facts of a type in Triton's spelling, or None where we do not know it."""
    pointer = re.fullmatch(POINTER, text)
    if pointer and pointer["stars"]:
        if pointer["element"] not in ELEMENTS:
            return None
        return TypeFacts(
            kind="pointer", size=8, dtype=ELEMENTS[pointer["element"]] if pointer["stars"] == "*" else None
        )
    if text in SCALARS:
        kind, size, dtype = SCALARS[text]
        return TypeFacts(kind=kind, size=size, dtype=dtype)
    if text == "nvTmaDesc":
        return TypeFacts(kind="struct", size=128)
    if found := re.fullmatch(DESCRIPTOR, text):
        shape = tuple(int(number) for number in found[2].split(",") if number.strip())
        return TypeFacts(kind="pointer", size=128, dtype=ELEMENTS.get(found[1]), block_shape=shape)
    return None


def without_layout(text: str) -> str:
    """Return a type without the layout in shared memory that Gluon writes into one of a descriptor."""
    found = re.fullmatch(r"(tensordesc<\w+\[[\d\s,]+\]),.*>", text, re.DOTALL)
    return f"{found[1]}>" if found else text


def flat_names(name: str, types: object) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield the leaves of a parameter's type, with names and paths: `t_0` and `(0,)`."""
    if not isinstance(types, tuple):
        yield name, (), str(types)
        return
    for index, inner in enumerate(types):
        for leaf, path, text in flat_names(f"{name}_{index}", inner):
            yield leaf, (index, *path), text
