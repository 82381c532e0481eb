"""Checks that nobody else can write a directory whose code is going to be loaded.

Loading a library runs its owner's code with this user's rights.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from jitload.errors import CacheError
from jitload.settings import Settings


def check_cache_dir(cache_dir: Path, settings: Settings) -> None:
    """Raise CacheError if someone else could write the directory or replace it or a directory above it.

    If the directory does not exist, the ones above it that do exist are checked.
    """
    try:
        for path, status in _directories_above(str(cache_dir)):
            _check(path, status, cache_dir, settings)
    except OSError as error:
        raise CacheError(
            f"the cache {cache_dir} cannot be accessed: {error}. Set JITLOAD_CACHE_DIR to another directory."
        ) from error


def _directories_above(path: str) -> list[tuple[str, os.stat_result]]:
    """Return the directories of a path that exist, from the root down, and also those that its links lead through."""
    directories: list[tuple[str, os.stat_result]] = []
    end = path.find("/", 1)
    while True:
        prefix = path[:end] if end > 0 else path
        try:
            status = os.lstat(prefix)
        except OSError:  # it does not exist, or this user may not search the directory
            break
        if stat.S_ISLNK(status.st_mode):
            return _resolved_directories_above(path)
        directories.append((prefix, status))
        if end < 0:
            break
        end = path.find("/", end + 1)
    return [("/", os.stat("/")), *directories]


def _resolved_directories_above(path: str) -> list[tuple[str, os.stat_result]]:
    existing = Path(path)
    while not existing.exists():
        existing = existing.parent
    directories = dict.fromkeys((existing, *existing.parents, *existing.resolve().parents))
    return [(str(directory), directory.stat()) for directory in directories]


def check_entry_dir(directory: str | Path, cache_dir: Path, settings: Settings) -> None:
    """Raise CacheError if someone else could write a directory of an entry.

    Raises:
        OSError: It does not exist, or is not a directory; a link is not one.
    """
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    _check(directory, status, cache_dir, settings, is_entry=True)


def _check(
    path: str | Path, status: os.stat_result, cache_dir: Path, settings: Settings, *, is_entry: bool = False
) -> None:
    if status.st_uid not in (os.getuid(), 0):
        raise CacheError(
            f"the cache {cache_dir} is not trusted: {path} belongs to user {status.st_uid}, neither this user nor "
            "root. Set JITLOAD_CACHE_DIR to a directory of your own."
        )
    if status.st_mode & stat.S_ISVTX and not is_entry:
        return  # nobody else can replace our files there, as in /tmp
    if status.st_mode & stat.S_IWOTH:
        raise CacheError(
            f"the cache {cache_dir} is not trusted: everyone may write {path}. Repair it with: chmod o-w '{path}'"
        )
    is_own_group = status.st_gid == os.getgid() or status.st_gid == 0
    if status.st_mode & stat.S_IWGRP and not is_own_group and not settings.trusts_group:
        raise CacheError(
            f"the cache {cache_dir} is not trusted: group {status.st_gid} may write {path}. "
            f"Repair it with: chmod g-w '{path}', or trust the group with JITLOAD_TRUST_GROUP=1."
        )
