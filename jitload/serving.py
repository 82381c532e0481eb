"""A request in, its module or the path of its library out."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.cache.entry import Entry
from jitload.collector import collector_held
from jitload.errors import JitLoadError
from jitload.pipeline import build as build_entry
from jitload.placing import copy_library, place_library
from jitload.request.arguments import absolute_path, check_path
from jitload.request.request import Request

if TYPE_CHECKING:
    from jitload.loader.module import Module

PathLike = str | os.PathLike[str]
_modules: dict[Request, tuple[Entry, Module]] = {}
_lock = threading.Lock()


def load_request(
    request: Request, build_directory: PathLike | None, *, keep_module_alive: bool, verbose: bool
) -> Module:
    """Return the module of a request: the one an identical call got, or one loaded from the cache."""
    directory = None if build_directory is None else absolute_path(build_directory, "build_directory")
    is_shared = directory is None and keep_module_alive
    if is_shared and (known := _modules.get(request)):
        entry, module = known
        if all(header.is_unchanged() for header in entry.headers):
            return module
    entry, module = _load(request, directory, keep_module_alive=keep_module_alive, verbose=verbose)
    return _shared(request, entry, module) if is_shared else module


def _load(request: Request, directory: Path | None, *, keep_module_alive: bool, verbose: bool) -> tuple[Entry, Module]:
    """Load the library of a request. One that is pruned after it was found is found again, or built."""
    with collector_held():
        from jitload.loader.module import load_library

        for is_last in (False, True):
            entry = build_entry(request, verbose=verbose)
            try:
                path = entry.product
                if directory is not None:
                    path = place_library(entry, request, directory)
                return entry, load_library(path, keep_module_alive=keep_module_alive)
            except JitLoadError:
                if is_last or entry.product.exists():
                    raise
    raise AssertionError


def _shared(request: Request, entry: Entry, module: Module) -> Module:
    """Return the module for identical calls: of threads that load one entry at a time, the first one's."""
    with _lock:
        known = _modules.get(request)
        if known is None or known[0].product != entry.product:
            known = _modules[request] = (entry, module)
        return known[1]


def build_request(request: Request, build_directory: PathLike | None, output: PathLike | None, *, verbose: bool) -> str:
    """Return the path of a request's library, where the caller wants it or in the cache."""
    directory = None if build_directory is None else absolute_path(build_directory, "build_directory")
    target = _target_of(output, directory)
    is_object = target is not None and target.suffix == ".o"
    if is_object and request.host is not None:
        request = replace(request, host=replace(request.host, is_object=True))
    entry = build_entry(request, verbose=verbose)
    if is_object and target is not None and request.host is None:
        from jitload.objects import write_object

        return str(write_object(entry, request, target))
    if target is not None:
        return str(copy_library(entry.product, target))
    if directory is not None:
        place_library(entry, request, directory)
        return str(directory / f"{request.slug}.so")
    return str(entry.product)


def _target_of(output: PathLike | None, directory: Path | None) -> Path | None:
    """Return where the caller wants the file: a relative name is one in the build directory, as upstream's is."""
    if output is None or directory is None:
        return None if output is None else absolute_path(output, "output")
    return absolute_path(directory / check_path(output, "output"), "output")
