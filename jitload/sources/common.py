"""What the kinds of source share: the tools of a request, the common parts of its key, and the record of kernels."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jitload.cache.key import CacheKey, Part, may_embed_path
from jitload.cache.tiers import find_in_tiers
from jitload.errors import ToolchainError
from jitload.request.request import RECORD_FILE, Request
from jitload.request.tune import Tune
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.fingerprints import compiler_identity, cpu_identity
from jitload.toolchain.host import find_compiler

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.cache.store import Work

Parts = tuple[tuple[str, Part], ...]
_DEBUG_OPTIONS = ("-g", "-G", "-lineinfo", "--generate-line-info", "--device-debug", "--dopt")


class Tools(NamedTuple):
    """The tools of this machine that a request needs.

    Attributes:
        cuda: The compiler of device code, the CUDA headers alone, or None.
        compiler: The fingerprint of the C++ compiler; empty for kernels on a GPU, which have the same key with any
            compiler, because it only wraps them.
        problem: Why the library cannot be built here, or None. An entry that other tools made may still be used.
        unknown_parts: The parts of the key that missing tools would determine.
    """

    cuda: CudaToolchain | Nvcc | None = None
    compiler: str = ""
    problem: ToolchainError | None = None
    unknown_parts: tuple[str, ...] = ()


class Source(Protocol):
    """A kind of source. Its module has the name of the kind, `Request.kind`."""

    def tools(self, request: Request, cache_dir: Path) -> Tools:
        """Return the tools for a request. What is missing is in the result, and raises no error."""

    def key_parts(self, request: Request, tools: Tools) -> Parts:
        """Return the parts of the key that only this kind of source has."""

    def build(self, request: Request, tools: Tools, work: Work) -> Entry:
        """Build in `work.dir`, and publish the result: a library, or a record of kernels."""


def no_tools(_request: Request, _cache_dir: Path) -> Tools:
    """Return no tools, for kinds of source that need none."""
    return Tools()


def source_of(request: Request) -> Source:
    """Return the module for the kind of source of a request."""
    module: Any = importlib.import_module(f"jitload.sources.{request.kind}")
    return module  # type: ignore[no-any-return]


def build_entry(request: Request, tools: Tools, work: Work) -> Entry:
    """Build a request, with all variants of its kernels, and publish the result."""
    from jitload.request.kind import kernels_alone
    from jitload.request.variants import expand

    return source_of(request).build(expand(kernels_alone(request)), tools, work)


def find_tools(
    request: Request,
    cache_dir: Path,
    find_cuda: Callable[[], CudaToolchain | Nvcc | None],
    *,
    needs_compiler: bool = True,
) -> Tools:
    """Return the tools for a request: what `find_cuda` finds, and the C++ compiler if the build needs it.

    Raises:
        ToolchainError: The C++ compiler is installed but does not work.
    """
    cuda, compiler = None, None
    problems: list[ToolchainError] = []
    unknown_parts: tuple[str, ...] = ()
    try:
        cuda = find_cuda()
    except ToolchainError as error:
        problems.append(error)
    try:
        compiler = find_compiler(request.settings, needs_gcc=request.kind == "cpu") if needs_compiler else None
    except ToolchainError as error:
        problems.append(error)
        unknown_parts = ("compiler", "cpu")
    # C++ and kernels for the CPU can be built without NVRTC. If nothing is built, an entry of any NVRTC will do.
    if cuda is None and (problems or request.settings.mode == "load-only"):
        unknown_parts = ("nvrtc", *unknown_parts)
    identity = compiler_identity(compiler, cache_dir) if compiler else ""
    return Tools(cuda, identity, next(iter(problems), None), unknown_parts)


# ---- the key -----------------------------------------------------------------------------------------------------


def library_key(request: Request, tools: Tools, own: str) -> CacheKey:
    """Return the key of the library for a request, with all parts that determine the library's contents.

    `own` identifies jitload itself. The key does not contain the paths of the user's include directories. The same
    headers elsewhere make the same library, unless the library contains their paths. An entry is used only if the
    headers that its build read are unchanged.
    """
    functions = ("all",) if request.functions is None else tuple(f"{name}={spec!r}" for name, spec in request.functions)
    embeds = _embeds_paths(request)
    pieces = (*request.pieces, *(request.host.pieces if request.host else ()))
    key = CacheKey.of(
        request.slug,
        anchors=(*request.include_dirs, *(request.host.objects if request.host else ())),
        embeds_paths=embeds,
        parts=(
            ("kind", request.kind),
            ("module", request.name),
            ("labels", tuple(_key_label(label, text, embeds_paths=embeds) for label, text in pieces)),
            ("sources", tuple(text for _, text in pieces)),
            ("functions", functions),
            ("archs", request.archs),
            ("options", request.options),
            ("host_code", "left out" if request.leaves_host_code_out else ""),
            ("include_dirs", str(len(request.include_dirs))),
            ("nvrtc", tools.cuda.identity if tools.cuda else ""),
            ("compiler", tools.compiler),
            ("jitload", own),
            ("cpu", cpu_identity() if any("native" in flag for flag in (*_flags(request), tools.compiler)) else ""),
            *source_of(request).key_parts(request, tools),
            *_tune_parts(request),
        ),
    )
    return key._replace(unknown_parts=tools.unknown_parts)


def _tune_parts(request: Request) -> Iterator[tuple[str, Part]]:
    """Yield the key's parts for variants: the digest of the measurements, and values that depend on the device."""
    if request.tuned is not None:
        yield "tuned", request.tuned.digest
    tunes = [launch.tune for _, launch in request.functions or () if isinstance(launch.tune, Tune)]
    if spaces := [repr(tune.space(request.archs)) for tune in tunes if "device." in repr(tune)]:
        yield "variants", tuple(spaces)


def _flags(request: Request) -> list[str]:
    host = request.host
    flags = [flag for unit in host.units for flag in (*unit.flags, *host.flags)] if host else [*request.options]
    return [*flags, *request.cpu_flags]


def _embeds_paths(request: Request) -> bool:
    """Return whether the compiled code contains paths, for example in debug information."""
    return any(flag.startswith(_DEBUG_OPTIONS) for flag in _flags(request)) or bool(request.instrumentation)


def _key_label(label: str, text: str, *, embeds_paths: bool) -> str:
    """Return a source's label for the key: of a path, only the file name, unless the library may contain the path."""
    if not os.path.isabs(label) or embeds_paths or may_embed_path(text.encode()):
        return label
    return os.path.basename(label)


def libc_version() -> str:
    """Return the name and version of the C library, such as "glibc 2.36"."""
    return os.confstr("CS_GNU_LIBC_VERSION") or ""


# ---- the record of kernels -----------------------------------------------------------------------------------------


def build_kernels(request: Request, work: Work, write_kernels: Callable[[], tuple[Path, ...]]) -> Entry:
    """Compile kernels, write their record and, if it is needed, link their library. Publish the result.

    `write_kernels` compiles the kernels, writes the record, and returns the headers that were read.
    """
    local = request.settings._replace(remote="")  # the remote store has been asked already
    if work.needs_library and (recorded := find_in_tiers(work.cache_dir, work.key, local)):
        from jitload.building.library import is_whole, publish_library

        if is_whole(recorded, work.cache_dir):  # the kernels have been compiled already
            return publish_library(recorded, request, work)
    dependencies = write_kernels()
    if not work.needs_library:
        return work.publish(RECORD_FILE, dependencies)

    from jitload.building.library import link_library

    link_library(request, work.dir)
    return work.publish(request.product, dependencies)
