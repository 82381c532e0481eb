"""The public functions: arguments to a request, a request to an entry of the cache, an entry to a module."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.cache import Entry
from jitload.errors import JitLoadError
from jitload.pipeline import build as build_entry
from jitload.request import (
    Functions,
    Paths,
    Request,
    Texts,
    make_request,
    read_file,
    read_paths,
    read_texts,
    with_labels,
)

if TYPE_CHECKING:
    from jitload.loader import Module
    from jitload.model import Cubin

PathLike = str | os.PathLike[str]
_modules: dict[Request, tuple[Entry, Module]] = {}
_lock = threading.Lock()


def load_inline(  # noqa: PLR0913  the keywords are upstream's
    name: str,
    *,
    cuda_sources: Texts | None = None,
    functions: Functions | None = None,
    arch: str | Sequence[str] = "native",
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    keep_module_alive: bool = True,
    verbose: bool = False,
) -> Module:
    """Compile CUDA source, or find it compiled in the cache, and return its kernels as typed functions.

    Args:
        name: The module's name, for messages and file names.
        cuda_sources: CUDA C++ text, or several pieces of it that are compiled as one.
        functions: What to export: a kernel's name, several, or a mapping from exported names to `Launch` records or
            docstrings. None exports every kernel, to be launched as `mod.f[grid, block](…)`.
        arch: `"native"` (the current GPU), `"sm_90a"`, or several; each device gets the code that suits it.
        extra_cuda_cflags: Compiler options, such as `["--use_fast_math", "-DN=4"]`.
        extra_include_paths: Directories of headers.
        build_directory: Put the library there, too, as `<name>.so`.
        keep_module_alive: Keep the library loaded when the module is dropped.
        verbose: Log what the compilers print, at level INFO of the logger `jitload`.

    Returns:
        A `Module`. An identical call returns the same one, except with `build_directory` or without
        `keep_module_alive`.

    Raises:
        CompileError: A compiler refused the source.
        SignatureError: A kernel's parameters cannot be read.
        LaunchSpecError: `functions` does not fit the source.
        ToolchainError: A tool or an architecture is missing.

    Example:
        `mod = load_inline("vec", cuda_sources=text, functions={"add": Launch(grid="ceil_div(n, 256)", block=256)})`
    """
    pieces = with_labels(name, read_texts(cuda_sources, "cuda_sources"), "cuda_sources")
    request = make_request(
        name, pieces, functions=functions, arch=arch, flags=extra_cuda_cflags, include_paths=extra_include_paths
    )
    return _load(request, build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


def build_inline(  # noqa: D417, PLR0913  the keywords are upstream's, described once
    name: str,
    *,
    cuda_sources: Texts | None = None,
    functions: Functions | None = None,
    arch: str | Sequence[str] = "native",
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    output: PathLike | None = None,
    verbose: bool = False,
) -> str:
    """Compile as `load_inline` does, and return the library's path; nothing is loaded and no GPU is needed.

    Args:
        name: As for `load_inline`, like the other arguments not listed here.
        output: Where to put the library; it wins over `build_directory`.

    Returns:
        The path: `output`, or `<build_directory>/<name>.so`, or the library in the cache.

    Example:
        `path = build_inline("vec", cuda_sources=text, arch=("sm_80", "sm_90a"), output="vec.so")`
    """
    pieces = with_labels(name, read_texts(cuda_sources, "cuda_sources"), "cuda_sources")
    request = make_request(
        name, pieces, functions=functions, arch=arch, flags=extra_cuda_cflags, include_paths=extra_include_paths
    )
    return _build(request, build_directory, output, verbose=verbose)


def load(  # noqa: D417, PLR0913  the keywords are upstream's, described once
    name: str,
    *,
    sources: Paths | None = None,
    cuda_files: Paths | None = None,
    functions: Functions | None = None,
    arch: str | Sequence[str] = "native",
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    keep_module_alive: bool = True,
    verbose: bool = False,
) -> Module:
    """Do as `load_inline` does, with source files.

    Args:
        name: As for `load_inline`, like the other arguments not listed here.
        sources: Files of CUDA C++ (`.cu`, `.cuh`); messages name them, and their directories are searched for headers.
        cuda_files: The same under its other name.

    Example:
        `mod = load("norms", sources=["layer_norm.cu"])`
    """
    pieces, homes = _read_files(sources, cuda_files)
    include_paths = (*read_paths(extra_include_paths, "extra_include_paths"), *homes)
    request = make_request(
        name, pieces, functions=functions, arch=arch, flags=extra_cuda_cflags, include_paths=include_paths
    )
    return _load(request, build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


def build(  # noqa: PLR0913  the keywords are upstream's, described once
    name: str,
    *,
    sources: Paths | None = None,
    cuda_files: Paths | None = None,
    functions: Functions | None = None,
    arch: str | Sequence[str] = "native",
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    output: PathLike | None = None,
    verbose: bool = False,
) -> str:
    """Do as `build_inline` does, with source files; see `load` for them.

    Example:
        `path = build("norms", sources="layer_norm.cu", arch="sm_90a")`
    """
    pieces, homes = _read_files(sources, cuda_files)
    include_paths = (*read_paths(extra_include_paths, "extra_include_paths"), *homes)
    request = make_request(
        name, pieces, functions=functions, arch=arch, flags=extra_cuda_cflags, include_paths=include_paths
    )
    return _build(request, build_directory, output, verbose=verbose)


def load_module(path: PathLike, *, keep_module_alive: bool = True) -> Module:
    """Load a library that was built earlier. This needs no compiler, no NVRTC and no GPU; launching needs a GPU.

    Args:
        path: The library.
        keep_module_alive: Keep the library loaded when the module is dropped.

    Raises:
        LoadError: There is no such file, or it cannot be loaded here.

    Example:
        `load_module("vec.so").add_one(x, y)`
    """
    from jitload.loader import load_library

    return load_library(path, keep_module_alive=keep_module_alive)


def compile_cubin(  # noqa: PLR0913  the keywords of load_inline that concern the device
    source: Texts,
    *,
    name: str = "kernel",
    arch: str = "native",
    kernels: Sequence[str] = (),
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
) -> Cubin:
    """Compile CUDA source to machine code, and return it with what it says of its kernels. Nothing is cached.

    Args:
        source: CUDA C++ text, or several pieces of it.
        name: What messages call the source.
        arch: One architecture: `"native"`, `"sm_90a"`.
        kernels: Template instantiations and overloads to compile: `["scale<float>"]`.
        extra_cuda_cflags: Compiler options.
        extra_include_paths: Directories of headers.

    Raises:
        CompileError: NVRTC refused the source.
        ToolchainError: There is no NVRTC, or it does not know the architecture.

    Example:
        `compile_cubin(text, arch="sm_90a").kernels[0].registers`
    """
    from jitload.errors import ToolchainError
    from jitload.kernels import DeviceSource, compile_kernels
    from jitload.library import check_is_device_code
    from jitload.toolchain import find_kit

    pieces = with_labels(name, read_texts(source, "source"), "source")
    request = make_request(
        name, pieces, functions=None, arch=arch, flags=extra_cuda_cflags, include_paths=extra_include_paths
    )
    if len(request.archs) != 1:
        raise ToolchainError(
            f"compile_cubin() makes one cubin, so it takes one architecture, not {', '.join(request.archs)}."
        )
    check_is_device_code(request)
    device_source = DeviceSource(
        name=name,
        pieces=pieces,
        options=request.options,
        include_dirs=tuple(map(Path, request.include_dirs)),
        kernels=read_texts(kernels, "kernels"),
    )
    return compile_kernels(device_source, request.archs[0], find_kit(request.settings)).cubin


# ---- requests to libraries -------------------------------------------------------------------------------------


def _load(request: Request, build_directory: PathLike | None, *, keep_module_alive: bool, verbose: bool) -> Module:
    is_shared = build_directory is None and keep_module_alive
    if is_shared and (known := _modules.get(request)):
        entry, module = known
        if all(header.is_unchanged() for header in entry.headers):
            return module
    from jitload.loader import load_library

    entry = build_entry(request, verbose=verbose)
    path = entry.product
    if build_directory is not None:
        path = _place(entry, request, Path(build_directory))
    module = load_library(path, keep_module_alive=keep_module_alive)
    return _shared(request, entry, module) if is_shared else module


def _shared(request: Request, entry: Entry, module: Module) -> Module:
    """Return the module for identical calls: of threads that load one entry at a time, the first one's."""
    with _lock:
        known = _modules.get(request)
        if known is None or known[0].product != entry.product:
            known = _modules[request] = (entry, module)
        return known[1]


def _build(request: Request, build_directory: PathLike | None, output: PathLike | None, *, verbose: bool) -> str:
    entry = build_entry(request, verbose=verbose)
    if output is not None:
        return str(_copy(entry.product, Path(output).absolute()))
    if build_directory is not None:
        _place(entry, request, Path(build_directory))
        return str(Path(build_directory).absolute() / f"{request.slug}.so")
    return str(entry.product)


def _place(entry: Entry, request: Request, directory: Path) -> Path:
    """Put the library into a directory of the user's, under a name of its own, with `<name>.so` linked to it.

    The dynamic loader would take new contents under a name that it has mapped for the old ones.
    """
    directory = directory.absolute()
    leaf = entry.dir.parent.name.rpartition("-")[2][:16] + "-" + entry.dir.name[:8]
    path = directory / f"{request.slug}-{leaf}.so"
    if not path.is_file() or path.read_bytes() != entry.product.read_bytes():
        _copy(entry.product, path)
    with _placing(directory / f"{request.slug}.so") as link:
        link.symlink_to(path.name)
    return path


def _copy(source: Path, target: Path) -> Path:
    """Copy a file into place whole."""
    with _placing(target) as fresh:
        shutil.copyfile(source, fresh)
    return target


@contextmanager
def _placing(target: Path) -> Iterator[Path]:
    """Give a name beside the target, nobody else's, and move what is made there into place."""
    fresh = target.with_name(f".jitload-{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield fresh
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise JitLoadError(f"the library cannot be put at {target}: {error.strerror}") from error


def _read_files(*given: Paths | None) -> tuple[tuple[tuple[str, str], ...], tuple[Path, ...]]:
    """Return label and text of each file, and the directories they lie in."""
    paths = [path for files in given for path in read_paths(files, "sources")]
    pieces = tuple((_printable(str(path)), read_file(path)) for path in paths)
    homes = dict.fromkeys(path.absolute().parent for path in paths)
    return pieces, tuple(homes)


def _printable(label: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in label)
