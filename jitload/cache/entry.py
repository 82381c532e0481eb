"""A key to a finished entry of the cache, after a look at whether it is whole, fits, and is ours.

    <cache>/<name>-<key>/<number>-<headers>/manifest.json, <name>.so, and everything it was made from

The key covers what is known before a build. The headers that a build turns out to read are recorded with their
digests in the manifest, and looked at again on a hit: builds that read different headers are leaves of one key.
A published leaf is never changed, and its name is never used again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitload.cache.inputs import Header, fasten, settled
from jitload.cache.notes import note_use
from jitload.cache.recipe import SCHEMA, Recipe
from jitload.cache.trust import refuse_if_shared, refuse_place
from jitload.errors import CacheError
from jitload.settings import Settings, find_cache_dir

MANIFEST = "manifest.json"
FAILED = ".failed"  # in the directory of a build that a compiler refused
KEY_DIR = re.compile(r"([A-Za-z0-9_]{1,48})-([0-9a-f]{64})")
LEAF = re.compile(r"(\d{4,})-[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,200}")
_LARGEST_MANIFEST = 64 << 20
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of this process, and no fault of the entry
_CLOSED = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)  # not to be read, and not to be judged
_log = logging.getLogger(__name__)

rebuilt: set[tuple[str, str]] = set()  # cache directory and key of what this process has built under `rebuild`


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A published build: its directory, the product in it, and whether it was built just now."""

    dir: Path
    product: Path
    headers: tuple[Header, ...]
    is_new: bool = False


def open_cache(settings: Settings) -> Path:
    """Return the cache directory after a look at who may write it.

    Raises:
        CacheError: Others than this user and root could put code there.
    """
    cache_dir = find_cache_dir(settings)
    refuse_if_shared(cache_dir, settings)
    return cache_dir


def key_dir_of(cache_dir: Path, recipe: Recipe, key: str = "") -> Path:
    """Return the directory of a recipe's entries."""
    return cache_dir / f"{recipe.name}-{key or recipe.key}"


def find_entry(
    cache_dir: Path, recipe: Recipe, settings: Settings, *, is_ours: bool = True, key: str = ""
) -> Entry | None:
    """Return the entry for a recipe whose product is whole and whose headers are as they were, or None.

    This writes nothing, takes no lock and starts nothing, unless an entry is damaged: that one is set aside, where it
    may be built again.

    Args:
        cache_dir: The cache.
        recipe: What is looked for.
        settings: What the environment asks for.
        is_ours: Whether it is this user's own cache; in another nothing is set aside, and no use is noted.
        key: The recipe's key, where it is known.

    Raises:
        CacheError: Others may write the entry, or this process has no file handles left.
    """
    key = key or recipe.key
    may_set_aside = is_ours and settings.mode != "load-only"
    if settings.mode == "rebuild" and (str(cache_dir), key) not in rebuilt:
        return None
    key_dir = key_dir_of(cache_dir, recipe, key)
    try:
        leaves = newest_first(os.listdir(key_dir))
        refuse_place(key_dir, cache_dir, settings)
    except OSError as error:
        if not isinstance(error, FileNotFoundError) or os.path.islink(key_dir):
            _judge(key_dir, error, may_set_aside=may_set_aside)
        return None
    for leaf in leaves:
        try:
            refuse_place(key_dir / leaf, cache_dir, settings)
            entry = _read_entry(key_dir / leaf, recipe, settings, key)
        except (OSError, ValueError, LookupError, TypeError, RecursionError, CacheError) as problem:
            _judge(key_dir / leaf, problem, may_set_aside=may_set_aside)
            continue
        if entry is not None:
            if is_ours:
                note_use(entry.dir, settings)
            return entry
    return None


def newest_first(names: Iterable[str]) -> list[str]:
    """Return the leaves among a directory's names, the last one published first: it is the likeliest to fit."""
    found = (match for name in names if (match := LEAF.fullmatch(name)))
    return [match[0] for match in sorted(found, key=lambda match: (int(match[1]), match[0]), reverse=True)]


def _judge(place: Path, problem: Exception, *, may_set_aside: bool) -> None:
    """Set aside what is damaged, pass over what cannot be read, and raise what is this process's own trouble."""
    number = problem.errno if isinstance(problem, OSError) else None
    if number in EXHAUSTED:
        raise CacheError(f"the cache entry {place} cannot be read: {problem}. Raise this process's limit.") from problem
    if not os.path.lexists(place):
        return  # another process has just set it aside
    if number in _CLOSED or not may_set_aside:
        _log.warning("cache entry %s cannot be used (%s); it is passed over", place, problem)
        return
    _set_aside(place, problem)


def _set_aside(place: Path, damage: Exception) -> None:
    aside = place.with_name(f"{place.name}-{time.time_ns()}.bad")
    _log.warning("cache entry %s is damaged (%s); it is set aside as %s and built again", place, damage, aside.name)
    with suppress(OSError):  # a read-only cache: the entry stays, and is passed over each time
        os.rename(place, aside)


# ---- an entry --------------------------------------------------------------------------------------------------


def _read_entry(leaf_dir: Path, recipe: Recipe, settings: Settings, key: str) -> Entry | None:
    """Return an entry whose product is whole, or None where it was made from other headers."""
    manifest = read_manifest(leaf_dir, settings)
    if manifest["schema"] != SCHEMA or manifest["key"] != key:
        raise ValueError("its manifest is of another entry")
    if manifest["anchors"] is not None and tuple(manifest["anchors"]) != recipe.anchors:
        return None
    headers = tuple(fasten(kept, recipe.anchors) for kept in manifest["headers"])
    if not all(header.is_unchanged() for header in headers):
        return None
    name = manifest["product"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("its manifest names no file of the entry")
    check_file(leaf_dir / name, manifest["size"], manifest["sha256"], settings)
    return Entry(dir=leaf_dir, product=leaf_dir / name, headers=tuple(map(settled, headers)))


def read_manifest(leaf_dir: Path, settings: Settings | None = None) -> dict[str, Any]:
    """Return an entry's manifest.

    Raises:
        OSError, ValueError, RecursionError: There is none that can be read.
    """
    manifest = json.loads(read_file(leaf_dir / MANIFEST, _LARGEST_MANIFEST, settings))
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is none")  # noqa: TRY004  damage, like the rest of them
    return manifest


def check_file(path: Path, size: Any, digest: Any, settings: Settings | None = None) -> None:
    """Raise ValueError where a file of an entry has another content than its manifest says."""
    data = read_file(path, int(size), settings)
    if len(data) != size:
        raise ValueError(f"{path.name} has {len(data)} bytes, not {size}")
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path.name} has another SHA-256 than its manifest says")


def read_file(path: Path, largest: int, settings: Settings | None = None) -> bytes:
    """Return the bytes of a regular file that nobody else may write: no link, no pipe that would never end.

    Raises:
        OSError, ValueError: It cannot be read, or is none.
    """
    handle = _open(path, is_use=settings is not None)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path.name} is no regular file")
        if found.st_size > largest:
            raise ValueError(f"{path.name} has {found.st_size} bytes, not {largest}")
        if found.st_uid not in (os.getuid(), 0) or found.st_mode & stat.S_IWOTH:
            raise ValueError(f"others may write {path.name}")
        if found.st_mode & stat.S_IWGRP and found.st_gid not in (os.getgid(), 0):
            _check_group(path, settings)
        return _read_all(handle, found.st_size)
    finally:
        os.close(handle)


def _open(path: Path, *, is_use: bool) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if not is_use:  # who looks through the cache does not use it, and its times tell the uses
        with suppress(PermissionError, AttributeError):
            return os.open(path, flags | os.O_NOATIME)
    return os.open(path, flags)


def _check_group(path: Path, settings: Settings | None) -> None:
    if settings is not None and not settings.trusts_group:
        raise ValueError(f"a group may write {path.name}")


def _read_all(handle: int, size: int) -> bytes:
    data = os.read(handle, size)
    while len(data) < size and (more := os.read(handle, size - len(data))):  # network file systems read in pieces
        data += more
    return data
