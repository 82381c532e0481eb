"""Where an entry may be: a bundle in an installed package, shared directories, the local cache, a remote store.

They are asked in this order, each only where it is there or asked for; what is built goes to the local cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jitload.cache.bundles import find_bundles, remember_bundles
from jitload.cache.entry import Entry, find_entry
from jitload.cache.recipe import Recipe
from jitload.cache.trust import refuse_if_shared
from jitload.errors import CacheError
from jitload.settings import Settings, warn_once


def find_in_tiers(cache_dir: Path, recipe: Recipe, settings: Settings) -> Entry | None:
    """Return the entry for a recipe from the first tier that has it, or None.

    Only what comes from a remote store is written, into the local cache, and verified there like any entry.

    Raises:
        CacheError: Others may write the entry or a directory of `JITLOAD_CACHE_PATH`.
    """
    key = recipe.key
    is_wanted = settings.mode != "rebuild"
    bundles = find_bundles(cache_dir)
    if is_wanted and (bundles or settings.cache_path):
        for place in _shared_places(bundles, settings):
            if entry := _look(place, recipe, settings, is_ours=False, key=key):
                return entry
    if entry := _look(cache_dir, recipe, settings, is_ours=True, key=key):
        return entry
    if is_wanted and settings.remote and not recipe.unknown:  # a store is asked by key
        from jitload.cache.remote import fetch_entry

        return fetch_entry(cache_dir, recipe, settings)
    return None


def _look(place: Path, recipe: Recipe, settings: Settings, *, is_ours: bool, key: str) -> Entry | None:
    """Return the entry for a recipe from one place, by its key; where that cannot be known, by everything else."""
    if not recipe.unknown:
        return find_entry(place, recipe, settings, is_ours=is_ours, key=key)
    from jitload.cache.toolless import keys_alike

    for alike in keys_alike(place, recipe, settings):
        if entry := find_entry(place, recipe, settings, is_ours=is_ours, key=alike):
            return entry
    return None


def share_entry(entry: Entry, recipe: Recipe, settings: Settings) -> None:
    """Put an entry that this process has built into the remote store, if that is wanted."""
    remember_bundles(entry.dir.parent.parent)
    if settings.remote_writes and entry.is_new:
        from jitload.cache.remote import put_entry

        put_entry(entry, recipe, settings)


def _shared_places(bundles: Sequence[Path], settings: Settings) -> Iterator[Path]:
    """Yield the directories that are looked into and never written."""
    for place in bundles:
        try:
            refuse_if_shared(place, settings)
        except CacheError as error:  # it came with a package; nobody here has asked for it
            warn_once(f"a bundle is passed over: {error}")
        else:
            yield place
    for text in settings.cache_path:
        place = _named_place(text)
        if not place.is_dir():
            warn_once(f"JITLOAD_CACHE_PATH names {place}, which is no directory; it is passed over")
            continue
        try:
            refuse_if_shared(place, settings)
        except CacheError as error:
            raise CacheError(f"JITLOAD_CACHE_PATH: {error}".replace("Set JITLOAD_CACHE_DIR to", "Name")) from error
        yield place


def _named_place(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise CacheError(f"JITLOAD_CACHE_PATH: {text!r} is nowhere: {error}. Write the whole path.") from error
