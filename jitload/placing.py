"""A library in the cache in, the same library in a directory of the user's out."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitload.cache.entry import Entry
from jitload.errors import JitLoadError
from jitload.request.request import Request


def place_library(entry: Entry, request: Request, directory: Path) -> Path:
    """Put the library into a directory of the user's, under a name of its own, with `<name>.so` linked to it.

    The dynamic loader would take new contents under a name that it has mapped for the old ones.
    """
    directory = directory.absolute()
    leaf = f"{entry.dir.parent.name.rpartition('-')[2][:16]}-{entry.dir.name.replace('-', '')[:12]}"
    path = directory / f"{request.slug}-{leaf}.so"
    if not path.is_file() or path.read_bytes() != entry.product.read_bytes():
        copy_library(entry.product, path)
    with _placing(directory / f"{request.slug}.so") as link:
        link.symlink_to(path.name)
    return path


def copy_library(source: Path, target: Path) -> Path:
    """Copy a file into place whole."""
    with _placing(target) as fresh:
        shutil.copyfile(source, fresh)
    return target


@contextmanager
def _placing(target: Path) -> Iterator[Path]:
    """Give a name beside the target, nobody else's, and move what is made there into place."""
    fresh = target.with_name(f".jitload-{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise JitLoadError(f"the library cannot be put at {target}: that is no regular file")
        try:
            yield fresh
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise JitLoadError(f"the library cannot be put at {target}: {error.strerror}") from error
