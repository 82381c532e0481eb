"""Caches that came inside installed packages, found by the entry points of the group `jitload.bundles`.

    [project.entry-points."jitload.bundles"]
    my_package = "my_package.kernels"

The directory `my_package/kernels` is a cache, filled by `jitload cache unpack --dir`. The package is not imported; and
`importlib.metadata`, which would find it as well, is too slow for the way of a hit.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitload.settings import recall, remember, warn_once

GROUP = "jitload.bundles"
_INFO = (".dist-info", ".egg-info")
_MEMORY = ".tools/bundles"
_MOST_PLACES = 200
_unwritten: dict[Path, dict[str, Any]] = {}


def find_bundles(cache_dir: Path) -> tuple[Path, ...]:
    """Return the directories of bundles of the packages that can be imported; looked for once in a process."""
    return _find_bundles(tuple(sys.path), cache_dir)


@functools.lru_cache(maxsize=8)
def _find_bundles(search: tuple[str, ...], cache_dir: Path) -> tuple[Path, ...]:
    """Look through the directories that have changed since the cache was told what is in them."""
    known = _recall(cache_dir / _MEMORY)
    found: dict[str, Any] = {}
    for place in dict.fromkeys(filter(os.path.isabs, search)):  # nothing is installed in the working directory
        with suppress(OSError):
            state = os.stat(place).st_mtime_ns
            kept = known.get(place)
            found[place] = kept if kept and kept[0] == state else [state, _declared(place)]
    if not found.items() <= known.items():
        _unwritten[cache_dir] = {**known, **found}
    names = dict.fromkeys(name for _, declared in found.values() for name in declared)
    return tuple(directory for name in names if (directory := _place_of(name)))


def remember_bundles(cache_dir: Path) -> None:
    """Tell the cache what was found: after a build, since a hit writes nothing."""
    if (found := _unwritten.pop(cache_dir, None)) is None:
        return
    remember(cache_dir / _MEMORY, json.dumps(dict(list(found.items())[-_MOST_PLACES:])))


def _recall(memory: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        known = json.loads(recall(memory))
        if isinstance(known, dict) and all(_is_row(row) for row in known.values()):
            return known
    return {}


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[1], list)
        and all(isinstance(name, str) for name in row[1])
    )


def _declared(place: str) -> list[str]:
    """Return what the packages installed in a directory name as bundles."""
    found: list[str] = []
    with suppress(OSError):
        for info in sorted(name for name in os.listdir(place) if name.endswith(_INFO)):
            path = Path(place, info, "entry_points.txt")
            with suppress(OSError, ValueError):
                found += _bundles_in(path, path.read_text(encoding="utf-8"))
    return found


def _bundles_in(path: Path, text: str) -> list[str]:
    if GROUP not in text:
        return []
    from configparser import ConfigParser, Error

    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
        return list(parser[GROUP].values())
    except (Error, KeyError) as error:
        warn_once(f"{path} has no readable entry points ({error}); its bundle is passed over")
        return []


def _place_of(name: str) -> Path | None:
    """Return the directory that `package.directory` means; the package is found and not imported."""
    from importlib.util import find_spec

    package, *rest = name.replace(":", ".").split(".")
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(package) if all(part.isidentifier() for part in (package, *rest)) else None
        for root in (spec.submodule_search_locations if spec else None) or ():
            if (place := Path(root, *rest).absolute()).is_dir():
                return place
    warn_once(f"the bundle {name!r}, an entry point of {GROUP}, is no directory of a package; it is passed over")
    return None
