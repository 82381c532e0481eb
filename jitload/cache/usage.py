"""Counts how often entries are used. A hit writes nothing, so a process records its uses when it ends.

`<cache>/.uses/<entry>-<leaf>` grows by one byte for each process that took the entry from the disk: its size is the
number of uses, and its time is the last use. `<cache>/.grown` grows by one byte for each block that is published, so
that no process has to walk the cache to learn that it has become too large.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from pathlib import Path

from jitload.files import make_private_dir
from jitload.settings import Settings

BLOCK_BYTES = 4096
USES_DIR, GROWTH_FILE = ".uses", ".grown"
_used_leaves: dict[Path, None] = {}
_registration = threading.Lock()
_is_registered = False


def record_use(leaf_dir: Path, settings: Settings) -> None:
    """Remember until the end of this process that it took an entry from the disk."""
    global _is_registered  # noqa: PLW0603  once in a process
    if settings.mode == "load-only":
        return  # such a process leaves the cache as it is
    _used_leaves[leaf_dir] = None
    if not _is_registered:
        with _registration:
            if not _is_registered:
                _is_registered = True
                atexit.register(write_uses)


def write_uses() -> None:
    """Record which entries were used. Failures are ignored, because the process is ending."""
    while _used_leaves:
        leaf_dir, _ = _used_leaves.popitem()
        try:
            if leaf_dir.is_dir():  # a cache that was removed must not come back
                append_bytes(uses_path(leaf_dir), 1)
        except BaseException:  # noqa: BLE001, S112  a read-only cache, or an interpreter that is shutting down
            continue


def _forget_uses() -> None:
    _used_leaves.clear()  # the parent records them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_uses)


def uses_path(leaf_dir: Path) -> Path:
    """Return the file that counts the uses of an entry."""
    return leaf_dir.parent.parent / USES_DIR / f"{leaf_dir.parent.name}-{leaf_dir.name}"


def has_grown(cache_dir: Path, limit: int) -> bool:
    """Return whether more bytes than the limit were published since the cache was last pruned."""
    with suppress(OSError):
        return os.stat(cache_dir / GROWTH_FILE).st_size * BLOCK_BYTES > limit
    return False


def append_bytes(path: Path, count: int) -> None:
    """Make a file longer; when several processes do so at once, nothing is lost."""
    make_private_dir(path.parent)
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
    )
    try:
        os.write(descriptor, b"." * count)
    finally:
        os.close(descriptor)
