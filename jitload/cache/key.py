"""The key of a cache entry: a digest of everything that is known before a build and determines its result."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

SCHEMA = 6
# The parts that depend on the machine and its tools. The other parts say what is asked for.
TOOL_PARTS = ("archs", "nvrtc", "compiler", "cpu", "libc", "gpu_check")
_ASKED_DIGITS = 24
Part = str | bytes | tuple[str, ...]
_LONGEST_SHOWN = 256
# Names whose use in a source file may put the path of that file into the compiled code. `static_assert` does not.
_EMBEDS_PATH = re.compile(rb"(?<!static_)assert|ASSERT|CHECK|THROW|__FILE__|__builtin_FILE|source_location")


class CacheKey(NamedTuple):
    """The key of an entry, and the parts (labelled values) from which the key is computed.

    Attributes:
        name: The module's name, made suitable for file names. The key's directory is `<name>-<digest>`.
        digest: 64 hexadecimal digits: 40 of the SHA-256 of all parts, each prefixed with its length, and 24 of the
            SHA-256 of the parts without `TOOL_PARTS`. So keys that ask for the same thing are found by their names.
        parts: The (label, value) pairs from which the digest is computed.
        anchors: The user's include directories and object files. The key does not contain their paths, which may differ
            between users. The path of a file at or below an anchor is recorded relative to the anchor.
        embeds_paths: Whether the compiled code contains the paths of the anchors, for example in debug information.
        unknown_parts: Labels of the parts in which an entry may differ from this key. The key of a request has unknown
            parts if this machine lacks a tool that determines them. Such a machine cannot build the library.
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
        """Return the key for these parts. The values ("ab", "c") and ("a", "bc") give different digests."""
        all_parts = (("schema", str(SCHEMA)), ("name", name), *parts)
        # One hash goes over what is asked for, and then over the parts of the tools, because sources may be long.
        whole = hashlib.sha256(_bytes_of_parts(part for part in all_parts if part[0] not in TOOL_PARTS))
        asked = whole.hexdigest()
        whole.update(_bytes_of_parts(part for part in all_parts if part[0] in TOOL_PARTS))
        digest = whole.hexdigest()[:-_ASKED_DIGITS] + asked[-_ASKED_DIGITS:]
        return cls(name=name, digest=digest, parts=parts, anchors=anchors, embeds_paths=embeds_paths)

    @property
    def asked(self) -> str:
        """The end of the digest, which says what is asked for, whatever tools make it for whatever architectures."""
        return self.digest[-_ASKED_DIGITS:]


def _bytes_of_parts(parts: Iterable[tuple[str, Part]]) -> bytes:
    """Return the labels and values of parts, each with its length in front."""
    pieces: list[bytes] = []
    for label, value in parts:
        items = value if isinstance(value, tuple) else (value,)
        data = (item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in (label, *items))
        prefixed = [len(item).to_bytes(8, "little") + item for item in data]
        pieces += (prefixed[0], len(items).to_bytes(8, "little"), *prefixed[1:])
    return b"".join(pieces)


def may_embed_path(source: bytes) -> bool:
    """Return whether code compiled from `source` may contain the source file's path, for example through `__FILE__`."""
    return _EMBEDS_PATH.search(source) is not None


def describe_parts(key: CacheKey) -> dict[str, str | list[str]]:
    """Return the parts of a key as readable values, by label. Long texts and bytes are replaced by their digests."""
    labels, described = Counter[str](), dict[str, str | list[str]]()
    for label, value in key.parts:
        name = f"{label}.{labels[label]}" if labels[label] else label
        described[name] = [_describe(item) for item in value] if isinstance(value, tuple) else _describe(value)
        labels[label] += 1
    return described


def part_text(value: object) -> str:
    """Return a readable value of a part as one line."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " | ".join(text.splitlines())


def _describe(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if isinstance(value, str) and len(data) <= _LONGEST_SHOWN:
        return value
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
