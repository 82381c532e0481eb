"""Finds how many processors and how much memory this process may use, also in a container."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_UNLIMITED = 1 << 62


def core_count() -> int:
    """Return how many processors this process may use, according to its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def free_memory() -> int:
    """Return how many bytes of memory are available, in the system and within its container's limit."""
    available = [_UNLIMITED]
    with suppress(OSError, ValueError):
        available += [
            int(kib) * 1024 for kib in re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        ]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        available.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(available)
