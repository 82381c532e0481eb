"""Reads the argument `tuned=`, the file of measurements by which functions choose variants."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
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

    @property
    def file_name(self) -> str:
        """The last part of the path or resource, or "" for a `Tuning`."""
        return re.split(r"[/:]", self.label)[-1] if self.label != _FROM_TUNING else ""


_FROM_TUNING = "a Tuning"


def is_resource(value: str) -> bool:
    """Return whether a text names a resource of a package, `my_package:scale.json`, and not a file."""
    package, _, name = value.partition(":")
    return bool(name) and package.replace(".", "").isidentifier() and not os.path.exists(value)


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
        return Tuned(_FROM_TUNING, value.to_json())
    try:
        path = os.fspath(value)
        file: Any = Path(path)
        if is_resource(path):
            from importlib.resources import files

            package, _, name = path.partition(":")
            file = files(package) / name
        return Tuned(path, file.read_text(encoding="utf-8"))
    except (OSError, ImportError, TypeError, UnicodeDecodeError) as error:  # TypeError: no path, or a module
        reason = getattr(error, "strerror", None) or error
        raise JitLoadError(f"the measurements in {value!r} cannot be read: {reason}") from error
