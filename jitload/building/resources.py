"""Manages the resources that a build uses: the garbage collector, threads, processors and memory."""

from __future__ import annotations

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
_blocks_left = 4  # the blocks that import much: that of a Triton kernel, and those of the first modules
_freeze_lock = threading.Lock()  # held during a block in which old objects are frozen


@contextmanager
def freeze_old_objects() -> Iterator[None]:
    """Let garbage collections during a block skip the objects that exist when it begins.

    After `import torch`, the next few thousand new objects trigger a full collection. With all of torch's objects, this
    collection takes 80 ms. The imports of jitload create that many objects.

    Only the first blocks of a process do this. Each one resets the counts by which the collector decides when it looks
    at old objects, so a program that loads modules in a loop would never free its cycles.
    """
    global _blocks_left  # noqa: PLW0603  of the process, like the collector itself
    if not _blocks_left or not _freeze_lock.acquire(blocking=False):  # another block does it already
        yield
        return
    _blocks_left -= 1
    if gc.get_freeze_count():  # by the program itself; the count takes 10 ms if torch's objects are frozen
        _freeze_lock.release()
        yield
        return
    try:
        gc.freeze()
        yield
    finally:
        _unfreeze_objects()


def _unfreeze_objects() -> None:
    if _freeze_lock.locked():
        gc.unfreeze()
        _freeze_lock.release()


os.register_at_fork(after_in_child=_unfreeze_objects)  # the thread of the block may exist only in the parent


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
