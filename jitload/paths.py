"""A path as a user gave it in, a `Path` that files can be opened by out, or one error that names the argument."""

from __future__ import annotations

import os
from pathlib import Path

from jitload.errors import JitLoadError


def check_path(value: object, what: str) -> Path:
    """Return a path as it was given, refusing what no file can be called.

    Args:
        value: What was given for it.
        what: The argument, for messages.
    """
    if not isinstance(value, str | os.PathLike):
        raise JitLoadError(f"{what} must be a path, a str or os.PathLike, got {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise JitLoadError(f"{what} must be a path as str, got one as {type(text).__name__}")
    if not text:
        raise JitLoadError(f"{what} is an empty path")
    if "\0" in text:
        raise JitLoadError(f"{what}={text!r} has a NUL character, which no path has")
    return value if isinstance(value, Path) else Path(text)


def absolute_path(value: object, what: str) -> Path:
    """Return a path from the root on, which stays right when the process changes its directory."""
    path = check_path(value, what)
    try:
        return path if path.is_absolute() else path.absolute()
    except OSError as error:
        raise JitLoadError(
            f"{what}={str(path)!r} is relative, and the working directory is gone; give it from the root on"
        ) from error
