"""What kind of file system a directory is on."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_LOCAL = frozenset(["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"])


def is_local(directory: Path) -> bool:
    """Tell whether a directory is on a file system of this machine alone; unknown ones are not."""
    place = os.path.realpath(directory) + "/"
    mounts: list[tuple[int, str]] = []
    with suppress(OSError, IndexError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            point = line.split(" ", 5)[4]
            if "\\" in point:
                point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point)
            if place.startswith(point.rstrip("/") + "/"):
                mounts.append((len(point), line.partition(" - ")[2].split(" ", 1)[0]))
    longest = max((length for length, _ in mounts), default=0)
    kinds = [kind for length, kind in mounts if length == longest]
    return bool(kinds) and kinds[-1] in _LOCAL  # of several over each other the last is seen


def wakes_waiters(directory: Path) -> bool:
    """Tell whether who waits for a lock in a directory wakes when it is free, as on any file system of a disk.

    Over a network it may be half a minute later (NFS 4.0).
    """
    with suppress(OSError):
        return os.major(os.stat(directory).st_dev) != 0 or is_local(directory)
    return False
