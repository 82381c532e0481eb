"""The order of the stages: from a request to an entry of the cache. What a miss does is in `library`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from jitload.cache import Entry, Recipe, Work, claim_entry, find_entry, open_cache
from jitload.identity import compiler_identity, own_identity
from jitload.request import Request
from jitload.toolchain import Compiler, Kit, Nvcc, find_compiler, find_cuda_headers, find_kit, tvm_ffi_version


def build(request: Request, *, verbose: bool = False) -> Entry:
    """Return the cache entry that holds the library for a request, building it if there is none."""
    cache_dir = open_cache(request.settings)
    kit = _find_cuda(request, cache_dir)
    compiler = find_compiler(request.settings)
    recipe = library_recipe(request, kit, compiler_identity(compiler, cache_dir), own_identity(cache_dir))
    if entry := find_entry(cache_dir, recipe, request.settings):
        return entry

    from jitload.library import import_first

    import_first()
    with claim_entry(cache_dir, recipe, request.settings) as work:
        if work.entry:
            return work.entry
        headers = _make(request, kit, compiler, work, verbose=verbose)
        return work.publish(f"{request.slug}.so", headers)


def _find_cuda(request: Request, cache_dir: Path) -> Kit | Nvcc | None:
    """Return what compiles the device code, or has the headers that hand-written C++ may include."""
    if request.host is not None and request.host.is_mixed:
        from jitload.nvcc import find_nvcc

        return find_nvcc(request.settings, cache_dir, name=request.name)
    return find_kit(request.settings) if request.pieces else find_cuda_headers(request.settings)


def _make(
    request: Request, kit: Kit | Nvcc | None, compiler: Compiler, work: Work, *, verbose: bool
) -> tuple[Path, ...]:
    """Build the library in a work directory, around generated or hand-written C++; return the headers it read."""
    if request.host is not None:
        from jitload.host import make_host_library

        return make_host_library(request, kit, compiler, work, verbose=verbose)
    from jitload.library import make_library

    assert isinstance(kit, Kit)
    return make_library(request, kit, compiler, work, verbose=verbose)


def library_recipe(request: Request, kit: Kit | Nvcc | None, compiler: str, own: str) -> Recipe:
    """Return everything that decides what the library will be."""
    functions = ("all",) if request.functions is None else tuple(f"{name}={spec!r}" for name, spec in request.functions)
    return Recipe(
        name=request.slug,
        parts=(
            ("kind", "device" if request.host is None else "host"),
            ("module", request.name),
            ("labels", tuple(label for label, _ in request.pieces)),
            ("sources", tuple(text for _, text in request.pieces)),
            ("functions", functions),
            ("archs", request.archs),
            ("options", request.options),
            ("include_dirs", request.include_dirs),
            ("nvrtc", kit.identity if kit else ""),
            ("compiler", compiler),
            ("jitload", own),
            *_host_parts(request),
        ),
    )


def _host_parts(request: Request) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return what decides the rest where C++ was written by hand: tvm-ffi's C++ headers change between releases."""
    host = request.host
    if host is None:
        return ()
    units = [(unit.file, str(unit.is_file), *(part for piece in unit.pieces for part in piece)) for unit in host.units]
    return (
        *(("unit", unit) for unit in units),
        *(("unit_flags", unit.flags) for unit in host.units),
        ("objects", host.objects),
        ("cubins", tuple(part for name, data in host.cubins for part in (name, hashlib.sha256(data).hexdigest()))),
        ("flags", host.flags),
        ("link_flags", host.link_flags),
        ("tvm_ffi", tvm_ffi_version()),
    )
