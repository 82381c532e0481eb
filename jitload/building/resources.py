"""Manages the resources that a build uses: the garbage collector, threads, processors and memory."""

from __future__ import annotations

import _thread
import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Result = TypeVar("Result")
_UNLIMITED = 1 << 62


class _Pauses:
    """The number of pauses in effect in this process, and whether jitload has disabled the garbage collector."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.is_disabled = False


_pauses = _Pauses()


@contextmanager
def pause_garbage_collection(*, at_most_s: float | None = None) -> Iterator[None]:
    """Pause the garbage collector during a block, but not longer than `at_most_s` seconds if this is given.

    The limit is for blocks during which other threads may need the collector.

    After `import torch`, the next few thousand new objects trigger a full collection. With all of torch's objects, this
    collection takes 80 ms. The imports of jitload create that many objects.
    """
    with _pauses.lock:
        _pauses.count += 1
        if gc.isenabled():
            gc.disable()
            _pauses.is_disabled = True
    running = _thread.allocate_lock()
    running.acquire()
    if at_most_s is not None:
        # Unlike `threading.Timer.start()`, this does not wait until the thread runs.
        _thread.start_new_thread(_resume_after, (running, at_most_s))
    try:
        yield
    finally:
        running.release()
        _end_pause()


def _resume_after(running: _thread.LockType, at_most_s: float) -> None:
    """Enable the collector after some seconds, unless the lock is released before."""
    if not running.acquire(timeout=at_most_s):
        _resume()


def _end_pause() -> None:
    with _pauses.lock:
        _pauses.count = max(_pauses.count - 1, 0)  # the count is already 0 in a child that was forked during the pause
        is_last = _pauses.count == 0
    if is_last:
        collect_young_objects()
        _resume()


def collect_young_objects() -> None:
    """Make the collection that is due after a pause, but only of the youngest generation.

    An automatic collection might include all generations, and with them all of torch's objects.
    """
    if _pauses.is_disabled and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
        gc.collect(0)


def _resume() -> None:
    with _pauses.lock:
        if _pauses.is_disabled:
            _pauses.is_disabled = False
            gc.enable()


def _resume_after_fork() -> None:
    """Enable the collector in a forked child, because the threads that paused it exist only in the parent."""
    _pauses.lock = threading.Lock()  # another thread may have held the old lock during the fork
    _pauses.count = 0
    _resume()


os.register_at_fork(after_in_child=_resume_after_fork)


# ---- threads -----------------------------------------------------------------------------------------------------


def run_in_background(function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Call a function on a daemon thread, and return the future of its result."""
    from concurrent.futures import Future  # slow to import, and a cache hit needs no future

    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  `Future.result` raises the error again
            future.set_exception(error)

    threading.Thread(target=run, name="jitload-build", daemon=True).start()
    return future


# ---- processors and memory ---------------------------------------------------------------------------------------


def core_count() -> int:
    """Return how many processors this process may use, according to its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def free_memory() -> int:
    """Return the memory available in the system or in the container, whichever is less, in bytes."""
    available = [_UNLIMITED]
    with suppress(OSError, ValueError):
        available += [
            int(kib) * 1024 for kib in re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        ]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        available.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(available)
