"""Who may write a directory: code loaded from it runs with this user's rights."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from jitload.errors import CacheError
from jitload.settings import Settings


def refuse_if_shared(directory: Path, settings: Settings) -> None:
    """Raise CacheError where someone else could write the directory or replace one above it.

    Loading a library runs its owner's code. A directory that does not exist yet is judged by the first one above it
    that does.
    """
    path = directory
    while not os.path.exists(path):  # false, too, where this user may not look
        path = path.parent
    try:
        for place in dict.fromkeys((path, *path.parents, *path.resolve().parents)):
            refuse_place(place, directory, settings)
    except OSError as error:
        raise CacheError(
            f"the cache {directory} cannot be looked at: {error}. Set JITLOAD_CACHE_DIR to another directory."
        ) from error


def refuse_place(place: Path, directory: Path, settings: Settings, *, is_entry: bool = False) -> None:
    """Raise CacheError where one place may be written by someone else; `is_entry` says that code lies in it.

    Raises:
        OSError: It is gone, or is no directory; an entry is never a link to one.
    """
    found = os.lstat(place) if is_entry else os.stat(place)
    if is_entry and not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if found.st_uid not in (os.getuid(), 0):
        raise CacheError(
            f"the cache {directory} is not trusted: {place} belongs to user {found.st_uid}, neither this user nor "
            "root. Set JITLOAD_CACHE_DIR to a directory of your own."
        )
    if found.st_mode & stat.S_ISVTX and not is_entry:
        return  # as in /tmp: nobody can replace what is ours in there
    if found.st_mode & stat.S_IWOTH:
        raise CacheError(
            f"the cache {directory} is not trusted: everyone may write {place}. Repair it with: chmod o-w '{place}'"
        )
    own_group = found.st_gid == os.getgid() or found.st_gid == 0
    if found.st_mode & stat.S_IWGRP and not own_group and not settings.trusts_group:
        raise CacheError(
            f"the cache {directory} is not trusted: group {found.st_gid} may write {place}. "
            f"Repair it with: chmod g-w '{place}', or trust the group with JITLOAD_TRUST_GROUP=1."
        )
