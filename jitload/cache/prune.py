"""Removes entries, the least recently used first; never one that a living process has mapped."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jitload.cache.entry import FAILED
from jitload.cache.inventory import Item, size_of, walk, walk_aside
from jitload.cache.locks import is_local, lock_directory, unlock
from jitload.cache.notes import BLOCK, GROWN, uses_path, write_notes
from jitload.errors import CacheError
from jitload.settings import make_private

_TRASH = ".trash"
_ASIDE_S = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a pruning removed, what it left, and how many entries it spared because they are in use."""

    removed: tuple[Item, ...]
    freed: int
    left: int
    spared: int


def prune(cache_dir: Path, *, max_size: int | None = None, max_age_s: float | None = None) -> Pruned:
    """Remove entries that were not used for longer than `max_age_s`, and more until `max_size` bytes are left.

    Raises:
        CacheError: The cache cannot be written.
    """
    write_notes()
    if not cache_dir.is_dir():
        return Pruned(removed=(), freed=0, left=0, spared=0)
    with _trash(cache_dir) as trash:
        freed = _remove_aside(cache_dir, trash, _ASIDE_S if max_size is None else 0)
        items = sorted(walk(cache_dir), key=lambda item: item.used_s)
        left, now = sum(item.size for item in items), time.time()
        mapped, removed, spared = mapped_dirs(cache_dir), [], 0
        for item in items:
            is_old = max_age_s is not None and now - item.used_s > max_age_s
            if not is_old and (max_size is None or left <= max_size):
                continue
            if str(item.dir.resolve()) in mapped:
                spared += 1
            elif _remove(item, trash):
                removed.append(item)
                left -= item.size
        _write_grown(cache_dir, left)
        return Pruned(removed=tuple(removed), freed=freed + sum(i.size for i in removed), left=left, spared=spared)


def clear(cache_dir: Path) -> Pruned:
    """Remove every entry that no living process has mapped, and the failed builds that were kept."""
    for mark in (cache_dir / ".work").glob(f"*/{FAILED}"):
        shutil.rmtree(mark.parent, ignore_errors=True)
    return prune(cache_dir, max_size=-1)


def prune_if_grown(cache_dir: Path, limit: int) -> None:
    """Prune after a build, if what was published since the last time is above the limit; a failure is no error."""
    with suppress(OSError, CacheError):
        # Elsewhere another machine may have an entry mapped, and what is removed there is gone below its feet.
        if os.stat(cache_dir / GROWN).st_size * BLOCK <= limit or not is_local(cache_dir):
            return
        done = prune(cache_dir, max_size=limit * 8 // 10)
        _write_grown(cache_dir, min(done.left, limit * 9 // 10))  # not again at once where all is in use


def _write_grown(cache_dir: Path, size: int) -> None:
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(cache_dir / GROWN, flags, 0o600)
        try:
            os.ftruncate(handle, size // BLOCK)
        finally:
            os.close(handle)


# ---- removing --------------------------------------------------------------------------------------------------


@contextmanager
def _trash(cache_dir: Path) -> Iterator[Path]:
    """Give the directory from which things are removed, to one process at a time."""
    trash = cache_dir / _TRASH
    mark = None
    try:
        make_private(trash)
        mark = lock_directory(trash)
        if mark is None:
            raise CacheError(f"another process is pruning the cache {cache_dir} just now")
    except OSError as error:
        if not os.access(trash, os.W_OK):
            raise CacheError(f"the cache {cache_dir} cannot be written: {error.strerror}") from error
    try:
        _empty(trash)  # of one that was killed
        yield trash
        _empty(trash)
    finally:
        if mark is not None:
            unlock(mark)


def _empty(trash: Path) -> None:
    for name in os.listdir(trash):
        shutil.rmtree(trash / name, ignore_errors=True)
        with suppress(OSError):
            os.unlink(trash / name)


def _remove(item: Item, trash: Path) -> bool:
    """Take an entry out in one step, so that nobody finds half of it; what has it mapped keeps it."""
    try:
        os.rename(item.dir, trash / f"{item.key[:16]}-{item.dir.name}")
    except OSError:
        return False
    with suppress(OSError):
        os.unlink(uses_path(item.dir))
    with suppress(OSError):
        os.rmdir(item.dir.parent)  # unless there are other leaves
        os.unlink(item.dir.parent.parent / ".locks" / item.key)
    return True


def _remove_aside(cache_dir: Path, trash: Path, older_than_s: float) -> int:
    freed = 0
    for path in walk_aside(cache_dir):
        with suppress(OSError):
            found = os.lstat(path)
            if time.time() - found.st_mtime >= older_than_s:
                freed += size_of(path) if path.is_dir() and not path.is_symlink() else found.st_size
                os.rename(path, trash / f"{path.parent.name[-16:]}-{path.name}")
    return freed


# ---- in use ----------------------------------------------------------------------------------------------------


def mapped_dirs(cache_dir: Path) -> set[str]:
    """Return the directories below the cache out of which a living process has mapped a file, as far as we may see."""
    root = os.fsencode(str(cache_dir.resolve()) + "/")
    found: set[str] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/maps", "rb") as lines:
                found |= {os.path.dirname(os.fsdecode(_path(line))) for line in lines if root in line}
    return found


def _path(line: bytes) -> bytes:
    """Return the path of a line of `maps`, in which a newline is written as an octal number."""
    return line.rstrip(b"\n").split(None, 5)[5].removesuffix(b" (deleted)").replace(b"\\012", b"\n")
