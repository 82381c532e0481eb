"""Looks for an entry in bundles of installed packages, shared directories, the local cache and a remote store.

They are asked in this order, each only if there is one. What is built goes to the local cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jitload.cache.bundles import find_bundles, remember_bundles
from jitload.cache.entry import Entry, find_entry
from jitload.cache.key import CacheKey
from jitload.cache.permissions import check_cache_dir
from jitload.errors import CacheError, warn_once
from jitload.settings import Settings


def find_in_tiers(cache_dir: Path, key: CacheKey, settings: Settings) -> Entry | None:
    """Return the entry for a key from the first tier that has it, or None.

    Only what comes from a remote store is written, to the local cache, where it is verified like any entry.

    Raises:
        CacheError: Someone else may write the entry or a directory of `JITLOAD_CACHE_PATH`.
    """
    is_rebuild = settings.mode == "rebuild"
    bundles = find_bundles(cache_dir)
    if not is_rebuild and (bundles or settings.cache_path):
        for read_only_dir in _read_only_dirs(bundles, settings):
            if entry := _find(read_only_dir, key, settings, is_read_only=True):
                return entry
    if entry := _find(cache_dir, key, settings, is_read_only=False):
        return entry
    if not is_rebuild and settings.remote and not key.unknown_parts:  # a store is asked by digest
        from jitload.cache.remote import fetch_entry

        return fetch_entry(cache_dir, key, settings)
    return None


def _find(cache_dir: Path, key: CacheKey, settings: Settings, *, is_read_only: bool) -> Entry | None:
    """Return the entry for a key from one directory: by its digest, or by its other parts if some are unknown."""
    if not key.unknown_parts:
        return find_entry(cache_dir, key, settings, is_read_only=is_read_only)
    from jitload.cache.matching import matching_digests

    for digest in matching_digests(cache_dir, key, settings):
        if entry := find_entry(cache_dir, key, settings, is_read_only=is_read_only, digest=digest):
            return entry
    return None


def upload_entry(entry: Entry, key: CacheKey, settings: Settings) -> None:
    """Put an entry that this process has built into the remote store, if the settings say so."""
    remember_bundles(entry.dir.parent.parent)
    if settings.remote_writes and entry.is_new:
        from jitload.cache.remote import put_entry

        put_entry(entry, key, settings)


def _read_only_dirs(bundles: Sequence[Path], settings: Settings) -> Iterator[Path]:
    """Yield the directories that are only read."""
    for bundle in bundles:
        try:
            check_cache_dir(bundle, settings)
        except CacheError as error:  # it came with a package, and this user did not ask for it
            warn_once(f"a bundle is skipped: {error}")
        else:
            yield bundle
    for text in settings.cache_path:
        directory = _absolute(text)
        if not directory.is_dir():
            warn_once(f"JITLOAD_CACHE_PATH names {directory}, which is not a directory; it is skipped")
            continue
        try:
            check_cache_dir(directory, settings)
        except CacheError as error:
            raise CacheError(f"JITLOAD_CACHE_PATH: {error}".replace("Set JITLOAD_CACHE_DIR to", "Name")) from error
        yield directory


def _absolute(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise CacheError(f"JITLOAD_CACHE_PATH: {text!r} cannot be resolved: {error}. Write the whole path.") from error
