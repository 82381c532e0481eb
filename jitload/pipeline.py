"""Finds the library of a request in the cache, or builds it and adds it to the cache, and loads it as a `Module`.

Read from top to bottom, this file shows what happens to one kernel; each stage is in a file of its own.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from jitload.building.resources import pause_garbage_collection, run_in_background
from jitload.building.stages import shown_log
from jitload.cache.entry import Entry, open_cache, private_cache_dir
from jitload.cache.key import CacheKey, library_key
from jitload.cache.tiers import claim_build, find_in_tiers, upload_entry
from jitload.errors import CacheError, CacheWriteError, JitLoadError, LoadError, ToolchainError, warn_once
from jitload.request.arguments import absolute_path, check_path
from jitload.request.request import RECORD_FILE, Request
from jitload.toolchain.arch import CPU
from jitload.toolchain.cuda import CudaToolchain, Nvcc, find_cuda_headers, find_cuda_toolchain
from jitload.toolchain.host import (
    Compiler,
    compiler_identity,
    find_compiler,
    own_identity,
    recall_compiler_identity,
)

if TYPE_CHECKING:
    from jitload.cache.store import Work
    from jitload.loader.module import Module
    from jitload.settings import Settings

PathLike = str | os.PathLike[str]
_log = logging.getLogger(__name__)
_GC_PAUSE_S = 1.0  # the longest time for which a build pauses the garbage collector

_modules: dict[Request, tuple[Entry, Module]] = {}
_modules_lock = threading.Lock()


def load_request(
    request: Request, build_directory: PathLike | None, *, keep_module_alive: bool, verbose: bool
) -> Module:
    """Return the module for a request. If `build_directory` is given, load the module from a copy there.

    If `keep_module_alive` is set and `build_directory` is None, identical calls share one module, as long as the files
    that its build has read are unchanged.
    """
    directory = None if build_directory is None else absolute_path(build_directory, "build_directory")
    is_reusable = directory is None and keep_module_alive
    if is_reusable and (loaded := _modules.get(request)):
        entry, module = loaded
        if all(file.is_unchanged() for file in entry.dependencies):
            return module
    started = time.perf_counter()
    entry, module = _load(request, directory, keep_module_alive=keep_module_alive, verbose=verbose)
    module.__dict__["_jitload_request"] = request
    module.__dict__["_jitload_built_s"] = time.perf_counter() - started if entry.is_new else None
    return _remember_module(request, entry, module) if is_reusable else module


def _load(request: Request, directory: Path | None, *, keep_module_alive: bool, verbose: bool) -> tuple[Entry, Module]:
    """Find or build the entry of a request, and load it. Return the entry and the module."""
    needs_library = directory is not None or request.settings.library == "now"
    with pause_garbage_collection(), shown_log if verbose else nullcontext():
        entry = find_or_build(request, needs_library=needs_library, verbose=verbose)
        try:
            return entry, _load_entry(entry, request, directory, keep_module_alive=keep_module_alive)
        except JitLoadError:
            if entry.product.exists():
                raise
        # Another process pruned the entry before it was loaded.
        entry = find_or_build(request, needs_library=needs_library, verbose=verbose)
        return entry, _load_entry(entry, request, directory, keep_module_alive=keep_module_alive)


def _load_entry(entry: Entry, request: Request, directory: Path | None, *, keep_module_alive: bool) -> Module:
    """Load the library or the record of an entry. If `directory` is given, load a copy of the library there."""
    try:
        from jitload.loader.module import load_library, load_record
    except RuntimeError as error:
        if threading.main_thread().is_alive():
            raise
        raise LoadError(
            f"the library of {request.name!r} cannot be loaded: the main thread has ended, and Python cannot import "
            f"tvm-ffi any more ({error}). Wait for this thread, thread.join(), or import tvm_ffi in the main thread"
        ) from error

    if entry.is_record:
        return load_record(entry.product, entry.images, request.settings)
    path = entry.product
    if directory is not None:
        from jitload.building.outputs import install_library

        path, _ = install_library(entry, request, directory)
    return load_library(path, keep_module_alive=keep_module_alive, origin=entry.product)


def _remember_module(request: Request, entry: Entry, module: Module) -> Module:
    """Store a module for identical calls, and return it. If another thread was first, return that thread's module."""
    with _modules_lock:
        loaded = _modules.get(request)
        if loaded is None or loaded[0].product != entry.product:
            loaded = _modules[request] = (entry, module)
        return loaded[1]


def build_request(request: Request, build_directory: PathLike | None, output: PathLike | None, *, verbose: bool) -> str:
    """Return the path of the library for a request. Build the library if it is not in the cache.

    If `build_directory` or `output` is given, copy the library there, and return the path of the copy. If `output` ends
    with `.o`, write an object file instead of a library.
    """
    directory = None if build_directory is None else absolute_path(build_directory, "build_directory")
    target = _output_path(output, directory)
    is_object = target is not None and target.suffix == ".o"
    if is_object and request.host is not None:
        request = request._replace(host=request.host._replace(is_object=True))
    with shown_log if verbose else nullcontext():
        entry = find_or_build(request, verbose=verbose)
    if target is None and directory is None:
        return str(entry.product)

    from jitload.building.outputs import copy_file, install_library, write_object

    if directory is not None and target is None:
        _, path = install_library(entry, request, directory)
        return str(path)
    assert target is not None
    if is_object and request.host is None:
        return str(write_object(entry, request, target))
    return str(copy_file(entry.product, target))


def _output_path(output: PathLike | None, directory: Path | None) -> Path | None:
    """Return the absolute path of `output`, or None. A relative `output` is relative to `directory`, as in tvm-ffi."""
    if output is None or directory is None:
        return None if output is None else absolute_path(output, "output")
    return absolute_path(directory / check_path(output, "output"), "output")


# ---- find ------------------------------------------------------------------------------------------------------


def find_or_build(request: Request, *, needs_library: bool = True, verbose: bool = False) -> Entry:
    """Return the cache entry for a request. If there is none, build it.

    If `needs_library` is false, the entry of kernels may be a record. Then the library is built in the background, for
    the next process.
    """
    cache_dir = open_cache(request.settings)
    needs_library = needs_library or not request.has_record
    tools = _find_tools(request, cache_dir)
    key = library_key(request, tools.cuda, tools.compiler, own_identity(cache_dir))
    key = key._replace(unknown_parts=tools.unknown_parts)
    entry = find_in_tiers(cache_dir, key, request.settings, needs_library=needs_library)
    if entry:
        _log.info("%s is in the cache: %s", key.name, entry.dir)
    elif tools.problem:
        _raise_unbuildable(cache_dir, key, request.settings, tools.problem)
    else:
        _log.info("%s is not in the cache: there is no entry with the key %s", key.name, key.digest)
        entry = _build(cache_dir, _Job(request, key, tools.cuda, needs_library, verbose))
    may_build = tools.problem is None and request.settings.mode != "load-only"
    if entry.is_record and request.settings.library == "later" and may_build:
        from jitload.building.background import build_library_later

        build_library_later(entry, request, key)
    return entry


class _Tools(NamedTuple):
    """The tools of this machine that a request needs.

    Attributes:
        cuda: The compiler of device code, the CUDA headers alone, or None.
        compiler: The fingerprint of the C++ compiler; empty for kernels, which have the same key with any compiler,
            because it only wraps them.
        problem: Why the library cannot be built here, or None. An entry that other tools made may still be used.
        unknown_parts: The parts of the key that missing tools would determine.
    """

    cuda: CudaToolchain | Nvcc | None = None
    compiler: str = ""
    problem: ToolchainError | None = None
    unknown_parts: tuple[str, ...] = ()


def _find_tools(request: Request, cache_dir: Path) -> _Tools:
    """Return the tools for a request.

    Raises:
        ToolchainError: The C++ compiler is installed but does not work.
    """
    cuda, compiler = None, None
    problems: list[ToolchainError] = []
    unknown_parts: tuple[str, ...] = ()
    try:
        cuda = _find_cuda(request, cache_dir)
    except ToolchainError as error:
        problems.append(error)
    try:
        compiler = None if request.has_record else find_compiler(request.settings)
    except ToolchainError as error:
        problems.append(error)
        unknown_parts = ("compiler", "cpu")
    # C++ and kernels for the CPU can be built without NVRTC. If nothing is built, an entry of any NVRTC will do.
    if cuda is None and not (request.triton or request.cubins) and (problems or request.settings.mode == "load-only"):
        unknown_parts = ("nvrtc", *unknown_parts)
    identity = _compiler_identity(compiler, request, cache_dir) if compiler else ""
    return _Tools(cuda, identity, next(iter(problems), None), unknown_parts)


def _compiler_identity(compiler: Compiler, request: Request, cache_dir: Path) -> str:
    identity = recall_compiler_identity(compiler, cache_dir)
    if identity is None:  # the compiler has to be started, so import meanwhile what the build needs
        run_in_background(_import_for_build, request)
        identity = compiler_identity(compiler, cache_dir)
    return identity


def _find_cuda(request: Request, cache_dir: Path) -> CudaToolchain | Nvcc | None:
    """Return what the request needs of CUDA: the compiler of device code, the headers alone, or None."""
    if request.triton is not None or request.cubins:
        return None
    if request.host is not None and request.host.is_mixed:
        from jitload.toolchain.nvcc import find_nvcc

        return find_nvcc(request.settings, cache_dir, name=request.name)
    if any(arch != CPU for arch in request.archs):
        return find_cuda_toolchain(request.settings)
    return find_cuda_headers(request.settings)


def _raise_unbuildable(cache_dir: Path, key: CacheKey, settings: Settings, problem: ToolchainError) -> NoReturn:
    """Raise the error for a library that is in no cache and cannot be built because a tool is missing."""
    from jitload.cache.explain import explain_miss, explain_unbuildable

    if settings.mode == "load-only":
        raise CacheError(explain_miss(cache_dir, key, settings)) from problem
    if explanation := explain_unbuildable(cache_dir, key, settings):
        raise ToolchainError(f"{problem}{explanation}") from problem
    raise problem


# ---- build -----------------------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """What is built: a request with its key, the compiler of its device code, and whether it needs a library."""

    request: Request
    key: CacheKey
    cuda: CudaToolchain | Nvcc | None
    needs_library: bool
    verbose: bool


def _build(cache_dir: Path, job: _Job) -> Entry:
    """Build in the cache or, if the cache cannot be written, in a temporary cache. Return the entry."""
    try:
        return _build_in(cache_dir, job)
    except CacheWriteError as error:
        private = private_cache_dir()
        if private == cache_dir:
            raise
        warn_once(f"{error} Building in {private}, for this process only.")
        return _build_in(private, job)


def _build_in(cache_dir: Path, job: _Job) -> Entry:
    """Build in a private directory of the cache, and publish the result as an entry. Return the entry."""
    from jitload.cache.store import claim_entry
    from jitload.request.variants import expand

    settings = job.request.settings
    with ExitStack() as claim:
        with claim_entry(cache_dir, job.key, settings, needs_library=job.needs_library) as work:
            if work.entry:  # another process has built it meanwhile
                return work.entry
            remote = claim_build(work.cache_dir, job.key, settings, needs_library=job.needs_library)
            if entry := claim.enter_context(remote):  # another host has built it meanwhile
                return entry
            with pause_garbage_collection(at_most_s=_GC_PAUSE_S):
                job = job._replace(request=expand(job.request))
                entry = _build_kernels(job, work) if job.request.has_record else _build_library(job, work)
        upload_entry(entry, job.key, settings)
    return entry


def _build_kernels(job: _Job, work: Work) -> Entry:
    """Compile kernels, write their record and, if it is needed, link their library. Publish the result."""
    request = job.request
    local = request.settings._replace(remote="")  # the remote store has been asked already
    if job.needs_library and (recorded := find_in_tiers(work.cache_dir, work.key, local)):
        from jitload.building.library import publish_library

        return publish_library(recorded, request, work, verbose=job.verbose)  # the kernels have been compiled already
    dependencies: tuple[Path, ...] = ()
    if request.triton is not None:
        from jitload.triton.library import write_triton_kernels

        images = write_triton_kernels(request, work.dir)
    else:
        images, dependencies = _compile_kernels(job, work)
    if not job.needs_library:
        return work.publish(RECORD_FILE, dependencies, images)

    from jitload.building.library import link_library

    link_library(request, work.dir, verbose=job.verbose)
    return work.publish(request.product, dependencies)


def _compile_kernels(job: _Job, work: Work) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Compile kernels with NVRTC, and write their record. Return the cubins' files, and the headers that were read."""
    assert not isinstance(job.cuda, Nvcc)
    run_in_background(_prepare_build, job)

    from jitload.cuda.kernels import compile_device_code
    from jitload.request.variants import groups

    # machine code, and the signatures of its kernels
    compiled = [compile_device_code(part, job.cuda) for part in groups(job.request)]

    from jitload.codegen.wrapper import write_sources

    images = write_sources(job.request, compiled, work.dir)
    return images, tuple(sorted({path for codes in compiled for code in codes for path in code.headers}))


def _build_library(job: _Job, work: Work) -> Entry:
    """Build and publish the library of hand-written C++ or of kernels for the CPU."""
    from jitload.building.ninja import check_is_made

    request, compiler = job.request, find_compiler(job.request.settings)
    if request.host is not None:
        from jitload.host_cpp.library import build_host_library

        dependencies = build_host_library(request, job.cuda, compiler, work, verbose=job.verbose)
    else:
        from jitload.cpu.library import build_cpu_library

        assert not isinstance(job.cuda, Nvcc)
        dependencies = build_cpu_library(request, job.cuda, compiler, work, verbose=job.verbose)
    check_is_made(work.dir / request.product, compiler.command)
    return work.publish(request.product, dependencies)


def _import_for_build(request: Request) -> None:
    """Import modules for a build. A background thread calls this function while the compiler starts."""
    for name in ("cache.store", "host_cpp.library" if request.host is not None else "cpu.library"):
        importlib.import_module(f"jitload.{name}")


def _prepare_build(job: _Job) -> None:
    """Load NVRTC, and then the generator of the wrapper. A background thread calls this function.

    NVRTC comes first because the compile waits for it. NVRTC compiles without the GIL, so the generator is loaded
    meanwhile. The import of `kernels` waits until the main thread, which compiles, has imported this module.
    """
    if isinstance(job.cuda, CudaToolchain):
        from jitload.cuda.nvrtc import prepare_nvrtc

        prepare_nvrtc(job.cuda.nvrtc_path, is_isolated=job.request.settings.isolates)
    importlib.import_module("jitload.cuda.kernels")
    from jitload.codegen.wrapper import load_template

    if job.needs_library:
        load_template("wrapper.cc.jinja")
