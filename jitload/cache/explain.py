"""Explains why a cached build was not used: which parts of its key differ, and which files it read have changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jitload.cache.dependencies import from_manifest
from jitload.cache.entry import names_in, newest_first, read_manifest
from jitload.cache.key import CacheKey, describe_parts, part_text
from jitload.cache.matching import differing_parts, dirs_of_keys, newest_manifest
from jitload.cache.remote import hide_credentials, last_failure
from jitload.cache.tiers import find_bundles, read_only_dirs
from jitload.errors import CacheError, ToolchainError
from jitload.settings import Settings

_LONGEST_SHOWN = 160
_SOURCE_PARTS = frozenset({"kind", "sources", "image"})  # if one differs, the library is of another program
_MAX_COMPARED = 500  # only so many keys of each cache are compared with the requested one: those that were built last
_SearchedDirs = list[tuple[Path, CacheKey]]


def explain_miss(cache_dir: Path, key: CacheKey, settings: Settings) -> str:
    """Return the error message for a missing entry if `JITLOAD_MODE` forbids building it.

    The message says how the most similar entry differs.
    """
    searched = _searched_dirs(cache_dir, key, settings)
    store, store_problem = hide_credentials(settings.remote), last_failure(settings)
    other_tiers = [
        *(str(directory) for directory, _ in searched[1:]),
        *([store] if store and not store_problem else []),
    ]
    tiers = f"{cache_dir}, nor in {', '.join(other_tiers)}" if other_tiers else cache_dir
    lines = [f"module {key.name!r} is not in the cache {tiers}, and JITLOAD_MODE={settings.mode} does not build it"]
    nearest = _nearest_key(searched, settings)
    lines += [f"    {line}" for line in (_reasons(nearest) if nearest else ["There is no entry of that name."])]
    if store_problem:
        lines.append(f"    The remote cache {store} is not used for a minute: {store_problem}")
    if key.unknown_parts:
        labels = ", ".join(key.unknown_parts)
        lines.append(f"    This machine lacks tools, so these parts of the key are not compared: {labels}.")
    lines.append("    Build it in advance with JITLOAD_MODE=auto, and ship the cache: jitload cache pack, unpack.")
    return "\n".join(lines)


def raise_unbuildable(cache_dir: Path, key: CacheKey, settings: Settings, problem: ToolchainError) -> NoReturn:
    """Raise the error for a library that is in no cache and cannot be built because a tool is missing.

    The error says why a cached library of the same sources does not fit.
    """
    if settings.mode == "load-only":
        raise CacheError(explain_miss(cache_dir, key, settings)) from problem
    nearest = _nearest_key(_searched_dirs(cache_dir, key, settings), settings)
    if nearest is None or nearest.has_other_sources:
        raise problem
    title = f"{problem}\nThe libraries of that name in {nearest.key_dir.parent} do not fit:"
    raise ToolchainError("\n    ".join((title, *_reasons(nearest)))) from problem


def _searched_dirs(cache_dir: Path, key: CacheKey, settings: Settings) -> _SearchedDirs:
    """Return the directories to search for an entry, each in a pair with the key to look for there."""
    return [(cache_dir, key), *read_only_dirs(find_bundles(), key, settings)]


class _NearestKey(NamedTuple):
    """The key of the requested name that differs least from the requested key, and a line for each difference."""

    has_other_sources: bool
    lines: list[str]
    key_dir: Path
    requested: CacheKey


def _nearest_key(searched: _SearchedDirs, settings: Settings) -> _NearestKey | None:
    """Return the nearest key that has entries. Keys of the same sources come first."""
    keys = []
    for cache_dir, key in searched:
        own = describe_parts(key)
        dated = sorted(dirs_of_keys(cache_dir, key.name), key=_modification_time, reverse=True)
        for key_dir in dated[:_MAX_COMPARED]:
            if parts := newest_manifest(key_dir).get("parts", own if key_dir.name.endswith(key.asked) else None):
                labels = differing_parts(own, parts, key, settings)
                is_other = not _SOURCE_PARTS.isdisjoint(label.partition(".")[0] for label in labels)
                lines = [f"{label}: {_shown(parts, label, own)} and {_shown(own, label, parts)}" for label in labels]
                keys.append(_NearestKey(is_other, lines, key_dir, key))
    return min(keys, key=lambda near: (near.has_other_sources, len(near.lines)), default=None)


def _shown(parts: Mapping[str, Any], label: str, compared_parts: Mapping[str, Any]) -> str:
    """Return the part `label` of `parts` as text.

    If this part is a list of the same length in `compared_parts`, show only the items that differ.
    """
    if label not in parts:
        return "absent"
    value, compared = parts[label], compared_parts.get(label)
    if isinstance(value, list) and isinstance(compared, list) and len(value) == len(compared):
        value = [item for item, compared_item in zip(value, compared, strict=True) if item != compared_item]
    text = part_text(value) or "nothing"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _modification_time(path: Path) -> float:
    with suppress(OSError):
        return os.stat(path).st_mtime
    return 0.0


def _reasons(nearest: _NearestKey) -> list[str]:
    """Return lines that say why the entries of the nearest key are not used."""
    if not nearest.lines:
        return _changed_files(nearest.key_dir, nearest.requested) or ["There is an entry; the log says what is wrong."]
    return [
        f"The nearest entry, {nearest.key_dir.name[:-52]}, has another key. These are its parts and the request's:",
        *(f"  {line}" for line in nearest.lines),
    ]


def _changed_files(key_dir: Path, key: CacheKey) -> list[str]:
    """Return a line for each file that has changed since a build for a key."""
    lines: list[str] = []
    for leaf_name in newest_first(names_in(key_dir)):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            manifest = read_manifest(key_dir / leaf_name)
            read = (from_manifest(row, key.anchors) for row in manifest["dependencies"])
            changed = [file for file in read if not file.is_unchanged()]
            lines += [f"{'New' if file.size < 0 else 'Changed'} since the build: {file.path}" for file in changed]
            if manifest["anchors"] is not None and tuple(manifest["anchors"]) != key.anchors:
                lines.append(
                    f"Its code contains paths that the request does not have: {', '.join(manifest['anchors'])}"
                )
    return list(dict.fromkeys(lines))
