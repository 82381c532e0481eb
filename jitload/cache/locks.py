"""Best-effort locks between processes. They allow one builder per key, and show whether a directory's owner is alive.

The locks are `filelock`'s, but the files and directories are opened here. So the cache decides how its directories are
created, and a directory can be locked without the separate lock file that `FileLock` needs. The operating system
releases a lock when its process ends, even if the process is killed. A child of `fork` closes its copies of the
descriptors, because an open copy would keep the parent's lock until the child ends.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from jitload.errors import warn_once
from jitload.toolchain.private_files import load_json, make_private_dir

LOCKS_DIR = ".locks"  # the directory of a cache that contains the lock files
_FIRST_REPORT_S, _NEXT_REPORTS_S = 2.0, 60.0
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.004, 0.05
_LOCAL_FILE_SYSTEMS = frozenset(
    ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"]
)
_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_locked: set[int] = set()  # the descriptors of the locks that this process holds


def _drop_locks_in_child() -> None:
    for descriptor in _locked:
        with suppress(OSError):
            os.close(descriptor)  # `unlock` would release the parent's lock, too
    _locked.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)


# ---- one builder -----------------------------------------------------------------------------------------------


@contextmanager
def hold_lock(
    path: Path, description: str, find_result: Callable[[], Result | None] = lambda: None, *, verb: str = "builds"
) -> Iterator[Result | None]:
    """Hold a lock during the block and yield None, or yield the result of the process that held the lock before.

    The lock only prevents duplicate builds. Where locks do not work, the block runs without a lock.

    Args:
        path: The lock file. Its content names the process that holds the lock.
        description: What the holder works on, for the log messages of the processes that wait.
        find_result: A function that returns the result of the holder's build, or None if there is no result yet. A
            process that gets a result does not take the lock, so waiting processes do not wait for each other.
        verb: What the holder does, for these messages.
    """
    descriptor, result = None, None
    try:
        make_private_dir(path.parent)
        descriptor = _lock_file(path)
        if descriptor is None:
            descriptor, result = _wait(path, description, find_result, verb)
    except OSError as error:
        if error.errno is None:  # only a signal handler raises such an error, for example a TimeoutError
            raise
        warn_once(
            f"files in {path.parent} cannot be locked ({error}): processes that need the same library may each build it"
        )
    try:
        yield result
    finally:
        unlock(descriptor)


def _wait(
    path: Path, description: str, find_result: Callable[[], Result | None], verb: str
) -> tuple[int | None, Result | None]:
    """Return (descriptor, None) when this process locks the file, or (None, result) when `find_result` has a result.

    Log which process holds the lock after two seconds, then every minute, and log the end of a wait that was logged.
    """
    started, pause_s, report_s = time.monotonic(), _SHORTEST_POLL_S, _FIRST_REPORT_S
    descriptor, result = None, None
    while descriptor is None and result is None:
        if (waited_s := time.monotonic() - started) > report_s:
            report_s = waited_s + _NEXT_REPORTS_S
            _log.warning("waiting for %s, which %s %s: %.0f s so far", description, _holder(path), verb, waited_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        result = find_result()
        descriptor = _lock_file(path) if result is None else None
    if report_s > _FIRST_REPORT_S:
        _log.warning("waited %.1f s for %s", time.monotonic() - started, description)
    return descriptor, result


def _lock_file(path: Path) -> int | None:
    if (descriptor := _try_lock(path, os.O_RDWR | os.O_CREAT)) is not None:
        with suppress(OSError):  # if the disk is full, waiting processes cannot report the holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    return descriptor


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        holder = load_json(path)
        return f"process {holder['pid']} on {holder['host']}"
    return "another process"


# ---- locks on directories --------------------------------------------------------------------------------------


def lock_directory(directory: Path) -> int | None:
    """Lock a directory until `unlock` is called or the process ends.

    Returns:
        The descriptor of the lock. None if a living process holds the lock, or if the directory was removed.

    Raises:
        OSError: The file system has no locks.
    """
    with suppress(FileNotFoundError):
        return _try_lock(directory, os.O_RDONLY | os.O_DIRECTORY)
    return None


def _try_lock(path: Path, flags: int) -> int | None:
    from filelock import lock_descriptor

    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if lock_descriptor(descriptor, blocking=False):
            # The path may have been removed and created again. Then this lock is on the old file or directory, and
            # another process may lock the new one.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    _locked.add(descriptor)
                    return descriptor
        return None
    finally:
        if descriptor not in _locked:
            os.close(descriptor)


def unlock(descriptor: int | None) -> None:
    """Release the lock of a descriptor, and close the descriptor. Do nothing for None.

    The lock is released even if a forked child still has an open copy of the descriptor.
    """
    if descriptor is None or descriptor not in _locked:
        # In a forked child, the descriptor is closed already, and its number may belong to another file.
        return
    from filelock import unlock_descriptor

    _locked.discard(descriptor)
    with suppress(OSError):
        unlock_descriptor(descriptor)
    with suppress(OSError):
        os.close(descriptor)


@functools.lru_cache(maxsize=1)
def host_tag() -> str:
    """Return an identifier of the running operating system. Processes with equal identifiers see each other's locks."""
    import hashlib

    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        text = socket.gethostname()
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# ---- file systems ----------------------------------------------------------------------------------------------


def is_local(directory: Path) -> bool:
    """Return whether a directory is on a file system that is known to be local to this machine."""
    path = os.path.realpath(directory) + "/"
    mounts: list[tuple[int, str]] = []
    with suppress(OSError, IndexError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            mount_point = line.split(" ", 5)[4]
            if "\\" in mount_point:
                mount_point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount_point)
            if path.startswith(mount_point.rstrip("/") + "/"):
                mounts.append((len(mount_point), line.partition(" - ")[2].split(" ", 1)[0]))
    longest = max((length for length, _ in mounts), default=0)
    types = [type_ for length, type_ in mounts if length == longest]
    return bool(types) and types[-1] in _LOCAL_FILE_SYSTEMS  # of several mounts on one directory, the last counts
