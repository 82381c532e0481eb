"""What lies in a cache: each entry with its size, age and uses. Nothing on the way of a call needs this."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitload.cache.entry import KEY_DIR, MANIFEST, check_file, newest_first, read_manifest
from jitload.cache.notes import uses_path
from jitload.cache.recipe import SCHEMA
from jitload.errors import CacheError

ASIDE = re.compile(r".*-\d+\.bad")
_NO_ATIME = 1024  # ST_NOATIME of statvfs


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An entry as it lies in the cache.

    Attributes:
        dir: Its directory.
        name: The module's name, as part of a file's name.
        key: The 64 digits of its key.
        size: The bytes that its files take.
        used_s: When it was last used, as far as that is known; see `docs/cache.md`.
        hits: How many processes have noted that they took it from the disk.
    """

    dir: Path
    name: str
    key: str
    size: int
    used_s: float
    hits: int

    def manifest(self) -> dict[str, Any]:
        """Return its manifest.

        Raises:
            CacheError: It is damaged.
        """
        try:
            return read_manifest(self.dir)
        except (OSError, ValueError, RecursionError) as error:
            raise CacheError(f"the entry {self.dir} is damaged: {error}") from error

    def check(self) -> None:
        """Raise CacheError unless every file is as the manifest says, and none is missing."""
        try:
            check_entry(self.dir, self.key)
        except (OSError, ValueError, RecursionError) as error:
            raise CacheError(f"the entry {self.dir} is damaged: {error}") from error


def check_entry(leaf_dir: Path, key: str) -> int:
    """Return the size of an entry whose files are all there, as its manifest says, and no others.

    Raises:
        OSError, ValueError, RecursionError: They are not.
    """
    manifest = read_manifest(leaf_dir)
    try:
        if manifest["schema"] != SCHEMA or manifest["key"] != key:
            raise ValueError("its manifest is of another entry")
        files = {**manifest["files"], manifest["product"]: (manifest["size"], manifest["sha256"])}
        if extra := set(os.listdir(leaf_dir)) - {MANIFEST, *files}:
            raise ValueError(f"{min(extra)!r} is not in its manifest")
        for name, (size, digest) in files.items():
            if not isinstance(name, str) or "/" in name:
                raise ValueError("its manifest names no file of the entry")
            check_file(leaf_dir / name, size, digest)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its manifest is none ({error})") from error
    return size_of(leaf_dir)


def walk(cache_dir: Path, name: str = "") -> Iterator[Item]:
    """Yield the entries of a cache, or those of one name, by name and key; what vanishes meanwhile is left out."""
    keeps_atime = not _has_flag(cache_dir, _NO_ATIME)
    for found, key_dir in _key_dirs(cache_dir):
        if name not in ("", found[1]):
            continue
        with suppress(OSError):
            for leaf in reversed(newest_first(os.listdir(key_dir))):
                with suppress(OSError):
                    yield _item(key_dir / leaf, found, keeps_atime=keeps_atime)


def walk_aside(cache_dir: Path) -> Iterator[Path]:
    """Yield what was set aside as damaged."""
    with suppress(OSError):
        yield from (cache_dir / name for name in sorted(os.listdir(cache_dir)) if ASIDE.fullmatch(name))
    for _, key_dir in _key_dirs(cache_dir):
        with suppress(OSError):
            yield from (key_dir / name for name in sorted(os.listdir(key_dir)) if ASIDE.fullmatch(name))


def _key_dirs(cache_dir: Path) -> Iterator[tuple[re.Match[str], Path]]:
    try:
        names = sorted(os.listdir(cache_dir))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheError(f"the cache {cache_dir} cannot be read: {error.strerror}") from error
    yield from ((found, cache_dir / name) for name in names if (found := KEY_DIR.fullmatch(name)))


def _item(leaf_dir: Path, name: re.Match[str], *, keeps_atime: bool) -> Item:
    manifest = os.lstat(leaf_dir / MANIFEST) if os.path.lexists(leaf_dir / MANIFEST) else os.lstat(leaf_dir)
    hits, noted_s = 0, 0.0
    with suppress(OSError):
        uses = os.stat(uses_path(leaf_dir))
        hits, noted_s = uses.st_size, uses.st_mtime
    used_s = max(manifest.st_mtime, noted_s, manifest.st_atime if keeps_atime else 0)
    return Item(
        dir=leaf_dir, name=name[1], key=name[2], size=size_of(leaf_dir), used_s=min(used_s, time.time()), hits=hits
    )


def size_of(directory: Path) -> int:
    """Return the bytes that the files of a directory take."""
    return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(directory))


def _has_flag(directory: Path, flag: int) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & flag)
    except OSError:
        return False


def find_item(cache_dir: Path, words: str) -> Item:
    """Return the entry that a person means: by its key, its directory's name, or the start of either.

    Raises:
        CacheError: There is none, or there are several.
    """
    wanted = words.rstrip("/")
    found = [
        item
        for item in walk(cache_dir)
        if wanted and (item.key.startswith(wanted) or f"{item.name}-{item.key}/{item.dir.name}".startswith(wanted))
    ]
    if len({item.dir.parent for item in found}) > 1:
        names = ", ".join(sorted({f"{item.name}-{item.key[:12]}" for item in found})[:5])
        raise CacheError(f"{words!r} fits several entries: {names}. Write more of the key.")
    if not found:
        raise CacheError(f"no entry of {cache_dir} has a key that begins with {words!r}; see: jitload cache list")
    return found[-1]
