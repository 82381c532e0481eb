"""Measure the machine's processors and free memory, and lock background work so that one process does it at a time."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def core_count() -> int:
    """Return how many processors this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def free_memory() -> int:
    """Return the bytes of memory that the system and, in a container, its limit leave."""
    free = [1 << 62]
    with suppress(OSError, ValueError, IndexError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        free.append(int(found[1]) * 1024 if found else 1 << 62)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free)


@contextmanager
def only_one(wait_s: float = 0.0) -> Iterator[bool]:
    """Hold this user's lock on this machine, which ends with the process, and tell whether it could be had in time."""
    path = Path(tempfile.gettempdir()) / f"jitload-precompiling-{os.getuid()}"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _lock(handle, time.monotonic() + wait_s)
    finally:
        os.close(handle)


def _lock(handle: int, end: float) -> bool:
    import fcntl  # which Windows has not got

    while True:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
