"""Removes entries from a cache, the least recently used first. Entries that a living process has mapped stay."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jitload.cache.entry import BLOCK_BYTES, FAILED_MARKER, GROWTH_FILE, TRASH_DIR, WORK_DIR, write_uses
from jitload.cache.listing import StoredEntry, directory_size, list_damaged, list_entries
from jitload.cache.locks import LOCKS_DIR, is_local, lock_directory, unlock
from jitload.errors import CacheError
from jitload.toolchain.private_files import make_private_dir

_DAMAGED_KEPT_S = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """The removed entries, the bytes freed and left, and how many entries stay because a process has them mapped."""

    removed: tuple[StoredEntry, ...]
    freed: int
    left: int
    in_use: int


def prune(cache_dir: Path, *, max_size: int | None = None, max_age_s: float | None = None) -> PruneResult:
    """Remove the least recently used entries, and the damaged ones.

    Entries that were not used for more than `max_age_s` seconds are removed. Then the least recently used entries are
    removed until the rest have at most `max_size` bytes in total. An entry that a living process has mapped stays.

    Damaged entries are removed after a week, or at once if `max_size` is given.

    Raises:
        CacheError: The cache cannot be written, or another process is pruning it.
    """
    write_uses()
    if not cache_dir.is_dir():
        return PruneResult(removed=(), freed=0, left=0, in_use=0)
    with locked_trash(cache_dir) as trash:
        entries = sorted(list_entries(cache_dir), key=lambda entry: entry.used_s)
        freed = _remove_damaged(list_damaged(cache_dir), trash, _DAMAGED_KEPT_S if max_size is None else 0)
        left, now_s = sum(entry.size for entry in entries), time.time()
        mapped, real_dir, removed, in_use = mapped_dirs(cache_dir), cache_dir.resolve(), [], 0
        for entry in entries:
            is_old = max_age_s is not None and now_s - entry.used_s > max_age_s
            if not is_old and (max_size is None or left <= max_size):
                continue
            if f"{real_dir}/{entry.dir.parent.name}/{entry.dir.name}" in mapped:
                in_use += 1
            elif _remove(entry, trash):
                removed.append(entry)
                left -= entry.size
        _write_growth(cache_dir, left)
        freed += sum(entry.size for entry in removed)
        return PruneResult(removed=tuple(removed), freed=freed, left=left, in_use=in_use)


def clear(cache_dir: Path) -> PruneResult:
    """Remove every entry that no living process has mapped, and the failed builds that were kept for inspection."""
    for marker in (cache_dir / WORK_DIR).glob(f"*/{FAILED_MARKER}"):
        shutil.rmtree(marker.parent, ignore_errors=True)
    return prune(cache_dir, max_size=-1)


def prune_to_limit(cache_dir: Path, limit: int) -> None:
    """Prune a cache to four fifths of `limit` bytes, but only on a local file system. Ignore failures."""
    with suppress(OSError, CacheError):
        if not is_local(cache_dir):
            return  # a process on another machine may have an entry mapped and would lose it
        result = prune(cache_dir, max_size=limit * 8 // 10)
        _write_growth(cache_dir, min(result.left, limit * 9 // 10))  # so that the next build does not prune again


def _write_growth(cache_dir: Path, size: int) -> None:
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(cache_dir / GROWTH_FILE, flags, 0o600)
        try:
            os.ftruncate(descriptor, size // BLOCK_BYTES)
        finally:
            os.close(descriptor)


# ---- removing --------------------------------------------------------------------------------------------------


@contextmanager
def locked_trash(cache_dir: Path) -> Iterator[Path]:
    """Hold the lock for pruning, and yield an empty directory. Entries in it are deleted after the block."""
    trash = cache_dir / TRASH_DIR
    lock = None
    try:
        make_private_dir(trash)
        lock = lock_directory(trash)
        if lock is None:
            raise CacheError(f"another process is pruning the cache {cache_dir} at the moment; try again later")
    except OSError as error:
        if not os.access(trash, os.W_OK):
            raise CacheError(f"the cache {cache_dir} cannot be written: {error.strerror}") from error
    try:
        _empty(trash)  # a killed process may have left files in it
        yield trash
        _empty(trash)
    finally:
        unlock(lock)


def _empty(trash: Path) -> None:
    for name in os.listdir(trash):
        shutil.rmtree(trash / name, ignore_errors=True)
        with suppress(OSError):
            os.unlink(trash / name)


def _remove(entry: StoredEntry, trash: Path) -> bool:
    """Move an entry to the directory `trash`, and return whether the entry was moved.

    The move is one step, so that no process finds half an entry. A process that has the entry's library mapped can
    continue to use the library.
    """
    try:
        os.rename(entry.dir, trash / f"{entry.digest[:16]}-{entry.dir.name}")
    except OSError:
        return False
    with suppress(OSError):
        os.rmdir(entry.dir.parent)  # fails if the key has other entries
        os.unlink(entry.dir.parent.parent / LOCKS_DIR / entry.digest)
    return True


def _remove_damaged(damaged: Iterable[Path], trash: Path, older_than_s: float) -> int:
    freed = 0
    for path in damaged:
        with suppress(OSError):
            status = os.lstat(path)
            if time.time() - status.st_mtime >= older_than_s:
                freed += directory_size(path) if path.is_dir() and not path.is_symlink() else status.st_size
                os.rename(path, trash / f"{path.parent.name[-16:]}-{path.name}")
    return freed


# ---- in use ----------------------------------------------------------------------------------------------------


def mapped_dirs(cache_dir: Path) -> set[str]:
    """Return the directories in the cache whose files living processes have mapped.

    Only processes that this user may inspect are considered.
    """
    root = os.fsencode(str(cache_dir.resolve()) + "/")
    directories: set[str] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/maps", "rb") as lines:
                directories |= {os.path.dirname(os.fsdecode(_mapped_path(line))) for line in lines if root in line}
    return directories


def _mapped_path(line: bytes) -> bytes:
    """Return the path in a line of `/proc/<pid>/maps`.

    The line contains a newline in a path as an octal escape.
    """
    return line.rstrip(b"\n").split(None, 5)[5].removesuffix(b" (deleted)").replace(b"\\012", b"\n")
