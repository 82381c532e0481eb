"""Explains why a cached build was not used: which parts of its key differ, and which files it read have changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from jitload.cache.dependencies import from_manifest
from jitload.cache.entry import (
    check_cache_dir,
    check_entry_dir,
    check_file,
    key_dir_of,
    newest_first,
    read_manifest,
    resolve_dir,
)
from jitload.cache.key import CacheKey, describe_parts
from jitload.cache.listing import StoredEntry, newest_key_dirs
from jitload.cache.matching import differing_parts, matching_digests
from jitload.cache.remote import can_list, hide_credentials, last_failure
from jitload.cache.tiers import bundle_key, find_bundles
from jitload.errors import CacheError, ToolchainError
from jitload.settings import Settings

_LONGEST_SHOWN = 160
_SOURCE_PARTS = frozenset({"kind", "sources", "unit", "image"})  # if one differs, the library is of another program
_MAX_COMPARED = 500  # only so many keys of each cache are compared with the requested one: those that were built last


def compare_parts(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return a line for each part in which two keys differ. Each argument maps the labels of parts to values."""
    labels = dict.fromkeys((*first, *second))
    return [
        f"{label}: {_shown(first, label, second)} and {_shown(second, label, first)}"
        for label in labels
        if first.get(label) != second.get(label)
    ]


def _shown(parts: Mapping[str, Any], label: str, compared_parts: Mapping[str, Any]) -> str:
    """Return the part `label` of `parts` as text.

    If this part is a list of the same length in `compared_parts`, show only the items that differ.
    """
    if label not in parts:
        return "absent"
    value, compared = parts[label], compared_parts.get(label)
    if isinstance(value, list) and isinstance(compared, list) and len(value) == len(compared):
        value = [item for item, compared_item in zip(value, compared, strict=True) if item != compared_item]
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = " | ".join(text.splitlines()) or "nothing"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def compare_entries(first: StoredEntry, second: StoredEntry) -> list[str]:
    """Return a line for each difference between the keys of two entries. If the keys are equal, compare the headers."""
    manifests = first.manifest(), second.manifest()
    lines = compare_parts(*map(_parts, manifests))
    names = [manifest.get("name") for manifest in manifests]
    if names[0] != names[1]:
        lines.insert(0, f"name: {names[0]} and {names[1]}")
    return lines or compare_parts(*map(_dependency_digests, manifests))


def _parts(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = manifest.get("parts")
    return parts if isinstance(parts, dict) else {}


def _dependency_digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    rows = manifest.get("dependencies")
    return {
        f"header {row['path']}": f"sha256:{row['digest']}" if row["size"] >= 0 else "absent"
        for row in (rows if isinstance(rows, list) else [])
    }


# ---- a miss ----------------------------------------------------------------------------------------------------


def explain_miss(cache_dir: Path, key: CacheKey, settings: Settings) -> str:
    """Return the error message for a missing entry if `JITLOAD_MODE` forbids building it.

    The message says how the most similar entry differs.
    """
    bundles = find_bundles(cache_dir)
    store, store_problem = hide_credentials(settings.remote), _store_problem(cache_dir, key, settings)
    other_tiers = [*map(str, bundles), *settings.cache_path, *([store] if store and not store_problem else [])]
    tiers = f"{cache_dir}, nor in {', '.join(other_tiers)}" if other_tiers else cache_dir
    lines = [f"module {key.name!r} is not in the cache {tiers}, and JITLOAD_MODE={settings.mode} does not build it"]
    reasons = _reasons(_searched_dirs(cache_dir, bundles, key, settings), key, settings)
    lines += [f"    {line}" for line in reasons or ["There is no entry of that name."]]
    if store_problem:
        lines.append(f"    The remote cache {store} {store_problem}")
    if key.unknown_parts:
        labels = ", ".join(key.unknown_parts)
        lines.append(f"    This machine lacks tools, so these parts of the key are not compared: {labels}.")
    lines.append("    Build it in advance with JITLOAD_MODE=auto, and ship the cache: jitload cache pack, unpack.")
    return "\n".join(lines)


def _store_problem(cache_dir: Path, key: CacheKey, settings: Settings) -> str:
    """Return why the remote store has not said whether it has a key. Return "" if it has, or if there is no store."""
    if not settings.remote:
        return ""
    if problem := last_failure(cache_dir, settings):
        return f"is not used for a minute: {problem}"
    if key.unknown_parts and not can_list(settings):
        return "was not asked, because it has no list() and finds an entry only by its complete key."
    return ""


def raise_unbuildable(cache_dir: Path, key: CacheKey, settings: Settings, problem: ToolchainError) -> NoReturn:
    """Raise the error for a library that is in no cache and cannot be built because a tool is missing."""
    if settings.mode == "load-only":
        raise CacheError(explain_miss(cache_dir, key, settings)) from problem
    if explanation := explain_unbuildable(cache_dir, key, settings):
        raise ToolchainError(f"{problem}{explanation}") from problem
    raise problem


def explain_unbuildable(cache_dir: Path, key: CacheKey, settings: Settings) -> str:
    """Return the reasons why no cached library fits a key, or "" if no entry has the key's name and sources.

    This text is for a machine that cannot build the library.
    """
    searched = [
        (directory, its_key)
        for directory, its_key in _searched_dirs(cache_dir, find_bundles(cache_dir), key, settings)
        if _keys_named(directory, key.name, 1)
    ]
    nearest = _nearest_entry(searched, settings)
    if not searched or (nearest is not None and _distance(nearest[1])[0]):
        return ""
    reasons = _reasons(searched, key, settings, nearest) or ["None of them can be read; the log says why."]
    directories = ", ".join(str(directory) for directory, _ in searched)
    return "\n    ".join((f"\nThe libraries of that name in {directories} do not fit:", *reasons))


def _distance(lines: Sequence[str]) -> tuple[bool, int]:
    """Return whether the sources differ, and the number of differences, from the lines of `compare_parts`."""
    labels = {line.partition(":")[0].partition(".")[0] for line in lines}
    return not _SOURCE_PARTS.isdisjoint(labels), len(lines)


def _searched_dirs(
    cache_dir: Path, bundles: Sequence[Path], key: CacheKey, settings: Settings
) -> list[tuple[Path, CacheKey]]:
    """Return the directories to search for an entry, each in a pair with the key to look for there."""
    return [
        (cache_dir, key),
        *((bundle, bundle_key(key)) for bundle in bundles),
        *((resolve_dir(directory, "JITLOAD_CACHE_PATH"), key) for directory in settings.cache_path),
    ]


def _reasons(
    searched: Sequence[tuple[Path, CacheKey]],
    key: CacheKey,
    settings: Settings,
    nearest: tuple[Path, list[str]] | None = None,
) -> list[str]:
    """Return lines that say why no entry is used for a key, or [] if no entry of the key's name can be read.

    `searched` has the form of the result of `_searched_dirs`. `nearest` is the result of `_nearest_entry` if it is
    known.
    """
    for cache_dir, its_key in searched:
        for digest in (key.digest, *(matching_digests(cache_dir, its_key, settings) if its_key.unknown_parts else ())):
            if lines := _problems_of_key(key_dir_of(cache_dir, key, digest), key, settings):
                return lines
    nearest = nearest or _nearest_entry(searched, settings)
    if nearest is None:
        return []
    key_dir, lines = nearest
    if not lines:  # all parts are equal, but the entry is not trusted
        return _problems_of_key(key_dir, key, settings)
    return [
        f"The nearest entry, {key_dir.name[:-52]}, has another key. These are its parts and the request's:",
        *(f"  {line}" for line in lines),
    ]


def _nearest_entry(searched: Sequence[tuple[Path, CacheKey]], settings: Settings) -> tuple[Path, list[str]] | None:
    """Return the directory of the key that differs least from the requested one, and a line for each difference.

    Keys of the same sources come first. Only keys with the same name are compared. Return None if there is no such key.
    """
    nearest = None
    for cache_dir, key in searched:
        parts = describe_parts(key)
        for key_dir in _keys_named(cache_dir, key.name, _MAX_COMPARED):
            entry_parts = _parts_of_key(key_dir)
            if entry_parts is None:
                continue
            lines = _differences(parts, entry_parts, differing_parts(parts, entry_parts, key, settings))
            if nearest is None or _distance(lines) < _distance(nearest[1]):
                nearest = (key_dir, lines)
    return nearest


def _differences(parts: Mapping[str, Any], entry_parts: Mapping[str, Any], labels: Sequence[str]) -> list[str]:
    """Return a line for each of the parts `labels`, in which an entry's key differs from the requested key."""
    lines = compare_parts(
        *(
            {label: side[label] for label in labels if label in side and label != "archs"}
            for side in (entry_parts, parts)
        )
    )
    if "archs" in labels:
        has, needed = (", ".join(side.get("archs") or ("none",)) for side in (entry_parts, parts))
        lines.append(f"archs: this library has {has}; the request is for {needed}")
    return lines


def _keys_named(cache_dir: Path, name: str, count: int) -> Sequence[Path]:
    try:
        return newest_key_dirs(cache_dir, name, count)
    except CacheError:
        return []


def _parts_of_key(key_dir: Path) -> Mapping[str, Any] | None:
    """Return the parts of a key, which all of its entries record, or None if there is no readable entry."""
    with suppress(OSError):
        for leaf_name in newest_first(os.listdir(key_dir)):
            with suppress(OSError, ValueError, RecursionError):
                return _parts(read_manifest(key_dir / leaf_name))
    return None


def _problems_of_key(key_dir: Path, key: CacheKey, settings: Settings) -> list[str]:
    """Return lines that say what is wrong with the entries in a key's directory: changed files, damage, permissions."""
    lines: list[str] = []
    try:
        leaf_names = newest_first(path.name for path in key_dir.iterdir())
        check_cache_dir(key_dir.parent, settings, advice="")
        check_entry_dir(key_dir, key_dir.parent, settings)
    except FileNotFoundError:
        return []
    except PermissionError:
        return [_unreadable(key_dir)]
    except OSError as error:
        return [f"There is an entry that cannot be used: {key_dir}: {error}"]
    except CacheError as error:
        return [f"There is an entry, but {error}"]
    for leaf_name in leaf_names:
        try:
            check_entry_dir(key_dir / leaf_name, key_dir.parent, settings)
            lines += _problems_of_leaf(key_dir / leaf_name, key, settings)
        except PermissionError:
            lines.append(_unreadable(key_dir))
        except CacheError as error:
            lines.append(f"There is an entry, but {error}")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as damage:
            lines.append(f"There is an entry that cannot be used: {key_dir / leaf_name}: {damage}")
    return list(dict.fromkeys(lines))


def _unreadable(key_dir: Path) -> str:
    return f"There is an entry that this user may not read. Repair it with: chmod -R go+rX '{key_dir.parent}'"


def _problems_of_leaf(leaf_dir: Path, key: CacheKey, settings: Settings) -> list[str]:
    manifest = read_manifest(leaf_dir, settings)
    dependencies = [from_manifest(row, key.anchors) for row in manifest["dependencies"]]
    lines = [
        f"{'New' if dependency.size < 0 else 'Changed'} since the build: {dependency.path}"
        for dependency in dependencies
        if not dependency.is_unchanged()
    ]
    if manifest["anchors"] is not None and tuple(manifest["anchors"]) != key.anchors:
        lines.append(f"Its code contains paths that the request does not have: {', '.join(manifest['anchors'])}")
    check_file(leaf_dir / manifest["product"], manifest["size"], manifest["sha256"], settings)
    return lines
