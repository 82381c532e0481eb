"""Looks for a cached build in bundles of installed packages, shared directories, the local cache and a remote store.

These places, called tiers, are searched in this order, as far as they exist. New builds are published in the local
cache.

A bundle is a cache inside an installed package. The package declares it as an entry point:

    [project.entry-points."jitload.bundles"]
    my_package = "my_package.kernels"

The directory `my_package/kernels` is a cache that `jitload prebuild --bundle` fills. To find the bundle, the package is
not imported. `importlib.metadata` would find the entry points, too, but importing `importlib.metadata` takes too long
for a cache hit.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from jitload.cache.entry import Entry, check_cache_dir, find_in_dir, resolve_dir
from jitload.cache.key import TOOL_PARTS, CacheKey
from jitload.errors import CacheError, warn_once
from jitload.settings import Settings
from jitload.toolchain.private_files import load_json, save_json

_ENTRY_POINT_GROUP = "jitload.bundles"
_METADATA_SUFFIXES = (".dist-info", ".egg-info")
_BUNDLES_FILE = ".tools/bundles"
_MAX_REMEMBERED_DIRS = 200
_Row = tuple[int, tuple[str, ...]]  # a directory's modification time (ns), and the bundles that its packages declare
_unwritten: dict[Path, dict[str, _Row]] = {}  # cache directory -> rows that `remember_bundles` will write


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
    bundles = find_bundles(cache_dir)
    record = None  # the library for a record in a read-only directory is in the local cache
    if not is_rebuild and (bundles or settings.cache_path):
        for directory, tier_key in read_only_dirs(bundles, key, settings):
            if entry := find_in_dir(directory, tier_key, settings, is_read_only=True, needs_library=needs_library):
                if not entry.is_record:
                    return entry
                record = record or entry
    if entry := find_in_dir(cache_dir, key, settings, needs_library=needs_library or record is not None):
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


def find_bundles(cache_dir: Path) -> tuple[Path, ...]:
    """Return the directories of the bundles (caches in installed packages) that packages on `sys.path` declare.

    The results of earlier searches are read from `cache_dir`. The return value is cached.
    """
    return _find_bundles(tuple(sys.path), cache_dir)


@functools.lru_cache(maxsize=8)
def _find_bundles(search_path: tuple[str, ...], cache_dir: Path) -> tuple[Path, ...]:
    """Return the bundles. Read package metadata only in directories that changed since their bundles were recorded."""
    remembered = _recall_bundles(cache_dir / _BUNDLES_FILE)
    current: dict[str, _Row] = {}
    # Relative paths in `sys.path` are skipped, because packages are not installed in the working directory.
    for directory in dict.fromkeys(filter(os.path.isabs, search_path)):
        with suppress(OSError):
            mtime_ns = os.stat(directory).st_mtime_ns
            row = remembered.get(directory)
            current[directory] = row if row and row[0] == mtime_ns else (mtime_ns, _declared_in(directory))
    if not current.items() <= remembered.items():
        _unwritten[cache_dir] = {**remembered, **current}
    names = dict.fromkeys(name for _, declared in current.values() for name in declared)
    return tuple(bundle for name in names if (bundle := _bundle_dir(name)))


def remember_bundles(cache_dir: Path) -> None:
    """Record the found bundles in the cache. This is done after a build, because a cache hit writes nothing."""
    if rows := _unwritten.pop(cache_dir, None):
        save_json(cache_dir / _BUNDLES_FILE, dict(list(rows.items())[-_MAX_REMEMBERED_DIRS:]))


def _recall_bundles(memory: Path) -> dict[str, _Row]:
    """Return the rows that `remember_bundles` wrote, by directory, or {} if the file cannot be read."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        rows = load_json(memory).items()
        return {directory: (mtime_ns, tuple(map(str, names))) for directory, (mtime_ns, names) in rows}
    return {}


def _declared_in(directory: str) -> tuple[str, ...]:
    names: list[str] = []
    with suppress(OSError):
        for metadata in sorted(name for name in os.listdir(directory) if name.endswith(_METADATA_SUFFIXES)):
            path = Path(directory, metadata, "entry_points.txt")
            with suppress(OSError, ValueError):
                names += _parse_entry_points(path, path.read_text(encoding="utf-8"))
    return tuple(names)


def _parse_entry_points(path: Path, text: str) -> list[str]:
    if _ENTRY_POINT_GROUP not in text:
        return []
    from configparser import ConfigParser, Error

    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
        return list(parser[_ENTRY_POINT_GROUP].values())
    except (Error, KeyError) as error:
        warn_once(f"{path} has no readable entry points ({error}); its bundle is skipped")
        return []


def _bundle_dir(name: str) -> Path | None:
    """Return the directory of the bundle `package.directory`, or warn and return None.

    The package is not imported.
    """
    from importlib.util import find_spec

    package, *rest = name.replace(":", ".").split(".")
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(package) if all(part.isidentifier() for part in (package, *rest)) else None
        for root in (spec.submodule_search_locations if spec else None) or ():
            if (directory := Path(root, *rest).absolute()).is_dir():
                return directory
    warn_once(
        f"the bundle {name!r}, an entry point of {_ENTRY_POINT_GROUP}, is not a directory of a package; it is skipped"
    )
    return None
