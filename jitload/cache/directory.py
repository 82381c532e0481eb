"""Finds the cache directory, and checks that nobody else can write it.

It is the directory that the environment names, the user's own, or one for this process. Loading a library runs its
owner's code with this user's rights.
"""

from __future__ import annotations

import atexit
import errno
import functools
import os
import stat
from contextlib import suppress
from pathlib import Path

from jitload.errors import CacheError, warn_once
from jitload.settings import Settings

OTHER_DIR_HINT = "Set JITLOAD_CACHE_DIR to a directory of your own."


def find_cache_dir(settings: Settings) -> Path:
    """Return the cache directory, which need not exist. For a user without a home, it lasts as long as this process.

    Raises:
        CacheError: `JITLOAD_CACHE_DIR` cannot be resolved to an absolute path.
    """
    if settings.cache_dir.startswith("/"):
        return _to_path(settings.cache_dir)
    if settings.cache_dir:
        return _resolve_dir(settings.cache_dir)
    from platformdirs import user_cache_dir

    with suppress(RuntimeError, KeyError, OSError):
        directory = Path(user_cache_dir("jitload"))
        if directory.is_absolute():  # it is "~/.cache/jitload" if the home is unknown
            return directory
    directory = private_cache_dir()
    warn_once(f"this user has no home: the cache is in {directory}, for this process only. Set JITLOAD_CACHE_DIR.")
    return directory


_to_path = functools.lru_cache(maxsize=16)(Path)


def _resolve_dir(directory: str) -> Path:
    try:
        return Path(directory).expanduser().absolute()
    except RuntimeError as error:
        raise CacheError(
            f"JITLOAD_CACHE_DIR={directory}: the home of this user is unknown. Write the whole path."
        ) from error
    except OSError as error:
        raise CacheError(
            f"JITLOAD_CACHE_DIR={directory} is relative, and the working directory no longer exists. "
            "Write the whole path."
        ) from error


def private_cache_dir() -> Path:
    """Return this process's temporary cache directory, which is used if there is no other.

    Raises:
        CacheError: A temporary directory cannot be created either.
    """
    return _private_cache_dir(os.getpid())


def is_in_private_cache(path: Path) -> bool:
    """Return whether a path lies in this process's temporary cache directory, if there is one."""
    return _private_cache_dir.cache_info().currsize > 0 and path.is_relative_to(private_cache_dir())


@functools.lru_cache(maxsize=1)
def _private_cache_dir(process_id: int) -> Path:
    import tempfile

    try:
        directory = Path(tempfile.mkdtemp(prefix="jitload-"))
    except OSError as error:
        raise CacheError(
            "there is no directory to build in: neither the cache directory nor a temporary one can be written "
            f"({error}). Set JITLOAD_CACHE_DIR or TMPDIR to a directory that can be written."
        ) from error
    atexit.register(_remove_own, directory, process_id)
    return directory


def _remove_own(directory: Path, process_id: int) -> None:
    """Remove a process's directory when that process ends, but not when a forked child of it ends."""
    if os.getpid() == process_id:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)


# ---- who may write it --------------------------------------------------------------------------------------------


def check_cache_dir(cache_dir: Path, settings: Settings) -> None:
    """Raise CacheError if someone else could write the directory or replace it or a directory above it.

    If the directory does not exist, the ones above it that do exist are checked.
    """
    try:
        for path, status in _directories_above(str(cache_dir)):
            _check_writers(path, status, cache_dir, settings)
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
    _check_writers(directory, status, cache_dir, settings, is_entry=True)


def _check_writers(
    path: str | Path, status: os.stat_result, cache_dir: Path, settings: Settings, *, is_entry: bool = False
) -> None:
    if status.st_uid not in (os.getuid(), 0):
        raise CacheError(
            f"the cache {cache_dir} is not trusted: {path} belongs to user {status.st_uid}, neither this user nor "
            f"root. {OTHER_DIR_HINT}"
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
