"""Writes build results to the user's paths."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitload.cache.entry import Entry
from jitload.errors import JitLoadError
from jitload.request.request import Request
from jitload.toolchain.private_files import sync_file


def install_library(entry: Entry, request: Request, directory: Path) -> tuple[Path, Path]:
    """Copy the library into a directory under two names: `<name>.so`, and a name that only this build has.

    If the file system has hard links, both names refer to one file. A process that loads both names then loads one
    library.

    Returns:
        The path with the build's own name, for loading the library, and the path of `<name>.so`. A new build must have
        a new path, because the dynamic loader does not read the same path twice.
    """
    directory = directory.absolute()
    build_id = f"{entry.dir.parent.name.rpartition('-')[2][:16]}-{entry.dir.name.replace('-', '')[:12]}"
    unique_path, path = directory / f"{request.slug}-{build_id}.so", directory / f"{request.slug}.so"
    if not unique_path.is_file() or unique_path.read_bytes() != entry.product.read_bytes():
        copy_file(entry.product, unique_path)
    with _replacing(path) as fresh:
        try:
            fresh.hardlink_to(unique_path)
        except OSError:  # this file system has no hard links
            shutil.copyfile(entry.product, fresh)
    return unique_path, path


def copy_file(source: Path, target: Path) -> Path:
    """Copy a file to the path `target` atomically, and return `target`."""
    with _replacing(target) as fresh:
        shutil.copyfile(source, fresh)
    return target


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield an unused path beside the target. At the end of the block, the file at that path replaces the target.

    The file is on the disk by then, because nothing checks it later, as a hit checks the files of the cache.
    """
    fresh = target.with_name(f".jitload-{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise JitLoadError(f"{target} cannot be written: it is not a regular file")
        try:
            yield fresh
            sync_file(fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise JitLoadError(f"{target} cannot be written: {error.strerror}") from error
