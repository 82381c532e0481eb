"""Which entries were used and how often, noted when a process ends: a hit itself writes nothing.

`<cache>/.uses/<entry>-<leaf>` grows by one byte for each process that took the entry from the disk, at that process's
end, so that its size counts and its time tells the last use. `<cache>/.grown` grows by one byte for each block that is
published, so that no process has to walk the cache to know that it is too large.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

from jitload.settings import Settings, make_private

BLOCK = 4096
USES, GROWN = ".uses", ".grown"
_used: dict[Path, None] = {}
_start = threading.Lock()
_is_registered = False


def note_use(leaf_dir: Path, settings: Settings) -> None:
    """Remember that this process took an entry from the disk."""
    global _is_registered  # noqa: PLW0603  once for a process
    if settings.mode == "load-only":
        return  # such a process leaves the entries as they are, and their uses
    _used[leaf_dir] = None
    if not _is_registered:
        with _start:
            if not _is_registered:
                _is_registered = True
                atexit.register(write_notes)


def write_notes() -> None:
    """Write down what was used; at a process's end nothing is worth a message."""
    while _used:
        leaf_dir, _ = _used.popitem()
        try:
            if leaf_dir.is_dir():  # a cache that was removed is not to come back for a note
                append_bytes(uses_path(leaf_dir), 1)
        except BaseException:  # noqa: BLE001, S112  a cache that cannot be written, an interpreter half gone
            continue


def _forget_uses() -> None:
    _used.clear()  # they are the parent's to note


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_uses)


def uses_path(leaf_dir: Path) -> Path:
    """Return the file that counts an entry's uses."""
    return leaf_dir.parent.parent / USES / f"{leaf_dir.parent.name}-{leaf_dir.name}"


def append_bytes(path: Path, count: int) -> None:
    """Make a file longer. Appends of several processes do not get lost."""
    make_private(path.parent)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        os.write(handle, b"." * count)
    finally:
        os.close(handle)
