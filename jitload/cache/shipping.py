"""Entries into a directory that is to be shipped, in a package or an image: a cache that every user may read."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jitload.cache.archive import Unpacked, pack_entries, unpack
from jitload.cache.inventory import walk
from jitload.cache.notes import GROWN
from jitload.errors import CacheError


def copy_entries(entry_dirs: Sequence[Path], target: Path) -> Unpacked:
    """Add entries to a directory that is to be shipped as a cache.

    Raises:
        CacheError: An entry is damaged, or the directory cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="jitload-") as place:
            target.parent.mkdir(parents=True, exist_ok=True)  # a cache of one's own would make these private
            packed = Path(place, "entries.tar")
            pack_entries(entry_dirs, packed)
            done = unpack(target, packed, max_size=sys.maxsize)
        _open_to_readers(target)
    except OSError as error:
        raise CacheError(f"the directory {target} cannot be filled: {error}") from error
    return done


def _open_to_readers(cache_dir: Path) -> None:
    """Let every user read the entries of a cache, and take away what only a cache in use needs."""
    cache_dir.chmod(0o755)
    for item in walk(cache_dir):
        for directory in (item.dir.parent, item.dir):
            directory.chmod(0o755)
        for name in os.listdir(item.dir):
            (item.dir / name).chmod(0o644)
    with suppress(OSError):
        (cache_dir / ".work").rmdir()
        (cache_dir / GROWN).unlink()
