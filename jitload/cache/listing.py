"""Lists the entries of a cache with their sizes, ages and uses, for the commands and for pruning."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitload.cache.entry import KEY_DIR_NAME, MANIFEST, check_file, newest_first, read_manifest, uses_path
from jitload.cache.key import SCHEMA
from jitload.errors import CacheError

_DAMAGED_NAME = re.compile(r".*-\d+\.bad")
_ST_NOATIME = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """A finished build in a cache.

    Attributes:
        dir: The directory of the entry.
        name: The key's name. The entries of a key are in the directory `<name>-<digest>`.
        digest: The SHA-256 of the key, as 64 hexadecimal digits.
        size: The total size of the entry's files in bytes.
        used_s: The time of the last known use, in seconds since the epoch; see `docs/cache.md`.
        hits: How many processes have recorded that they took the entry from the disk.
    """

    dir: Path
    name: str
    digest: str
    size: int
    used_s: float
    hits: int

    def manifest(self) -> dict[str, Any]:
        """Return the entry's manifest. Raise CacheError if the manifest is damaged."""
        try:
            return read_manifest(self.dir)
        except (OSError, ValueError, RecursionError) as error:
            raise CacheError(f"the entry {self.dir} is damaged: {error}") from error


def check_entry(leaf_dir: Path) -> dict[str, Any]:
    """Return the manifest of an entry. Raise CacheError if a file is missing, damaged or not in the manifest."""
    try:
        return check_leaf(leaf_dir)
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"the entry {leaf_dir} is damaged: {error}") from error


def check_leaf(leaf_dir: Path) -> dict[str, Any]:
    """Check the files of an entry against the manifest, and return the manifest.

    Raises:
        OSError, ValueError, RecursionError: A file is missing, damaged or not in the manifest.
    """
    manifest = read_manifest(leaf_dir)
    try:
        if manifest["schema"] != SCHEMA or manifest["key"] != leaf_dir.parent.name[-64:]:
            raise ValueError("its manifest belongs to another entry")
        files = {**manifest["files"], manifest["product"]: (manifest["size"], manifest["sha256"])}
        if extra := set(os.listdir(leaf_dir)) - {MANIFEST, *files}:
            raise ValueError(f"it contains the file {min(extra)!r}, which is not in its manifest")
        for name, (size, sha256) in files.items():
            if not isinstance(name, str) or "/" in name:
                raise ValueError("its manifest names a file outside the entry")
            check_file(leaf_dir / name, size, sha256)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its manifest is malformed ({error})") from error
    return manifest


def list_entries(cache_dir: Path, name: str = "") -> Iterator[StoredEntry]:
    """Yield the entries of a cache, or only the entries named `name`, sorted by name and key.

    Entries of one key are sorted by age, the oldest first. Entries that another process removes in the meantime are
    skipped.
    """
    keeps_atime = not _is_mounted_noatime(cache_dir)
    for match, key_dir in _key_dirs(cache_dir):
        if name not in ("", match[1]):
            continue
        with suppress(OSError):
            for leaf_name in reversed(newest_first(os.listdir(key_dir))):
                with suppress(OSError):
                    yield _stored_entry(key_dir / leaf_name, match, keeps_atime=keeps_atime)


def list_damaged(cache_dir: Path) -> Iterator[Path]:
    """Yield the paths of damaged entries, which were renamed to `<name>-<time>.bad` when the damage was found."""
    with suppress(OSError):
        yield from _damaged_in(cache_dir)
    for _, key_dir in _key_dirs(cache_dir):
        with suppress(OSError):
            yield from _damaged_in(key_dir)


def _damaged_in(directory: Path) -> Iterator[Path]:
    return (directory / name for name in sorted(os.listdir(directory)) if _DAMAGED_NAME.fullmatch(name))


def _key_dirs(cache_dir: Path) -> Iterator[tuple[re.Match[str], Path]]:
    try:
        names = sorted(os.listdir(cache_dir))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheError(f"the cache {cache_dir} cannot be read: {error.strerror}") from error
    yield from ((match, cache_dir / name) for name in names if (match := KEY_DIR_NAME.fullmatch(name)))


def _stored_entry(leaf_dir: Path, key_dir_name: re.Match[str], *, keeps_atime: bool) -> StoredEntry:
    status = os.lstat(leaf_dir / MANIFEST) if os.path.lexists(leaf_dir / MANIFEST) else os.lstat(leaf_dir)
    hits, recorded_s = 0, 0.0
    with suppress(OSError):
        uses = os.stat(uses_path(leaf_dir))
        hits, recorded_s = uses.st_size, uses.st_mtime
    used_s = max(status.st_mtime, recorded_s, status.st_atime if keeps_atime else 0)
    return StoredEntry(
        dir=leaf_dir,
        name=key_dir_name[1],
        digest=key_dir_name[2],
        size=directory_size(leaf_dir),
        used_s=min(used_s, time.time()),
        hits=hits,
    )


def directory_size(directory: Path) -> int:
    """Return the total size in bytes of the files in a directory."""
    return sum(item.stat(follow_symlinks=False).st_size for item in os.scandir(directory))


def _is_mounted_noatime(directory: Path) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & _ST_NOATIME)
    except OSError:
        return False


def find_by_prefix(cache_dir: Path, text: str) -> StoredEntry:
    """Return the newest entry whose key or directory name begins with `text`.

    Raises:
        CacheError: No key matches, or several keys match.
    """
    prefix = text.rstrip("/")
    matches = [
        entry
        for entry in list_entries(cache_dir)
        if prefix
        and (entry.digest.startswith(prefix) or f"{entry.name}-{entry.digest}/{entry.dir.name}".startswith(prefix))
    ]
    if len({entry.dir.parent for entry in matches}) > 1:
        names = ", ".join(sorted({f"{entry.name}-{entry.digest[:12]}" for entry in matches})[:5])
        raise CacheError(f"several entries begin with {text!r}: {names}. Write more of the key.")
    if not matches:
        raise CacheError(f"no entry of {cache_dir} has a key that begins with {text!r}; see: jitload cache list")
    return matches[-1]
