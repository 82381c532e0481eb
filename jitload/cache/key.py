"""The key of a cache entry: a digest of everything known before a build that decides what the build makes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SCHEMA = 2
Part = str | bytes | tuple[str, ...]
_LONGEST_SHOWN = 256
# What puts the path of a source file into the code that is made from it. `static_assert` does not.
_EMBEDS_PATH = re.compile(rb"(?<!static_)assert|ASSERT|CHECK|THROW|__FILE__|__builtin_FILE|source_location")


class CacheKey(NamedTuple):
    """The key of an entry, with the parts that it was computed from.

    Attributes:
        name: The module's name, which begins the name of the entry's directory.
        digest: SHA-256 over the parts, each prefixed with its length, as 64 hexadecimal digits.
        parts: The label and value of each part.
        anchors: The user's directories and files, which may be elsewhere for another user. Their paths are not in the
            key, and what is read below them is recorded relative to them.
        embeds_paths: Whether the code contains paths of the anchors, as debug information does.
        unknown_parts: Labels of parts that this machine cannot tell because it lacks a tool. Nothing can be built for
            such a key, but an entry that agrees in all other parts may be used.
    """

    name: str
    digest: str
    parts: tuple[tuple[str, Part], ...]
    anchors: tuple[str, ...] = ()
    embeds_paths: bool = False
    unknown_parts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        parts: tuple[tuple[str, Part], ...],
        *,
        anchors: tuple[str, ...] = (),
        embeds_paths: bool = False,
    ) -> CacheKey:
        """Return the key for these parts; a part that is a tuple keeps the boundaries between its items."""
        all_parts = (("schema", str(SCHEMA)), ("name", name), *parts)
        digest = hashlib.sha256(b"".join(_bytes_of_parts(all_parts))).hexdigest()
        return cls(name=name, digest=digest, parts=parts, anchors=anchors, embeds_paths=embeds_paths)


def _bytes_of_parts(parts: Iterable[tuple[str, Part]]) -> Iterator[bytes]:
    for label, value in parts:
        items = value if isinstance(value, tuple) else (value,)
        yield _length_prefixed(label.encode())
        yield len(items).to_bytes(8, "little")
        for item in items:
            yield _length_prefixed(item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item)


def _length_prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def may_embed_path(source: bytes) -> bool:
    """Tell whether code made from a source may contain the path of its file, as with `assert` and `__FILE__`."""
    return _EMBEDS_PATH.search(source) is not None


def describe_parts(key: CacheKey) -> dict[str, str | list[str]]:
    """Return the parts for a person to compare: short texts as they are, long ones and bytes by their digests."""
    return dict(_described_parts(key))


def _described_parts(key: CacheKey) -> Iterator[tuple[str, str | list[str]]]:
    labels = [label for label, _ in key.parts]
    for index, (label, value) in enumerate(key.parts):
        repeats = labels[:index].count(label)
        shown = [_describe(item) for item in value] if isinstance(value, tuple) else _describe(value)
        yield f"{label}.{repeats}" if repeats else label, shown


def _describe(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if isinstance(value, str) and len(data) <= _LONGEST_SHOWN:
        return value
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
