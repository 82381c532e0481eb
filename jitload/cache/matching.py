"""Finds entries on a machine that lacks a tool, by the parts of the key that do not depend on the tool.

The key names the compiler and the NVRTC that made a library, because another tool makes a different library. On a
machine without them no other library could be made, so an entry may be used whichever tools made it. Every other part
of its key must be the same.
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

from jitload.cache.dependencies import is_settled
from jitload.cache.entry import KEY_DIR_NAME, newest_first, read_manifest
from jitload.cache.key import SCHEMA, CacheKey, describe_parts
from jitload.errors import ToolchainError
from jitload.settings import Settings
from jitload.toolchain.arch import driver_version
from jitload.toolchain.host import cpu_identity

_CUDA_MAJOR = re.compile(r"(?:cuda_nvrtc(?:_cu\d+)?-|toolkit |wheel |nvcc )(\d+)")
_log = logging.getLogger(__name__)


def matching_digests(cache_dir: Path, key: CacheKey, settings: Settings) -> Iterator[str]:
    """Yield the digests of keys that differ from this one only in parts that are unknown here, the newest first."""
    parts = describe_parts(key)
    matches = [
        (manifest["created"], digest, manifest["parts"])
        for digest, manifest in _manifests(cache_dir, key.name, settings)
        if not differing_parts(parts, manifest["parts"], key, settings)
    ]
    for _, digest, its_parts in sorted(matches, key=lambda match: match[:2], reverse=True):
        tools = " | ".join(str(its_parts[label]) for label in key.unknown_parts if its_parts[label])
        tools = tools.replace("\n", ", ")
        _log.info("%s-%s is used though this machine lacks the tools that made it: %s", key.name, digest[:12], tools)
        yield digest


def differing_parts(
    parts: Mapping[str, Any], entry_parts: Mapping[str, Any], key: CacheKey, settings: Settings
) -> tuple[str, ...]:
    """Return the labels of the parts that make an entry unusable for a key, whose parts are `parts`."""
    return tuple(
        label
        for label in dict.fromkeys((*parts, *entry_parts))
        if parts.get(label) != entry_parts.get(label)
        and not (label in key.unknown_parts and _is_acceptable(label, entry_parts.get(label), settings))
    )


def _is_acceptable(label: str, value: Any, settings: Settings) -> bool:
    """Return whether an entry made by a tool that this machine lacks may be used."""
    if not isinstance(value, str):
        return False
    if label == "cpu":  # what `-march=native` meant where the entry was built
        return value in ("", cpu_identity())
    if label == "compiler":
        options = _compiler_options(settings)
        return not options or options == [line for line in value.splitlines() if line[:1] in "'\""][: len(options)]
    major = _CUDA_MAJOR.search(value)
    if major and settings.nvrtc.isdigit() and major[1] != settings.nvrtc:
        return False
    driver = driver_version() if major else None
    return not (major and driver) or int(major[1]) <= driver[0]


def _compiler_options(settings: Settings) -> list[str]:
    """Return the options in the compiler's command, as the compiler's identity has them."""
    try:
        return [repr(word) for word in shlex.split(settings.cxx)[1:]]
    except ValueError as error:
        raise ToolchainError(f"JITLOAD_CXX or CXX is {settings.cxx!r}, which is not a command: {error}") from error


def _manifests(cache_dir: Path, name: str, settings: Settings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the digests of the keys with a name in a cache, each with its newest readable manifest."""
    try:
        status = os.stat(cache_dir)
        list_digests = _digests_by_name if is_settled(status, time.time_ns()) else _digests_by_name.__wrapped__
        digests = list_digests(str(cache_dir), status.st_mtime_ns).get(name, ())
    except OSError:
        return
    for digest in digests:
        if manifest := _newest_manifest(cache_dir / f"{name}-{digest}", digest, settings):
            yield digest, manifest


@functools.lru_cache(maxsize=8)
def _digests_by_name(cache_dir: str, _mtime_ns: int) -> Mapping[str, tuple[str, ...]]:
    """Return the digests of the keys in a cache by name; the directory is read again only when it has changed."""
    digests: dict[str, tuple[str, ...]] = {}
    for key_dir in os.listdir(cache_dir):
        if match := KEY_DIR_NAME.fullmatch(key_dir):
            digests[match[1]] = (*digests.get(match[1], ()), match[2])
    return digests


def _newest_manifest(key_dir: Path, digest: str, settings: Settings) -> Mapping[str, Any] | None:
    try:
        for leaf_name in newest_first(os.listdir(key_dir)):
            manifest = read_manifest(key_dir / leaf_name, settings)
            is_usable = isinstance(manifest["parts"], dict) and isinstance(manifest["created"], int)
            if manifest["schema"] == SCHEMA and manifest["key"] == digest and is_usable:
                return manifest
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        _log.warning("cache entry %s cannot be used (%s); it is skipped", key_dir, problem)
    return None
