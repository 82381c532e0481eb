"""Writes build results to the user's paths."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from jitload.errors import JitLoadError
from jitload.toolchain.private_files import sync_file


def copy_file(source: Path, target: Path) -> Path:
    """Copy a file to the path `target` atomically, and return `target`.

    The file is on the disk by then, because nothing checks it later, as a hit checks the files of the cache.
    """
    fresh = target.with_name(f".jitload-{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise JitLoadError(f"{target} cannot be written: it is not a regular file")
        try:
            shutil.copyfile(source, fresh)
            sync_file(fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise JitLoadError(f"{target} cannot be written: {error.strerror}") from error
    return target
