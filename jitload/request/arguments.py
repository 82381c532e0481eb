"""Check that arguments of the public functions have the types they should, with one error that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from jitload.errors import JitLoadError

Texts = str | Sequence[str]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def check_name(name: str) -> str:
    """Return a module's name if it can be shown in messages and used in file names."""
    if not isinstance(name, str):
        raise JitLoadError(f"name must be a str, got {type(name).__name__}")
    if not name or len(name) > 256 or not name.isprintable():
        raise JitLoadError(f"name={name[:80]!r} must have 1 to 256 printable characters")
    return name


def check_backend(backend: str | None) -> None:
    """Raise an error for any backend but CUDA."""
    if backend not in (None, "cuda"):
        raise JitLoadError(f"backend={backend!r}: jitload builds for CUDA only; leave it out, or pass 'cuda'")


def check_text(text: str, argument: str) -> str:
    """Return a text for a compiler if it is a str without NUL characters or lone surrogates."""
    if not isinstance(text, str):
        raise JitLoadError(f"{argument} must be a str, got {type(text).__name__}")
    if "\0" in text:
        raise JitLoadError(f"{argument} contains a NUL character, and compilers stop reading there")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise JitLoadError(f"{argument} is not valid Unicode: a lone surrogate at {error.start}") from error
    return text


def read_texts(value: Texts | None, argument: str) -> tuple[str, ...]:
    """Return the texts of `cuda_sources=` and the like: one str, or several."""
    if value is None:
        return ()
    if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable):
        raise JitLoadError(f"{argument} must be a str or a list of str, got {type(value).__name__}")
    texts = (value,) if isinstance(value, str) else tuple(value)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise JitLoadError(f"{argument} must be a str or a list of str, got {type(text).__name__} at {number}")
        check_text(text, f"{argument}[{number}]" if len(texts) > 1 else argument)
    return tuple(normalize_newlines(text.removeprefix("\ufeff")) for text in texts)


def normalize_newlines(text: str) -> str:
    """Replace CR line ends, which compilers do not know, in a text that has no others."""
    return text if "\n" in text else text.replace("\r", "\n")


def read_strings(options: Sequence[str] | None, argument: str) -> tuple[str, ...]:
    """Return a list of compiler options without the empty ones."""
    if options is None:
        return ()
    items = None if isinstance(options, str) or not isinstance(options, Iterable) else list(options)
    if items is None or not all(isinstance(option, str) for option in items):
        shown = options if items is None else items
        raise JitLoadError(f"{argument} must be a list of str, one option each, got {shown!r}")
    return tuple(check_text(option, argument) for option in items if option.strip())


def read_paths(value: Paths | None, argument: str) -> tuple[Path, ...]:
    """Return the paths of `sources=` and the like: one path, or several."""
    if value is None:
        return ()
    if isinstance(value, str | os.PathLike):
        return (check_path(value, argument),)
    paths = None if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable) else list(value)
    if paths is None or not all(isinstance(path, str | os.PathLike) for path in paths):
        shown = value if paths is None else paths
        raise JitLoadError(f"{argument} must be a path or a list of paths, got {shown!r}")
    return tuple(check_path(path, argument) for path in paths)


def check_path(value: object, argument: str) -> Path:
    """Return a path if it can be the name of a file."""
    if not isinstance(value, str | os.PathLike):
        raise JitLoadError(f"{argument} must be a path, a str or os.PathLike, got {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise JitLoadError(f"{argument} must be a path as str, got one as {type(text).__name__}")
    if not text:
        raise JitLoadError(f"{argument} is an empty path")
    if "\0" in text:
        raise JitLoadError(f"{argument}={text!r} contains a NUL character, which no path can")
    return value if isinstance(value, Path) else Path(text)


def absolute_path(value: object, argument: str) -> Path:
    """Return an absolute path, which stays valid when the process changes its working directory."""
    path = check_path(value, argument)
    try:
        return path if path.is_absolute() else path.absolute()
    except OSError as error:
        raise JitLoadError(
            f"{argument}={str(path)!r} is relative, and the working directory no longer exists; pass an absolute path"
        ) from error
