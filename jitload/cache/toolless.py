"""A request and a cache in, the keys of entries out that fit it, on a machine that lacks the tools to build it.

Which compiler and which NVRTC made a library is in its key, so that another one makes another library. Where there is
none, nothing else could be made, and the key cannot be known: then everything else must be the same, part by part.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jitload.cache.entry import KEY_DIR, newest_first, read_manifest
from jitload.cache.inputs import is_settled
from jitload.cache.recipe import SCHEMA, Recipe, describe_parts
from jitload.errors import ToolchainError
from jitload.settings import Settings
from jitload.toolchain.driver import driver_version
from jitload.toolchain.identity import cpu_identity

_MAJOR = re.compile(r"(?:cuda_nvrtc(?:_cu\d+)?-|toolkit |wheel |nvcc )(\d+)")
_log = logging.getLogger(__name__)


def keys_alike(cache_dir: Path, recipe: Recipe, settings: Settings) -> Iterator[str]:
    """Yield the keys of entries that differ from a recipe in nothing but its unknown parts, the newest first."""
    wanted = describe_parts(recipe)
    found = []
    for key, manifest in _manifests(cache_dir, recipe.name, settings):
        if differences(wanted, manifest["parts"], recipe, settings):
            continue
        found.append((manifest["created"], key, manifest["parts"]))
    for _, key, parts in sorted(found, key=lambda row: row[:2], reverse=True):
        made_by = " | ".join(str(parts[label]) for label in recipe.unknown if parts[label]).replace("\n", ", ")
        _log.info("%s-%s fits but for tools that are not here; it was made with %s", recipe.name, key[:12], made_by)
        yield key


def differences(
    wanted: Mapping[str, Any], parts: Mapping[str, Any], recipe: Recipe, settings: Settings
) -> tuple[str, ...]:
    """Return the labels of the parts in which an entry is not what a recipe asks for."""
    return tuple(
        label
        for label in dict.fromkeys((*wanted, *parts))
        if wanted.get(label) != parts.get(label)
        and not (label in recipe.unknown and _may_be(label, parts.get(label), settings))
    )


def _may_be(label: str, value: Any, settings: Settings) -> bool:
    """Tell whether an entry's tool is one that this machine may have been meant to have."""
    if not isinstance(value, str):
        return False
    if label == "cpu":  # what `-march=native` meant there
        return value in ("", cpu_identity())
    if label == "compiler":
        asked = _options_asked_for(settings)
        return not asked or asked == [line for line in value.splitlines() if line[:1] in "'\""][: len(asked)]
    major = _MAJOR.search(value)
    if major and settings.nvrtc.isdigit() and major[1] != settings.nvrtc:
        return False
    driver = driver_version() if major else None
    return not (major and driver) or int(major[1]) <= driver[0]


def _options_asked_for(settings: Settings) -> list[str]:
    """Return the options that come with the command of the compiler, as its identity has them."""
    try:
        return [repr(word) for word in shlex.split(settings.cxx)[1:]]
    except ValueError as error:
        raise ToolchainError(f"JITLOAD_CXX or CXX is {settings.cxx!r}, which is not a command: {error}") from error


def _manifests(cache_dir: Path, name: str, settings: Settings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the keys under a name in a cache, each with the manifest of its newest entry that can be read."""
    try:
        found = os.stat(cache_dir)
        read = _keys if is_settled(found, time.time_ns()) else _keys.__wrapped__
        keys = read(str(cache_dir), found.st_mtime_ns).get(name, ())
    except OSError:
        return
    for key in keys:
        if manifest := _manifest(cache_dir / f"{name}-{key}", key, settings):
            yield key, manifest


@functools.lru_cache(maxsize=8)
def _keys(cache_dir: str, _changed_ns: int) -> Mapping[str, tuple[str, ...]]:
    """Return the keys in a cache by name; read once, however many entries are looked for, until it changes."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in os.listdir(cache_dir):
        if match := KEY_DIR.fullmatch(entry):
            found[match[1]] = (*found.get(match[1], ()), match[2])
    return found


def _manifest(key_dir: Path, key: str, settings: Settings) -> Mapping[str, Any] | None:
    try:
        for leaf in newest_first(os.listdir(key_dir)):
            manifest = read_manifest(key_dir / leaf, settings)
            if manifest["schema"] == SCHEMA and manifest["key"] == key and _is_told(manifest):
                return manifest
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        _log.warning("cache entry %s cannot be used (%s); it is passed over", key_dir, problem)
    return None


def _is_told(manifest: Mapping[str, Any]) -> bool:
    return isinstance(manifest["parts"], dict) and isinstance(manifest["created"], int)
