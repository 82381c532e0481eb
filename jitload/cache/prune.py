"""Removes entries from a cache, the least recently used first. Entries that a living process has mapped stay."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jitload.cache.entry import FAILED_MARKER, WORK_DIR, names_in, write_uses
from jitload.cache.listing import StoredEntry, directory_size, key_dirs, list_entries
from jitload.cache.locks import LOCKS_DIR, is_local
from jitload.cache.store import temporary_dir
from jitload.errors import CacheError

_DAMAGED = re.compile(r".*-\d+\.bad")  # the name that `handle_problem` gives


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

    Raises:
        CacheError: The cache cannot be written.
    """
    write_uses()
    if not cache_dir.is_dir():
        return PruneResult(removed=(), freed=0, left=0, in_use=0)
    with temporary_dir(cache_dir, "prune") as trash:
        entries = sorted(list_entries(cache_dir), key=lambda entry: entry.used_s)
        freed = _remove_damaged(cache_dir, trash)
        left, now_s = sum(entry.size for entry in entries), time.time()
        mapped, real_dir, removed, in_use = _mapped_dirs(cache_dir), cache_dir.resolve(), [], 0
        for entry in entries:
            is_old = max_age_s is not None and now_s - entry.used_s > max_age_s
            if not is_old and (max_size is None or left <= max_size):
                continue
            if f"{real_dir}/{entry.dir.parent.name}/{entry.dir.name}" in mapped:
                in_use += 1
            elif _remove(entry, trash):
                removed.append(entry)
                left -= entry.size
        freed += sum(entry.size for entry in removed)
        return PruneResult(removed=tuple(removed), freed=freed, left=left, in_use=in_use)


def clear(cache_dir: Path) -> PruneResult:
    """Remove every entry that no living process has mapped, and the failed builds that were kept for inspection."""
    for marker in (cache_dir / WORK_DIR).glob(f"*/{FAILED_MARKER}"):
        shutil.rmtree(marker.parent, ignore_errors=True)
    return prune(cache_dir, max_size=-1)


def prune_to_limit(cache_dir: Path, limit: int) -> None:
    """If a cache has more than `limit` bytes, prune it to four fifths of the limit. Ignore failures.

    Do so only on a local file system. On others, a process on another machine may have an entry mapped, and would lose
    it.
    """
    with suppress(OSError, CacheError):
        if is_local(cache_dir) and sum(entry.size for entry in list_entries(cache_dir)) > limit:
            prune(cache_dir, max_size=limit * 8 // 10)


# ---- removing --------------------------------------------------------------------------------------------------


def _remove(entry: StoredEntry, trash: Path) -> bool:
    """Move an entry to the directory `trash`, and return whether the entry is gone.

    The move is one step, so that no process finds half an entry.
    """
    try:
        os.rename(entry.dir, trash / f"{entry.digest[:16]}-{entry.dir.name}")
    except OSError:
        return not entry.dir.exists()  # another process may have removed it
    with suppress(OSError):
        os.rmdir(entry.dir.parent)  # fails if the key has other entries
        os.unlink(entry.dir.parent.parent / LOCKS_DIR / entry.digest)
    return True


def _remove_damaged(cache_dir: Path, trash: Path) -> int:
    """Move the entries to `trash` that were renamed when damage was found, and return the bytes that they took."""
    freed = 0
    dirs = (cache_dir, *(key_dir for _, key_dir in key_dirs(cache_dir)))
    for path in (directory / name for directory in dirs for name in names_in(directory) if _DAMAGED.fullmatch(name)):
        with suppress(OSError):
            size = directory_size(path) if path.is_dir() and not path.is_symlink() else os.lstat(path).st_size
            os.rename(path, trash / f"{path.parent.name[-16:]}-{path.name}")
            freed += size
    return freed


# ---- in use ----------------------------------------------------------------------------------------------------


def _mapped_dirs(cache_dir: Path) -> set[str]:
    """Return the directories in the cache whose files living processes have mapped.

    Only processes that this user may inspect are considered.
    """
    root = os.fsencode(str(cache_dir.resolve()) + "/")
    directories: set[str] = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/maps", "rb") as lines:
                paths = (
                    line.rstrip(b"\n").split(None, 5)[5].replace(b"\\012", b"\n") for line in lines if root in line
                )
                directories |= {os.path.dirname(os.fsdecode(path)) for path in paths}
    return directories
