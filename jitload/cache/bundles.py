"""Finds caches that came inside installed packages, by the entry points of the group `jitload.bundles`.

    [project.entry-points."jitload.bundles"]
    my_package = "my_package.kernels"

The directory `my_package/kernels` is a cache, filled by `jitload prebuild --bundle`. The package is not imported.
`importlib.metadata` would find the entry points, too, but its import takes too long for a cache hit.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitload.errors import warn_once
from jitload.files import load_text, save_text

GROUP = "jitload.bundles"
_METADATA_SUFFIXES = (".dist-info", ".egg-info")
_MEMORY = ".tools/bundles"
_MAX_REMEMBERED = 200
_unwritten: dict[Path, dict[str, Any]] = {}  # by cache directory, what was found since it was last recorded


def find_bundles(cache_dir: Path) -> tuple[Path, ...]:
    """Return the bundles of the packages that can be imported; they are looked for once per process."""
    return _find_bundles(tuple(sys.path), cache_dir)


@functools.lru_cache(maxsize=8)
def _find_bundles(search_path: tuple[str, ...], cache_dir: Path) -> tuple[Path, ...]:
    """Read the metadata in the directories that have changed since their bundles were recorded in the cache."""
    remembered = _recall(cache_dir / _MEMORY)
    current: dict[str, Any] = {}
    for directory in dict.fromkeys(filter(os.path.isabs, search_path)):  # nothing is installed in the working directory
        with suppress(OSError):
            mtime_ns = os.stat(directory).st_mtime_ns
            row = remembered.get(directory)
            current[directory] = row if row and row[0] == mtime_ns else [mtime_ns, _declared_in(directory)]
    if not current.items() <= remembered.items():
        _unwritten[cache_dir] = {**remembered, **current}
    names = dict.fromkeys(name for _, declared in current.values() for name in declared)
    return tuple(bundle for name in names if (bundle := _resolve(name)))


def remember_bundles(cache_dir: Path) -> None:
    """Record in the cache which bundles were found. This is done after a build, because a hit writes nothing."""
    if rows := _unwritten.pop(cache_dir, None):
        save_text(cache_dir / _MEMORY, json.dumps(dict(list(rows.items())[-_MAX_REMEMBERED:])))


def _recall(memory: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        rows = json.loads(load_text(memory))
        if isinstance(rows, dict) and all(map(_is_row, rows.values())):
            return rows
    return {}


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[1], list)
        and all(isinstance(name, str) for name in row[1])
    )


def _declared_in(directory: str) -> list[str]:
    """Return the names of the bundles that the packages installed in a directory declare."""
    names: list[str] = []
    with suppress(OSError):
        for metadata in sorted(name for name in os.listdir(directory) if name.endswith(_METADATA_SUFFIXES)):
            path = Path(directory, metadata, "entry_points.txt")
            with suppress(OSError, ValueError):
                names += _parse_entry_points(path, path.read_text(encoding="utf-8"))
    return names


def _parse_entry_points(path: Path, text: str) -> list[str]:
    if GROUP not in text:
        return []
    from configparser import ConfigParser, Error

    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
        return list(parser[GROUP].values())
    except (Error, KeyError) as error:
        warn_once(f"{path} has no readable entry points ({error}); its bundle is skipped")
        return []


def _resolve(name: str) -> Path | None:
    """Return the directory that `package.directory` names, without importing the package."""
    from importlib.util import find_spec

    package, *rest = name.replace(":", ".").split(".")
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(package) if all(part.isidentifier() for part in (package, *rest)) else None
        for root in (spec.submodule_search_locations if spec else None) or ():
            if (directory := Path(root, *rest).absolute()).is_dir():
                return directory
    warn_once(f"the bundle {name!r}, an entry point of {GROUP}, is not a directory of a package; it is skipped")
    return None
