"""Keeps what a worker of `prebuild` builds on a core of its own, where there is a worker for each core."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LONGEST_S = 1.0  # what takes longer may be waited for by all others, and gets all cores
_own: list[int] = []


def usable_cores() -> tuple[int, ...]:
    """Return the cores that this process may use; none where the operating system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def have_core(core: int) -> None:
    """Let the builds of this process keep to a core, from now on."""
    _own[:] = [core]


@contextmanager
def on_own_core() -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, to the process's own core, if it has one.

    A build is a chain of short processes, one of which works at a time. The kernel starts each on whatever core is
    idle, and with as many builds as cores two meet on one core while another has nothing to do: a tenth of the time.
    """
    usable = usable_cores()
    if not _own or not _is_set(0, _own):
        yield
        return
    timer = threading.Timer(_LONGEST_S, _release, [usable])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _is_set(0, usable)


def _is_set(thread: int, cores: list[int] | tuple[int, ...]) -> bool:
    with suppress(OSError):  # the cores were taken from this process meanwhile, or the thread has ended
        os.sched_setaffinity(thread, cores)
        return True
    return False


def _release(usable: tuple[int, ...]) -> None:
    with suppress(OSError):  # no /proc
        for thread in os.listdir("/proc/self/task"):
            _is_set(int(thread), usable)
