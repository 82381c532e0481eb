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
    try:
        for place, found in _places_above(str(directory)):
            _refuse(found, place, directory, settings)
    except OSError as error:
        raise CacheError(
            f"the cache {directory} cannot be looked at: {error}. Set JITLOAD_CACHE_DIR to another directory."
        ) from error


def _places_above(path: str) -> list[tuple[str, os.stat_result]]:
    """Return what is there of a path, from the root down; where it goes through links, of what they lead to as well."""
    places: list[tuple[str, os.stat_result]] = []
    at = path.find("/", 1)
    while True:
        place = path[:at] if at > 0 else path
        try:
            found = os.lstat(place)
        except OSError:  # not there, or where this user may not look
            break
        if stat.S_ISLNK(found.st_mode):
            return _places_behind(path)
        places.append((place, found))
        if at < 0:
            break
        at = path.find("/", at + 1)
    return [("/", os.stat("/")), *places]


def _places_behind(path: str) -> list[tuple[str, os.stat_result]]:
    found = Path(path)
    while not found.exists():
        found = found.parent
    places = dict.fromkeys((found, *found.parents, *found.resolve().parents))
    return [(str(place), place.stat()) for place in places]


def refuse_place(place: str | Path, directory: Path, settings: Settings) -> None:
    """Raise CacheError where one directory with code in it may be written by someone else.

    Raises:
        OSError: It is gone, or is no directory; such a one is never a link.
    """
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    _refuse(found, place, directory, settings, is_entry=True)


def _refuse(
    found: os.stat_result, place: str | Path, directory: Path, settings: Settings, *, is_entry: bool = False
) -> None:
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
