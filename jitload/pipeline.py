"""Finds the library of a request in the cache, or builds it and adds it to the cache, and loads it as a `Module`.

Read from top to bottom, this file shows what happens to one kernel; each stage is in a file of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.building.resources import freeze_old_objects
from jitload.building.stages import shown_log
from jitload.cache.entry import Entry, open_cache, private_cache_dir
from jitload.cache.key import CacheKey
from jitload.cache.tiers import claim_build, find_in_tiers, upload_entry
from jitload.errors import CacheWriteError, JitLoadError, LoadError, warn_once
from jitload.request.arguments import PathLike, absolute_path, check_path
from jitload.request.request import Request
from jitload.sources.common import Tools, build_entry, library_key, source_of
from jitload.toolchain.fingerprints import own_identity
from jitload.toolchain.private_files import copy_file, sync_file

if TYPE_CHECKING:
    from jitload.loader.module import Module

_log = logging.getLogger(__name__)
_modules: dict[Request, tuple[Entry, Module]] = {}
_modules_lock = threading.Lock()


def load_request(
    request: Request, build_directory: PathLike | None = None, *, keep_module_alive: bool = True, verbose: bool = False
) -> Module:
    """Return the module for a request. If `build_directory` is given, copy its library there.

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
    with freeze_old_objects(), shown_log if verbose else nullcontext():
        entry = find_or_build(request, needs_library=needs_library)
        try:
            return entry, _load_entry(entry, request, directory, keep_module_alive=keep_module_alive)
        except JitLoadError:
            if entry.product.exists():
                raise
        # Another process pruned the entry before it was loaded.
        entry = find_or_build(request, needs_library=needs_library)
        return entry, _load_entry(entry, request, directory, keep_module_alive=keep_module_alive)


def _load_entry(entry: Entry, request: Request, directory: Path | None, *, keep_module_alive: bool) -> Module:
    """Load the library or the record of an entry. If `directory` is given, copy the library there."""
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
        return load_record(entry.product, request.settings)
    if directory is not None:
        copy_file(entry.product, directory / f"{request.slug}.so")
    return load_library(entry.product, keep_module_alive=keep_module_alive)


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
    with `.o`, hand-written C++ becomes an object file instead of a library.
    """
    directory = None if build_directory is None else absolute_path(build_directory, "build_directory")
    # As in tvm-ffi, a relative path starts at the build directory.
    target = None if output is None else Path(directory or "", check_path(output, "output")).absolute()
    if target is not None and target.suffix == ".o":
        if request.host is None:
            raise JitLoadError(f"{target}: only hand-written C++ is built as an object; write output={request.slug}.so")
        request = request._replace(host=request.host._replace(is_object=True))
    with shown_log if verbose else nullcontext():
        entry = find_or_build(request)
    if target is None and directory is None:
        return str(sync_file(entry.product))  # what loads the path later may not check it
    return str(copy_file(entry.product, target or Path(directory or "", f"{request.slug}.so")))


# ---- find ------------------------------------------------------------------------------------------------------


def find_or_build(request: Request, *, needs_library: bool = True) -> Entry:
    """Return the cache entry for a request. If there is none, build it.

    If `needs_library` is false, the entry of kernels may be a record. Then the library is built in the background, for
    the next process.
    """
    cache_dir = open_cache(request.settings)
    needs_library = needs_library or not request.has_record
    tools = source_of(request).tools(request, cache_dir)
    key = library_key(request, tools, own_identity(cache_dir))
    if entry := find_in_tiers(cache_dir, key, request.settings, needs_library=needs_library):
        _log.info("%s is in the cache: %s", key.name, entry.dir)
    elif tools.problem:
        from jitload.cache.explain import raise_unbuildable

        raise_unbuildable(cache_dir, key, request.settings, tools.problem)
    else:
        _log.info("%s is not in the cache: there is no entry with the key %s", key.name, key.digest)
        entry = _build(cache_dir, request, key=key, tools=tools, needs_library=needs_library)
    wants_library = request.settings.library == "later" and request.settings.mode != "load-only"
    if entry.is_record and wants_library and not tools.problem:
        from jitload.building.background import build_library_later

        build_library_later(entry, request, key, cache_dir)
    return entry


# ---- build -----------------------------------------------------------------------------------------------------


def _build(cache_dir: Path, request: Request, *, key: CacheKey, tools: Tools, needs_library: bool) -> Entry:
    """Build in the cache or, if the cache cannot be written, in a temporary cache. Return the entry."""
    try:
        return _build_in(cache_dir, request, key=key, tools=tools, needs_library=needs_library)
    except CacheWriteError as error:
        private = private_cache_dir()
        if private == cache_dir:
            raise
        warn_once(f"{error} Building in {private}, for this process only.")
        return _build_in(private, request, key=key, tools=tools, needs_library=needs_library)


def _build_in(cache_dir: Path, request: Request, *, key: CacheKey, tools: Tools, needs_library: bool) -> Entry:
    """Build in a private directory of the cache, and publish the result as an entry. Return the entry."""
    from jitload.cache.store import claim_entry

    settings = request.settings
    with ExitStack() as claim:
        with claim_entry(cache_dir, key, settings, needs_library=needs_library) as work:
            if work.entry:  # another process has built it meanwhile
                return work.entry
            remote = claim_build(work.cache_dir, key, settings, needs_library=needs_library)
            if entry := claim.enter_context(remote):  # another host has built it meanwhile
                return entry
            with freeze_old_objects():
                entry = build_entry(request, tools, work)
        upload_entry(entry, key, settings)
    return entry
