"""A library in the cache in, the same library in a directory of the user's out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitload.cache import Entry
from jitload.errors import JitLoadError
from jitload.request import Request


def place_library(entry: Entry, request: Request, directory: Path) -> Path:
    """Put the library into a directory of the user's, under a name of its own, with `<name>.so` linked to it.

    The dynamic loader would take new contents under a name that it has mapped for the old ones.
    """
    directory = directory.absolute()
    leaf = entry.dir.parent.name.rpartition("-")[2][:16] + "-" + entry.dir.name[:8]
    path = directory / f"{request.slug}-{leaf}.so"
    if not path.is_file() or path.read_bytes() != entry.product.read_bytes():
        copy_library(entry.product, path)
    link = directory / f".{request.slug}.{os.getpid()}.link"
    with _names_place(directory / f"{request.slug}.so"):
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        link.replace(directory / f"{request.slug}.so")
    return path


def copy_library(source: Path, target: Path) -> Path:
    """Copy a file into place whole."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    with _names_place(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, fresh)
        fresh.replace(target)
    return target


@contextmanager
def _names_place(target: Path) -> Iterator[None]:
    """Say where the library was to go when it cannot go there."""
    try:
        yield
    except OSError as error:
        raise JitLoadError(f"the library cannot be put at {target}: {error.strerror}") from error
