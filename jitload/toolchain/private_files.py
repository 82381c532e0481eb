"""Makes private directories, writes files atomically, and reads small JSON files."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jitload.errors import JitLoadError


def make_private_dir(directory: Path) -> None:
    """Create a directory and its missing parents. Only this user can access them, whatever the umask."""
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        make_private_dir(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)


def sync_file(path: Path) -> Path:
    """Wait until a file or a directory is on the disk, if its file system can do this. Return the path."""
    with suppress(OSError):  # FUSE may refuse to sync directories, and an entry may have been removed
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return path


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Yield the path of a file to write. After the block, it takes the place of `target`, unless there was an error."""
    fresh = target.with_name(f".jitload-{os.urandom(8).hex()}")  # a process id is not unique on a shared disk
    try:
        yield fresh
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file completely or not at all. The file's directory is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _new_file(path) as fresh:
        fresh.write_bytes(data)


def copy_file(source: Path, target: Path) -> Path:
    """Copy a file to the path `target` atomically, and return `target`.

    The copy is on the disk when this returns. Unlike the files of the cache, nothing checks it later.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise JitLoadError(f"{target} cannot be written: it is not a regular file")
        with _new_file(target) as fresh:
            shutil.copyfile(source, fresh)
            sync_file(fresh)
    except OSError as error:
        raise JitLoadError(f"{target} cannot be written: {error.strerror}") from error
    return target


def save_json(path: Path, value: object) -> None:
    """Write a value to a small file, atomically. Errors are ignored: later processes can work without the file."""
    with suppress(OSError):
        make_private_dir(path.parent)
        replace_file(path, json.dumps(value).encode())


def load_json(path: Path) -> Any:
    """Return the value in a file that `save_json` wrote.

    Raises:
        OSError, ValueError, RecursionError: The file does not exist, is not a regular file, or does not contain JSON. A
            pipe, for example, is not read, because reading it might never end.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a regular file")
        return json.load(file)
