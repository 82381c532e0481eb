"""A `Recipe`: everything that decides what a build makes, in one key, and as a person reads and compares it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SCHEMA = 2
Part = str | bytes | tuple[str, ...]
_LONGEST_SHOWN = 256
# What puts the place of a file into the code that is made from it. `static_assert` does not.
_PLACE = re.compile(rb"(?<!static_)assert|ASSERT|CHECK|THROW|__FILE__|__builtin_FILE|source_location")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what a build makes, as named parts.

    Attributes:
        name: The module's name; it opens the directory's name.
        parts: Label and value of each part; a value that is a tuple keeps its boundaries in the key.
        anchors: Directories and files of the user's that may lie elsewhere for somebody else: their paths are in no
            key, what is read from them is recorded relative to them.
        is_placed: Whether what is made holds the paths of the anchors, as debug information does.
        unknown: Labels of parts that this machine cannot tell, because it lacks the tool. Nothing can be built from
            such a recipe; an entry that agrees in all others may be taken.
        key: SHA-256 over the parts, each length-prefixed, as 64 hexadecimal digits.
    """

    name: str
    parts: tuple[tuple[str, Part], ...]
    anchors: tuple[str, ...] = ()
    is_placed: bool = False
    unknown: tuple[str, ...] = ()
    key: str = field(init=False)

    def __post_init__(self) -> None:
        parts = (("schema", str(SCHEMA)), ("name", self.name), *self.parts)
        object.__setattr__(self, "key", hashlib.sha256(b"".join(_key_bytes(parts))).hexdigest())


def _key_bytes(parts: Iterable[tuple[str, Part]]) -> Iterator[bytes]:
    for label, value in parts:
        items = value if isinstance(value, tuple) else (value,)
        yield _prefixed(label.encode())
        yield len(items).to_bytes(8, "little")
        for item in items:
            yield _prefixed(item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item)


def _prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def speaks_of_its_place(data: bytes) -> bool:
    """Tell whether code made from a text may hold the path of its file, as `assert` and `__FILE__` put it there."""
    return _PLACE.search(data) is not None


def describe_parts(recipe: Recipe) -> dict[str, str | list[str]]:
    """Return the parts as a person compares them: short texts as they are, long ones and bytes by digest."""
    return dict(_described(recipe))


def _described(recipe: Recipe) -> Iterator[tuple[str, str | list[str]]]:
    labels = [label for label, _ in recipe.parts]
    for number, (label, value) in enumerate(recipe.parts):
        before = labels[:number].count(label)
        shown = [_describe(item) for item in value] if isinstance(value, tuple) else _describe(value)
        yield f"{label}.{before}" if before else label, shown


def _describe(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if isinstance(value, str) and len(data) <= _LONGEST_SHOWN:
        return value
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
