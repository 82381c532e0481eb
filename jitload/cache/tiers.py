"""Looks for a cached build in bundles of installed packages, shared directories, the local cache and a remote store.

These places, called tiers, are searched in this order, as far as they exist. New builds are published in the local
cache.

A bundle is a cache that a package installs as `jitload_bundles/<name>`, beside the package, and that `jitload prebuild
--bundle` fills.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from jitload.cache.entry import Entry, check_cache_dir, find_entry, resolve_dir
from jitload.cache.key import TOOL_PARTS, CacheKey
from jitload.errors import CacheError, warn_once
from jitload.settings import Settings

BUNDLES_DIR = "jitload_bundles"


def find_in_tiers(cache_dir: Path, key: CacheKey, settings: Settings, *, needs_library: bool = False) -> Entry | None:
    """Return the entry for a key, or None if no tier has an entry. With `needs_library`, records are skipped.

    The tiers are searched in this order: the bundles of installed packages, the directories of `JITLOAD_CACHE_PATH`,
    the local cache, and a remote store. This function writes only to the local cache. An entry from the store is copied
    to the local cache and verified there like any other entry.

    In the mode `rebuild`, only the local cache is searched.

    Raises:
        CacheError: Another user may write to the key's directory or to a directory of `JITLOAD_CACHE_PATH`, or this
            process lacks file descriptors or memory.
    """
    is_rebuild = settings.mode == "rebuild"
    bundles = find_bundles()
    record = None  # the library for a record in a read-only directory is in the local cache
    if not is_rebuild and (bundles or settings.cache_path):
        for directory, tier_key in read_only_dirs(bundles, key, settings):
            if entry := find_entry(directory, tier_key, settings, is_read_only=True, needs_library=needs_library):
                if not entry.is_record:
                    return entry
                record = record or entry
    if entry := find_entry(cache_dir, key, settings, needs_library=needs_library or record is not None):
        return entry
    if record:
        return record
    if not is_rebuild and settings.remote:
        from jitload.cache.remote import fetch_entry

        return fetch_entry(cache_dir, key, settings, needs_library=needs_library)
    return None


def claim_build(
    cache_dir: Path, key: CacheKey, settings: Settings, *, needs_library: bool
) -> AbstractContextManager[Entry | None]:
    """Return a context that yields the entry of another host, or None if this host is to build and upload it."""
    if not settings.remote_writes or settings.mode == "rebuild":
        return nullcontext()
    from jitload.cache import remote

    return remote.claim_build(cache_dir, key, settings, needs_library=needs_library)


def upload_entry(entry: Entry, key: CacheKey, settings: Settings) -> None:
    """Put an entry into the remote store if this process has just built the entry and the settings allow it."""
    if settings.remote_writes and entry.is_new:
        from jitload.cache.remote import put_entry

        put_entry(entry, key, settings)


def read_only_dirs(bundles: Sequence[Path], key: CacheKey, settings: Settings) -> Iterator[tuple[Path, CacheKey]]:
    """Yield (directory, key to find there) pairs for the bundles and the directories of `JITLOAD_CACHE_PATH`."""
    for bundle in bundles:
        try:
            check_cache_dir(bundle, settings, "Install the package as this user or as root.")
        except CacheError as error:  # only a warning, because the user did not choose the bundle
            warn_once(f"a bundle is skipped: {error}")
        else:
            yield bundle, bundle_key(key)
    for text in settings.cache_path:
        directory = resolve_dir(text, "JITLOAD_CACHE_PATH")
        if not directory.is_dir():
            warn_once(f"JITLOAD_CACHE_PATH names {directory}, which is not a directory; it is skipped")
            continue
        try:
            check_cache_dir(directory, settings, "Name a directory of your own.")
        except CacheError as error:
            raise CacheError(f"JITLOAD_CACHE_PATH: {error}") from error
        yield directory, key


def bundle_key(key: CacheKey) -> CacheKey:
    """Return a copy of a key to look for in bundles, which other machines may have built.

    The copy's unknown parts are the parts that depend on the machine. An entry may differ from the copy in these parts.

    If `key` itself has unknown parts, this machine cannot build the library. Then the architectures may differ, too. An
    entry is used if its code runs on the architectures of `key`.
    """
    return key._replace(unknown_parts=TOOL_PARTS if key.unknown_parts else TOOL_PARTS[1:])


# ---- bundles in installed packages -------------------------------------------------------------------------------


def find_bundles() -> tuple[Path, ...]:
    """Return the directories of the bundles on `sys.path`. They are looked for once."""
    return _find_bundles(tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _find_bundles(search_path: tuple[str, ...]) -> tuple[Path, ...]:
    bundles: dict[Path, None] = {}
    # Relative paths in `sys.path` are skipped, because packages are not installed in the working directory.
    for directory in filter(os.path.isabs, search_path):
        with suppress(OSError):
            names = sorted(os.listdir(f"{directory}/{BUNDLES_DIR}"))
            bundles |= dict.fromkeys(Path(directory, BUNDLES_DIR, name) for name in names)
    return tuple(bundle for bundle in bundles if bundle.is_dir())
