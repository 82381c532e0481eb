"""The order of the stages: from a request to an entry of the cache. What a miss does is in `library`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.arch import CPU
from jitload.cache.entry import Entry, open_cache
from jitload.cache.recipe import Recipe, speaks_of_its_place
from jitload.cache.tiers import find_in_tiers, share_entry
from jitload.collector import collector_held
from jitload.errors import CacheError, CachePlaceError, ToolchainError
from jitload.ninja_runs import Building, run_alone
from jitload.request.request import Request
from jitload.settings import private_cache_dir, warn_once
from jitload.toolchain.cuda import CudaToolchain, Nvcc, find_cuda_headers, find_cuda_toolchain
from jitload.toolchain.host import Compiler, find_compiler, tvm_ffi_version
from jitload.toolchain.identity import compiler_identity, cpu_identity, own_identity

if TYPE_CHECKING:
    from jitload.cache.store import Work

    _Make = Callable[[Work], Building[tuple[Path, ...]]]

_HELD_S = 1.0  # that a build may hold the garbage collector back
_DEBUG_OPTIONS = ("-g", "-G", "-lineinfo", "--generate-line-info", "--device-debug", "--dopt")


def build(request: Request, *, verbose: bool = False) -> Entry:
    """Return the cache entry that holds the library for a request, building it if there is none."""
    return run_alone(building(request, verbose=verbose))


def building(request: Request, *, verbose: bool = False, is_patient: bool = True) -> Building[Entry]:
    """Build as `build` does, and stop where ninja is to run.

    Raises:
        LockHeldError: Somebody else builds it, and `is_patient` is False.
    """
    cache_dir = open_cache(request.settings)
    try:
        kit, compiler = _find_cuda(request, cache_dir), find_compiler(request.settings)
        words = compiler_identity(compiler, cache_dir, lambda: _prepare_miss(request, cache_dir))
    except ToolchainError as error:
        return _find_finished(request, cache_dir, error)
    recipe = library_recipe(request, kit, words, own_identity(cache_dir))
    if entry := find_in_tiers(cache_dir, recipe, request.settings):
        return entry

    def make(work: Work) -> Building[tuple[Path, ...]]:
        return _make(request, kit, compiler, work, verbose=verbose)

    try:
        return (yield from _building_in(cache_dir, request, recipe, make, is_patient=is_patient))
    except CachePlaceError as error:
        private = private_cache_dir()
        if private == cache_dir:
            raise
        warn_once(f"{error} Building in {private}, for this process only.")
        return (yield from _building_in(private, request, recipe, make, is_patient=is_patient))


def _find_finished(request: Request, cache_dir: Path, missing: ToolchainError) -> Entry:
    """Return the entry for a request that cannot be built here, for want of a tool: which one made it is not compared.

    Raises:
        ToolchainError: There is none, and the tool is missing; or the compiler is there and does not work.
        CacheError: There is none, and `load-only` would not have built it.
    """
    kit = found = None
    with suppress(ToolchainError):
        kit = _find_cuda(request, cache_dir)
    with suppress(ToolchainError):
        found = find_compiler(request.settings)
    compiler = compiler_identity(found, cache_dir) if found else None
    unknown = (*(("nvrtc",) if kit is None else ()), *(("compiler", "cpu") if compiler is None else ()))
    recipe = library_recipe(request, kit, compiler or "", own_identity(cache_dir))
    recipe = replace(recipe, unknown=unknown)
    if entry := find_in_tiers(cache_dir, recipe, request.settings):
        return entry
    if request.settings.mode == "load-only":
        from jitload.cache.why import explain_miss

        raise CacheError(explain_miss(cache_dir, recipe, request.settings)) from missing
    raise missing


def _prepare_miss(request: Request, cache_dir: Path) -> None:
    """Do what a build begins with: a compiler that is asked who it is has built nothing yet."""
    own_identity(cache_dir)
    if request.triton is not None:
        import jitload.triton.library
    elif request.host is not None:
        import jitload.cxx.host
    else:
        import jitload.library  # noqa: F401


def _building_in(
    cache_dir: Path, request: Request, recipe: Recipe, make: _Make, *, is_patient: bool
) -> Building[Entry]:
    """Publish what `make` builds; it returns the headers that it read."""
    from jitload.cache.store import claim_entry

    with claim_entry(cache_dir, recipe, request.settings, is_patient=is_patient) as work:
        if work.entry:
            return work.entry
        with collector_held(at_most_s=_HELD_S):
            entry = work.publish(request.product, (yield from make(work)))
    share_entry(entry, recipe, request.settings)
    return entry


def _find_cuda(request: Request, cache_dir: Path) -> CudaToolchain | Nvcc | None:
    """Return what compiles the device code, or has the headers that hand-written C++ may include."""
    if request.triton is not None:
        return None
    if request.host is not None and request.host.is_mixed:
        from jitload.cxx.nvcc import find_nvcc

        return find_nvcc(request.settings, cache_dir, name=request.name)
    if request.images:
        return None
    if any(arch != CPU for arch in request.archs) or request.settings.mode == "load-only":
        return find_cuda_toolchain(request.settings)
    return find_cuda_headers(request.settings)


def _make(
    request: Request, kit: CudaToolchain | Nvcc | None, compiler: Compiler, work: Work, *, verbose: bool
) -> Building[tuple[Path, ...]]:
    """Build the library in a work directory, around generated or hand-written C++; return the headers it read."""
    if request.triton is not None:
        from jitload.triton.library import make_triton_library

        return (yield from make_triton_library(request, compiler, work, verbose=verbose))
    if request.host is not None:
        from jitload.cxx.host import make_host_library

        return make_host_library(request, kit, compiler, work, verbose=verbose)
    assert not isinstance(kit, Nvcc)
    if CPU in request.archs:
        from jitload.cpu.library import make_cpu_library

        return make_cpu_library(request, kit, compiler, work, verbose=verbose)
    from jitload.library import make_library

    return (yield from make_library(request, kit, compiler, work, verbose=verbose))


def library_recipe(request: Request, kit: CudaToolchain | Nvcc | None, compiler: str, own: str) -> Recipe:
    """Return everything that decides what the library will be.

    The user's directories are no part of the key: what is read below them is verified, and the same headers in
    another place make the same library, unless it holds their paths.
    """
    functions = ("all",) if request.functions is None else tuple(f"{name}={spec!r}" for name, spec in request.functions)
    host = request.host
    flags = [flag for unit in host.units for flag in (*unit.flags, *host.flags)] if host else [*request.options]
    flags += request.cpu_flags
    is_placed = any(flag.startswith(_DEBUG_OPTIONS) for flag in flags) or bool(request.checks)
    return Recipe(
        name=request.slug,
        anchors=(*request.include_dirs, *(host.objects if host else ())),
        is_placed=is_placed,
        parts=(
            ("kind", "triton" if request.triton else "device" if host is None else "host"),
            ("module", request.name),
            ("labels", tuple(_label(label, text, is_placed=is_placed) for label, text in request.pieces)),
            ("sources", tuple(text for _, text in request.pieces)),
            ("functions", functions),
            ("archs", request.archs),
            ("options", request.options),
            ("include_dirs", str(len(request.include_dirs))),
            ("nvrtc", kit.identity if kit else ""),
            ("compiler", compiler),
            ("jitload", own),
            *_host_parts(request, is_placed=is_placed),
            *(request.triton.parts if request.triton else ()),
            ("cpu", cpu_identity() if any("native" in flag for flag in (*flags, compiler)) else ""),
            *_image_parts(request),
            *_cpu_parts(request),
        ),
    )


def _cpu_parts(request: Request) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return what decides the rest where kernels run on the CPU: its compiler's options, and the libraries of C."""
    if CPU not in request.archs:
        return ()
    return (
        ("cpu_flags", request.cpu_flags),
        ("sanitize", request.checks.sanitize),
        ("debug", str(request.checks.debug)),
        ("libc", _libc()),
    )


def _libc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION") or "" if hasattr(os, "confstr") else ""


def _image_parts(request: Request) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return what decides the rest where functions are made of cubins."""
    return tuple(
        ("image", (os.path.basename(image.label), hashlib.sha256(image.data).hexdigest(), repr(image.kernels)))
        for image in request.images
    )


def _label(label: str, text: str, *, is_placed: bool) -> str:
    """Return what a library may show of a source's path: where it says nothing of it, the file's name is enough."""
    if not os.path.isabs(label) or is_placed or speaks_of_its_place(text.encode()):
        return label
    return os.path.basename(label)


def _host_parts(request: Request, *, is_placed: bool) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return what decides the rest where C++ was written by hand: tvm-ffi's C++ headers change between releases."""
    host = request.host
    if host is None:
        return ()
    units = [
        (
            *(unit.file, str(unit.is_file)),
            *(part for label, text in unit.pieces for part in (_label(label, text, is_placed=is_placed), text)),
        )
        for unit in host.units
    ]
    return (
        *(("unit", unit) for unit in units),
        *(("unit_flags", unit.flags) for unit in host.units),
        ("objects", str(len(host.objects))),
        *((("makes", "object"),) if host.is_object else ()),
        ("cubins", tuple(part for name, data in host.cubins for part in (name, hashlib.sha256(data).hexdigest()))),
        ("flags", host.flags),
        ("link_flags", host.link_flags),
        ("tvm_ffi", tvm_ffi_version()),
        ("libc", _libc()),
    )
