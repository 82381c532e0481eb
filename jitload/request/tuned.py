"""Reads the argument `tuned=`, the file of measurements by which functions choose variants."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from jitload.errors import JitLoadError


class Tuned(NamedTuple):
    """The text of a file of measurements, and a label for messages."""

    label: str
    text: str

    @property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_tuned(value: Any) -> Tuned | None:
    """Return the argument `tuned=`: a path, a resource of a package, a `Tuning`, or a `Tuned` as a mapping.

    Raises:
        JitLoadError: The file cannot be read.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):  # from a record
        return Tuned(**value)
    if hasattr(value, "to_json"):
        return Tuned("a Tuning", value.to_json())
    try:
        if hasattr(value, "read_text") and not isinstance(value, os.PathLike):
            return Tuned(str(value), value.read_text(encoding="utf-8"))  # a resource in a zip file
        if not isinstance(value, str | os.PathLike):
            raise JitLoadError(f"tuned must be a path, a resource or a Tuning, got {type(value).__name__}")
        package, _, name = os.fspath(value).partition(":")
        if name and package.replace(".", "").isidentifier() and not os.path.exists(value):
            from importlib.resources import files

            return Tuned(str(value), (files(package) / name).read_text(encoding="utf-8"))
        with open(value, encoding="utf-8") as file:
            return Tuned(os.fspath(value), file.read())
    except (OSError, ImportError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise JitLoadError(f"tuned={str(value)!r} cannot be read: {reason}") from error
