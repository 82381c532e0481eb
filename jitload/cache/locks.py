"""Locks of the operating system: one builder for a key, and a mark on directories whose owner lives.

They die with their process. A child of `fork` would share them, and hold them when its parent is gone: it lets go.
"""

from __future__ import annotations

import _thread
import errno
import functools
import json
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from jitload.cache.mounts import wakes_waiters
from jitload.settings import make_private, recall, warn_once

_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN)
_FIRST_REPORT_S, _NEXT_REPORTS_S = 2.0, 60.0
_SHORTEST_S, _LONGEST_S = 0.004, 0.1  # between two looks, where the file system might wake us late
_log = logging.getLogger(__name__)
Found = TypeVar("Found")

_held: set[int] = set()
# For NFS, where Linux makes a lock the process's and not the file's.
_threads: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def _let_go_after_fork() -> None:
    global _guard  # noqa: PLW0603  another thread may have held it
    _guard = threading.Lock()
    _threads.clear()
    for handle in _held:
        with suppress(OSError):
            os.close(handle)  # the parent's stays locked: it is the same lock, closed once
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)


# ---- one builder -----------------------------------------------------------------------------------------------


class LockHeldError(Exception):
    """Somebody holds a lock that is not to be waited for."""


@contextmanager
def hold_lock(
    path: Path, what: str, look: Callable[[], Found | None] = lambda: None, *, is_patient: bool = True
) -> Iterator[Found | None]:
    """Hold the lock of a file. It saves a second build, no more: where it cannot be had, the build goes on without.

    Args:
        path: The file; it keeps who holds it.
        what: What is built, for those who wait.
        look: Finds what was waited for. What it finds is given, without the lock: of many who wait, none waits for
            the others.
        is_patient: Wait for it. Who holds other locks must not: two could wait for each other.

    Raises:
        LockHeldError: Somebody else has it, and `is_patient` is False.
    """
    with _guard:
        ours = _threads.setdefault(str(path), threading.Lock())
    report = _Report(path, what)
    if not is_patient and not ours.acquire(blocking=False):
        raise LockHeldError(f"somebody else builds {what}")
    while is_patient and not ours.acquire(timeout=report.seconds_left()):
        report.tell()
    handle = None
    try:
        handle, found = _acquire(path, report, look, is_patient=is_patient)
        report.finish()
        yield found
    finally:
        if handle is not None:
            unlock(handle)
        ours.release()


def _acquire(
    path: Path, report: _Report, look: Callable[[], Found | None], *, is_patient: bool
) -> tuple[int | None, Found | None]:
    """Return the handle that holds the lock, None on a file system that has no locks; or what was waited for."""
    try:
        make_private(path.parent)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                found = _wait(handle, report, look, is_patient=is_patient)
                if found is None and _is_same_file(handle, path):
                    _held.add(handle)
                    _write_holder(handle)
                    return handle, None
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # removed while we waited, and perhaps made anew
            if found is not None:
                return None, found
    except (OSError, ImportError) as error:
        warn_once(f"{path.parent} has no locks ({error}): processes that build the same thing each build their own")
        return None, None


def _wait(handle: int, report: _Report, look: Callable[[], Found | None], *, is_patient: bool) -> Found | None:
    """Wait for the lock, or for what it is waited for. A process that ends, however it does, lets go of it at once.

    Who waits sleeps until the builder lets go, and all wake at once, as a shared lock lets them: the cores are the
    builder's, and of many who wait none waits for the others. Where a file system might wake us late, we ask.
    """
    import fcntl

    sleeps = wakes_waiters(report.path.parent)
    pause = _SHORTEST_S
    while not _take(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
        if not is_patient:
            raise LockHeldError(f"somebody else builds {report.what}")
        if sleeps:
            with report.telling():
                fcntl.flock(handle, fcntl.LOCK_SH)
            fcntl.flock(handle, fcntl.LOCK_UN)
        else:
            if report.seconds_left() <= 0:
                report.tell()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
        if found := look():
            return found
    return None


def _take(handle: int, how: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, how)
    except OSError as error:
        if error.errno not in _BUSY:
            raise
        return False
    return True


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:  # the whole cache was removed: what we hold is as good as any
        return not path.parent.is_dir()


def _write_holder(handle: int) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    with suppress(OSError):  # a full disk: those who wait hear less
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)


class _Report:
    """Says whom a process waits for: after two seconds, then each minute, and when it is over."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._started = time.monotonic()
        self._next = self._started + _FIRST_REPORT_S
        self._has_told = False

    def seconds_left(self) -> float:
        return max(self._next - time.monotonic(), 0)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Report while this thread sleeps in the operating system, from another one.

        `threading.Thread` would wait until that runs, which takes long where many wait.
        """
        is_over = _thread.allocate_lock()
        is_over.acquire()

        def tell_until_over() -> None:
            while not is_over.acquire(timeout=self.seconds_left()):
                self.tell()

        with suppress(RuntimeError):  # no more threads: the wait goes unreported
            _thread.start_new_thread(tell_until_over, ())
        try:
            yield
        finally:
            is_over.release()

    def tell(self) -> None:
        waited = time.monotonic() - self._started
        _log.warning("waiting for %s, which %s builds: %.0f s so far", self.what, self._holder(), waited)
        self._next = time.monotonic() + _NEXT_REPORTS_S
        self._has_told = True

    def finish(self) -> None:
        if self._has_told:
            _log.warning("waited %.1f s for %s", time.monotonic() - self._started, self.what)

    def _holder(self) -> str:
        with suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads(recall(self.path))
            return f"process {holder['pid']} on {holder['host']}"
        return "another process"


# ---- whose owner lives -----------------------------------------------------------------------------------------


def mark_directory(directory: Path) -> int:
    """Lock a directory as long as this process lives or until `unlock`, and return the handle.

    Raises:
        BlockingIOError: Somebody who lives has it.
        FileNotFoundError: Somebody has removed it.
        OSError: This file system has no locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from error
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), os.stat(directory)):  # made anew; or stat finds it gone
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
    except OSError:
        os.close(handle)
        raise
    _held.add(handle)
    return handle


def unlock(handle: int) -> None:
    """Let go of a lock: for children of `fork`, too, that have not come to it yet."""
    if handle not in _held:
        return  # this is a child of `fork`, which has let go, and the number may be another file's by now
    _held.discard(handle)
    with suppress(OSError, ImportError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)
    with suppress(OSError):
        os.close(handle)


@functools.lru_cache(maxsize=1)
def host_tag() -> str:
    """Return what names the running kernel: locks are known to tell the living from the dead below it alone."""
    import hashlib

    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        text = socket.gethostname()
    return hashlib.sha256(text.encode()).hexdigest()[:8]
