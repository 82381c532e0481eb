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

from jitload.cache.entry import KEY_DIR_NAME, MANIFEST, check_files, names_in, newest_first, read_manifest
from jitload.cache.key import SCHEMA
from jitload.errors import CacheError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """A finished build in a cache.

    Attributes:
        dir: The directory of the entry.
        name: The key's name. The entries of a key are in the directory `<name>-<digest>`.
        digest: The SHA-256 of the key, as 64 hexadecimal digits.
        size: The total size of the entry's files in bytes.
        used_s: The time of the last known use, in seconds since the epoch; see `docs/cache.md`.
    """

    dir: Path
    name: str
    digest: str
    size: int
    used_s: float


def check_leaf(leaf_dir: Path) -> dict[str, Any]:
    """Check the files of an entry against the manifest, and return the manifest.

    Raises:
        OSError, ValueError, RecursionError: A file is missing, damaged or not in the manifest.
    """
    manifest = read_manifest(leaf_dir)
    try:
        if manifest["schema"] != SCHEMA or manifest["key"] != leaf_dir.parent.name[-64:]:
            raise ValueError("its manifest belongs to another entry")
        if extra := set(os.listdir(leaf_dir)) - {MANIFEST, *manifest["files"]}:
            raise ValueError(f"it contains the file {min(extra)!r}, which is not in its manifest")
        check_files(leaf_dir, manifest, (manifest["product"], *manifest["files"]))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its manifest is malformed ({error})") from error
    return manifest


def list_entries(cache_dir: Path) -> Iterator[StoredEntry]:
    """Yield the entries of a cache, sorted by name and key.

    Entries of one key are sorted by age, the oldest first. Entries that another process removes in the meantime are
    skipped.
    """
    for match, key_dir in key_dirs(cache_dir):
        for leaf_name in reversed(newest_first(names_in(key_dir))):
            leaf_dir = f"{cache_dir}/{match[0]}/{leaf_name}"  # a Path is slower than the system calls here
            with suppress(OSError):
                statuses = dict(_statuses(leaf_dir))
                used_s = statuses[MANIFEST].st_mtime if MANIFEST in statuses else 0.0
                yield StoredEntry(
                    dir=Path(leaf_dir),
                    name=match[1],
                    digest=match[2],
                    size=sum(status.st_size for status in statuses.values()),
                    used_s=min(used_s, time.time()),
                )


def key_dirs(cache_dir: Path) -> list[tuple[re.Match[str], Path]]:
    """Return a (match of the name, path) pair for the directory of each key in a cache, sorted by name.

    Raises:
        CacheError: The cache cannot be read.
    """
    try:
        names = sorted(os.listdir(cache_dir))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CacheError(f"the cache {cache_dir} cannot be read: {error.strerror}") from error
    return [(match, cache_dir / name) for name in names if (match := KEY_DIR_NAME.fullmatch(name))]


def directory_size(directory: str | Path) -> int:
    """Return the total size in bytes of the files in a directory."""
    return sum(status.st_size for _, status in _statuses(directory))


def _statuses(directory: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a (name, status) pair for each file in a directory."""
    with os.scandir(directory) as items:
        for item in items:
            yield item.name, item.stat(follow_symlinks=False)
