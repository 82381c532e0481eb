"""Finds cached libraries (entries) that other tools made, by the digits of the key that do not depend on the tools.

The key names the compiler and the NVRTC that made a library, because another tool makes a different library. A machine
without these tools cannot make a library, so it may use an entry whichever tools made it. An entry of a bundle may also
be used whichever tools made it, because the author of the package built it for machines with any tools. All other parts
of the key must be equal.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitload.cache.entry import names_in, newest_first, read_manifest
from jitload.cache.key import CacheKey, describe_parts, part_text
from jitload.settings import Settings
from jitload.toolchain.arch import CPU, capability_of, driver_version, is_ptx, runs_on
from jitload.toolchain.fingerprints import cpu_identity
from jitload.toolchain.host import split_command

_CUDA_MAJOR = re.compile(r"(?:cuda_nvrtc(?:_cu\d+)?-|toolkit |wheel |nvcc )(\d+)")
_log = logging.getLogger(__name__)


def matching_keys(cache_dir: Path, key: CacheKey, settings: Settings) -> Iterator[CacheKey]:
    """Yield the keys in a cache whose entries may be used for `key`.

    These keys ask for the same as `key`. They differ from `key` only in the parts `key.unknown_parts`, and only by
    values that are acceptable on this machine. Keys for the newest architecture come first. For the same architecture,
    the key of the latest build comes first. Keys without a readable manifest come last.
    """
    key_dirs = [key_dir for key_dir in dirs_of_keys(cache_dir, key.name) if key_dir.name.endswith(key.asked)]
    own = describe_parts(key) if key_dirs else {}
    matches = []
    for key_dir in key_dirs:
        manifest = newest_manifest(key_dir)
        parts = manifest.get("parts", own)
        if not differing_parts(own, parts, key, settings):
            matches.append((bool(manifest), _newest_arch(parts), manifest.get("created"), key_dir.name[-64:], parts))
    for _, _, _, digest, parts in sorted(matches, key=lambda match: match[:4], reverse=True):
        tools = " | ".join(part_text(parts[label]) for label in key.unknown_parts if parts.get(label))
        _log.info("%s-%s is used although other tools built it: %s", key.name, digest[:12], tools)
        yield key._replace(digest=digest, unknown_parts=())


def dirs_of_keys(cache_dir: Path, name: str) -> list[Path]:
    """Return the directories of the keys with a name in a cache."""
    return [cache_dir / key_dir for key_dir in names_in(cache_dir) if key_dir[:-65] == name]


def newest_manifest(key_dir: Path) -> dict[str, Any]:
    """Return the newest readable manifest of a key's entries, which all have the same parts, or {} if there is none."""
    for leaf_name in newest_first(names_in(key_dir)):
        with suppress(OSError, ValueError, RecursionError):
            manifest = read_manifest(key_dir / leaf_name)
            if isinstance(manifest.get("parts"), dict) and isinstance(manifest.get("created"), int):
                return manifest
    return {}


def _newest_arch(parts: Mapping[str, Any]) -> tuple[bool, int, str]:
    """Return a value that sorts libraries: those with machine code after those with nothing but PTX."""
    archs = (arch for arch in parts.get("archs") or () if arch != CPU)
    return max(((not is_ptx(arch), *capability_of(arch)) for arch in archs), default=(False, 0, ""))


def differing_parts(
    parts: Mapping[str, Any], entry_parts: Mapping[str, Any], key: CacheKey, settings: Settings
) -> tuple[str, ...]:
    """Return the labels of the parts, such as "archs", that prevent the use of an entry for a key.

    `parts` are the parts of `key`, and `entry_parts` are those of the entry's key, both by label. The parts
    `key.unknown_parts` may differ if the entry's value is acceptable on this machine.
    """
    return tuple(
        label
        for label in dict.fromkeys((*parts, *entry_parts))
        if parts.get(label) != entry_parts.get(label)
        and not (
            label in key.unknown_parts and _is_acceptable(label, parts.get(label), entry_parts.get(label), settings)
        )
    )


def _is_acceptable(label: str, own: Any, value: Any, settings: Settings) -> bool:
    """Return whether an entry's part `label` may be `value` if the request's part is `own`."""
    if label == "archs":
        return bool(own) and isinstance(value, list) and all(_is_served(arch, value) for arch in own)
    if label == "gpu_check" or not isinstance(value, str):
        return label == "gpu_check"  # NVRTC only checks a CPU kernel, whose code stays the same
    if label == "libc":  # a program linked with an older C library runs with a newer one
        return isinstance(own, str) and _is_older_libc(value, own)
    if label == "cpu":  # the CPU for which `-march=native` compiled the entry, or ""
        return value in ("", cpu_identity())
    if label == "compiler":
        options = [repr(word) for word in split_command(settings.cxx)[1:]]  # quoted as in the compiler's identity
        return not options or options == [line for line in value.splitlines() if line[:1] in "'\""][: len(options)]
    return _is_acceptable_nvrtc(value, settings)


def _is_acceptable_nvrtc(identity: str, settings: Settings) -> bool:
    """Return whether the code of an NVRTC may be used on this machine.

    The driver must run the code, and `JITLOAD_NVRTC` must not ask for another major version.
    """
    major = _CUDA_MAJOR.search(identity)
    if major and settings.nvrtc.isdigit() and major[1] != settings.nvrtc:
        return False
    driver = driver_version() if major else None
    return not (major and driver) or int(major[1]) <= driver[0]


def _is_served(arch: str, entry_archs: Sequence[str]) -> bool:
    if arch == CPU:
        return CPU in entry_archs
    return any(runs_on(other, arch) for other in entry_archs if other != CPU)


def _is_older_libc(entry_libc: str, own_libc: str) -> bool:
    """Return whether `entry_libc`, such as "glibc 2.36", has the same name as `own_libc` and is not newer."""
    names = [text.partition(" ")[0] for text in (entry_libc, own_libc)]
    entry_version, own_version = ([int(n) for n in re.findall(r"\d+", text)] for text in (entry_libc, own_libc))
    return names[0] == names[1] and entry_version <= own_version
