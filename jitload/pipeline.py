"""The order of the stages: from a request to an entry of the cache. What a miss does is in `library`."""

from __future__ import annotations

from jitload.cache import Entry, Recipe, claim_entry, find_entry, open_cache
from jitload.identity import compiler_identity, own_identity
from jitload.request import Request
from jitload.toolchain import Kit, find_compiler, find_kit


def build(request: Request, *, verbose: bool = False) -> Entry:
    """Return the cache entry that holds the library for a request, building it if there is none."""
    kit = find_kit(request.settings)
    compiler = find_compiler(request.settings)
    cache_dir = open_cache(request.settings)
    recipe = library_recipe(request, kit, compiler_identity(compiler, cache_dir), own_identity(cache_dir))
    if entry := find_entry(cache_dir, recipe, request.settings):
        return entry

    from jitload.library import import_first, make_library

    import_first()
    with claim_entry(cache_dir, recipe, request.settings) as work:
        if work.entry:
            return work.entry
        headers = make_library(request, kit, compiler, work, verbose=verbose)
        return work.publish(f"{request.slug}.so", headers)


def library_recipe(request: Request, kit: Kit, compiler: str, own: str) -> Recipe:
    """Return everything that decides what the library will be."""
    functions = ("all",) if request.functions is None else tuple(f"{name}={spec!r}" for name, spec in request.functions)
    return Recipe(
        name=request.slug,
        parts=(
            ("kind", "device"),
            ("module", request.name),
            ("labels", tuple(label for label, _ in request.pieces)),
            ("sources", tuple(text for _, text in request.pieces)),
            ("functions", functions),
            ("archs", request.archs),
            ("options", request.options),
            ("include_dirs", request.include_dirs),
            ("nvrtc", kit.identity),
            ("compiler", compiler),
            ("jitload", own),
        ),
    )
