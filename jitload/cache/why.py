"""Two entries, or a request and the entries there are: in which parts of their keys they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitload.cache.bundles import find_bundles
from jitload.cache.entry import check_file, key_dir_of, newest_first, read_manifest
from jitload.cache.inputs import fasten
from jitload.cache.inventory import Item, walk
from jitload.cache.recipe import Recipe, describe_parts
from jitload.cache.toolless import differences, keys_alike
from jitload.errors import CacheError
from jitload.settings import Settings, shown_url

_SHOWN = 160
_MOST_READ = 1000  # manifests of one name


def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a line for each part in which two manifests' parts differ; "the source" is shown by digest."""
    labels = dict.fromkeys((*one, *other))
    return [
        f"{label}: {_shown(one, label, other)} and {_shown(other, label, one)}"
        for label in labels
        if one.get(label) != other.get(label)
    ]


def _shown(parts: Mapping[str, Any], label: str, other: Mapping[str, Any]) -> str:
    """Return a part's value, of a long list only what the other has not."""
    if label not in parts:
        return "absent"
    value, against = parts[label], other.get(label)
    if isinstance(value, list) and isinstance(against, list) and len(value) == len(against):
        value = [item for item, its in zip(value, against, strict=True) if item != its]
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = " | ".join(text.splitlines()) or "nothing"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def compare_items(one: Item, other: Item) -> list[str]:
    """Return in what two entries differ: parts of their keys, and where those are the same, the headers they read."""
    first, second = one.manifest(), other.manifest()
    lines = compare(_parts(first), _parts(second))
    if first.get("name") != second.get("name"):
        lines.insert(0, f"name: {first.get('name')} and {second.get('name')}")
    return lines or compare(_headers(first), _headers(second))


def _parts(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = manifest.get("parts")
    return parts if isinstance(parts, dict) else {}


def _headers(manifest: Mapping[str, Any]) -> dict[str, str]:
    rows = manifest.get("headers")
    return {
        f"header {row['path']}": f"sha256:{row['digest']}" if row["size"] >= 0 else "absent"
        for row in (rows if isinstance(rows, list) else [])
    }


# ---- a miss ----------------------------------------------------------------------------------------------------


def explain_miss(cache_dir: Path, recipe: Recipe, settings: Settings) -> str:
    """Return the message of a miss that must not be built: how it differs from the nearest entry of its name."""
    bundles = find_bundles(cache_dir)
    others = ", ".join(
        (*map(str, bundles), *settings.cache_path, *((shown_url(settings.remote),) if settings.remote else ()))
    )
    where = f"{cache_dir}, nor in {others}" if others else cache_dir
    lines = [
        f"module {recipe.name!r} is not in the cache {where}, and JITLOAD_MODE={settings.mode} forbids to build it"
    ]
    places = (cache_dir, *bundles, *map(Path, settings.cache_path))
    lines += [f"    {line}" for line in _reasons(places, recipe, settings)]
    if recipe.unknown:
        unknown = ", ".join(recipe.unknown)
        lines.append(f"    This machine lacks tools, so that it does not matter what made an entry ({unknown}).")
    return "\n".join(
        [*lines, "    Build it ahead with JITLOAD_MODE=auto, and ship the cache: jitload cache pack, unpack."]
    )


def _reasons(places: Sequence[Path], recipe: Recipe, settings: Settings) -> list[str]:
    for cache_dir in places:
        for key in keys_alike(cache_dir, recipe, settings) if recipe.unknown else (recipe.key,):
            if lines := _changed_inputs(key_dir_of(cache_dir, recipe, key), recipe):
                return lines
    wanted, nearest = describe_parts(recipe), None
    items = sorted((item for place in places for item in _named(place, recipe.name)), key=lambda item: -item.used_s)
    for item in items[:_MOST_READ]:
        try:
            parts = _parts(item.manifest())
        except CacheError:
            continue
        labels = differences(wanted, parts, recipe, settings)
        lines = compare(*({label: row[label] for label in labels if label in row} for row in (parts, wanted)))
        if nearest is None or len(lines) < len(nearest[1]):
            nearest = (item, lines)
    if nearest is None:
        return ["There is no entry of that name."]
    item, lines = nearest
    return [
        f"The nearest entry, {item.name}-{item.key[:12]}, has another key (there, and here):",
        *(f"  {s}" for s in lines),
    ]


def _named(cache_dir: Path, name: str) -> Sequence[Item]:
    try:
        return list(walk(cache_dir, name))
    except CacheError:
        return []


def _changed_inputs(key_dir: Path, recipe: Recipe) -> list[str]:
    """Return which files have changed since the entries of this very key were built."""
    lines: list[str] = []
    try:
        leaves = newest_first(path.name for path in key_dir.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        return [_unreadable(key_dir)]
    for leaf in leaves:
        try:
            lines += _changed_since(key_dir / leaf, recipe)
        except PermissionError:
            lines.append(_unreadable(key_dir))
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as damage:
            lines.append(f"Its entry is there and damaged: {key_dir / leaf}: {damage}")
    return list(dict.fromkeys(lines))


def _unreadable(key_dir: Path) -> str:
    return f"It is there, and this user may not read it: chmod -R go+rX '{key_dir.parent}'"


def _changed_since(leaf_dir: Path, recipe: Recipe) -> list[str]:
    manifest = read_manifest(leaf_dir)
    headers = [fasten(kept, recipe.anchors) for kept in manifest["headers"]]
    changed = [header for header in headers if not header.is_unchanged()]
    lines = [f"{'A new file' if h.size < 0 else 'Changed since'}: {h.path}" for h in changed]
    if manifest["anchors"] is not None and tuple(manifest["anchors"]) != recipe.anchors:
        lines.append(f"It was built from {', '.join(manifest['anchors'])}, and its code says so")
    check_file(leaf_dir / manifest["product"], manifest["size"], manifest["sha256"])
    return lines
