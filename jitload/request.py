"""The arguments of the public functions in, one frozen `Request` out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from jitload.arch import CPU, resolve_arch, resolve_gpu_arch
from jitload.checks import NO_CHECKS, Checks, check_checks, cpu_options
from jitload.embed import GivenImage, read_cubins, read_images
from jitload.errors import JitLoadError
from jitload.flags import device_flags, host_flags, nvcc_flags, split_includes
from jitload.launch import Launch
from jitload.named import Functions, check_host_functions, has_launches, names_nothing, read_functions
from jitload.paths import absolute_path
from jitload.settings import Settings, read_settings
from jitload.sources import (
    HOST_SUFFIXES,
    HostSource,
    Kind,
    Paths,
    Pieces,
    Sources,
    Unit,
    check_backend,
    has_kernels_in_headers,
    read_kind,
    read_options,
    read_paths,
)

if TYPE_CHECKING:
    from jitload.triton.source import TritonSource

_SLUG = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a public call asks for; equal requests are answered by the same module.

    Attributes:
        name: The module's name, as given.
        pieces: Label and text of each piece of device code; none where all is the host's.
        functions: Exported names and their launches; None exports every kernel.
        archs: The architectures, resolved.
        options: NVRTC options from `extra_cuda_cflags`.
        include_dirs: The user's include directories.
        settings: What the environment said at the call.
        host: The hand-written C++, or None where the wrapper is generated.
        is_kind_given: Whether the caller said what `cuda_sources` is.
        triton: The Triton kernel, where it is about one.
        images: Cubins that functions are to be made of, where there is no source at all.
        cpu_flags: The options with which kernels are compiled for the CPU; none where they are not.
        checks: How kernels are to be watched.
    """

    name: str
    pieces: Pieces
    functions: tuple[tuple[str, Launch], ...] | None
    archs: tuple[str, ...]
    options: tuple[str, ...]
    include_dirs: tuple[str, ...]
    settings: Settings
    host: HostSource | None = None
    is_kind_given: bool = False
    triton: TritonSource | None = None
    images: tuple[GivenImage, ...] = ()
    cpu_flags: tuple[str, ...] = ()
    checks: Checks = NO_CHECKS

    @property
    def slug(self) -> str:
        """The name as part of a file's name: letters, digits and underscores, at most 48."""
        return slug_of(self.name)

    @property
    def product(self) -> str:
        """The name of the file that a build makes."""
        return f"{self.slug}.o" if self.host is not None and self.host.is_object else f"{self.slug}.so"


class Flags(NamedTuple):  # made at each call, for an eighth of what a frozen dataclass costs
    """The compilers' options of a public call.

    Attributes:
        host: `extra_cflags`, for the host's compiler, without the directories in it.
        host_dirs: Those directories.
        cuda: `extra_cuda_cflags`, written for nvcc.
        link: `extra_ldflags`.
        include_dirs: `extra_include_paths`.
    """

    host: tuple[str, ...] = ()
    host_dirs: tuple[Path, ...] = ()
    cuda: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()


_NO_FLAGS = Flags()


def read_flags(
    *,
    cflags: Sequence[str] | None = None,
    cuda_cflags: Sequence[str] | None = None,
    ldflags: Sequence[str] | None = None,
    include_paths: Paths | None = None,
) -> Flags:
    """Read `extra_cflags=` and its like."""
    host, host_dirs = split_includes(read_options(cflags, "extra_cflags"))
    return Flags(
        host=host,
        host_dirs=host_dirs,
        cuda=read_options(cuda_cflags, "extra_cuda_cflags"),
        link=read_options(ldflags, "extra_ldflags"),
        include_dirs=read_paths(include_paths, "extra_include_paths"),
    )


class Target(NamedTuple):  # as Flags
    """What a public call wants to have of its source.

    Attributes:
        makes: A `module`, which runs here and now, so that kernels may be for the CPU where there is no GPU; a
            `library`; or a `cubin`, machine code alone.
        arch: The architectures, as given.
        backend: None or `"cuda"`.
        kind: What `cuda_sources` is, where that is said.
        checks: How kernels are to be watched.
    """

    makes: Literal["module", "library", "cubin"]
    arch: str | Sequence[str] = "native"
    backend: str | None = None
    kind: str | None = None
    checks: Checks = NO_CHECKS


def make_request(
    name: str, sources: Sources, *, target: Target, flags: Flags = _NO_FLAGS, functions: Functions | None = None
) -> Request:
    """Check the arguments of a public call and return its request, with the settings of this moment."""
    settings = read_settings()
    check_name(name)
    check_backend(target.backend)
    if not sources.has_code and sources.cubins:
        return _request_of_images(name, sources, target, functions=functions, settings=settings)
    if not sources.has_code:
        if target.makes == "cubin":
            raise JitLoadError(f"the source of {name!r} is empty")
        raise JitLoadError(f"module {name!r} has no source: give cuda_sources= or cpp_sources=, or files as sources=")
    kind = _kind_of(sources, target, None if names_nothing(functions) else functions, flags.cuda)
    dirs = (*flags.include_dirs, *sources.homes, *split_includes(flags.cuda)[1], *flags.host_dirs)
    if kind == "host" and target.kind is None and has_kernels_in_headers(sources, dirs, flags.cuda):
        kind = "mixed"
    if kind != "device" and names_nothing(functions):
        functions = None
    exports = read_functions(functions)
    if kind == "host" and target.kind is None:
        _check_is_no_kernel(name, sources, flags.cuda)
    for_cuda = {"device": device_flags, "mixed": nvcc_flags, "host": host_flags}[kind]
    cuda_options, cuda_dirs = split_includes(for_cuda(flags.cuda))
    device = sources.cuda if kind == "device" else ()
    host = _host_source(name, sources, kind=kind, flags=flags, cuda_options=cuda_options)
    if host is not None:
        check_host_functions(functions, host, names=(name for name, _ in exports or ()))
    include_dirs = (*flags.include_dirs, *sources.homes, *cuda_dirs, *flags.host_dirs)
    request = Request(
        name=name,
        pieces=device,
        functions=exports,
        archs=_resolve_arch(target, host, settings) if kind != "host" else (),
        options=cuda_options if device else (),
        include_dirs=tuple(str(absolute_path(path, "extra_include_paths")) for path in include_dirs),
        settings=settings,
        host=host,
        is_kind_given=target.kind is not None,
        checks=target.checks,
    )
    if host is not None and device:
        _check_embeddable(request)
    check_checks(request.checks, request.archs, has_host_code=host is not None)
    return _with_cpu_flags(request, flags.host)


def _kind_of(sources: Sources, target: Target, functions: Functions | None, cuda_flags: tuple[str, ...]) -> Kind:
    """Return what the CUDA sources are."""
    if target.makes == "cubin":
        return "device"
    # Of a text that includes others, the functions named may be kernels in a header, or a macro's.
    has_header = any("#include" in text for _, text in sources.cuda) or any("__global__" in flag for flag in cuda_flags)
    names_functions = functions is not None and not has_launches(functions)
    if names_functions and has_header:
        names_functions = _defines_functions(sources, functions)
    kind = read_kind(
        target.kind,
        tuple(text for _, text in sources.cuda),
        has_cubins=bool(sources.cubins),
        has_host_code=bool(sources.host or sources.objects) or names_functions,
        options=cuda_flags,
    )
    return kind if sources.cuda else "host"


def _check_is_no_kernel(name: str, sources: Sources, cuda_flags: tuple[str, ...]) -> None:
    """Refuse kernels and nothing else where cubins to embed say that it is C++: it is the one or the other."""
    texts = tuple(text for _, text in sources.cuda)
    if not sources.cubins or not any("__global__" in text for text in texts):
        return

    from jitload.cpptext.source_kind import classify

    if classify(texts, has_embed_cubin=False, options=cuda_flags) != "device":
        return
    cpp = f"the C++ launches them with TVM_FFI_EMBED_CUBIN({name})" if sources.host else "leave embed_cubin= out, too"
    raise JitLoadError(
        f"module {name!r}: cuda_sources has kernels alone, and with embed_cubin= it would be C++. "
        f"kind='device' compiles the kernels ({cpp}); kind='host' gives them to the C++ compiler."
    )


def _defines_functions(sources: Sources, functions: Functions | None) -> bool:
    texts = tuple(text for _, text in sources.cuda)
    names = (functions,) if isinstance(functions, str) else tuple(functions) if isinstance(functions, Iterable) else ()
    if any("__global__" in text for text in texts) or not all(isinstance(name, str) for name in names):
        return False
    from jitload.cpptext.declarations import defines_host_functions

    return defines_host_functions(texts, names)


def _resolve_arch(target: Target, host: HostSource | None, settings: Settings) -> tuple[str, ...]:
    """Return the architectures for kernels in source; C++ written by hand launches those of a GPU."""
    if host is not None:
        if host.is_mixed and CPU in ((target.arch,) if isinstance(target.arch, str) else target.arch):
            from jitload.cpu.gpu_only import launches_error

            raise launches_error([piece for unit in host.units for piece in unit.pieces])
        return resolve_gpu_arch(target.arch, settings, what="kernels with C++ of your own are compiled")
    if target.makes == "cubin":
        return resolve_gpu_arch(target.arch, settings, what="machine code is made")
    return resolve_arch(target.arch, settings, may_be_cpu=target.makes == "module")


def _with_cpu_flags(request: Request, options: tuple[str, ...]) -> Request:
    """Add what the host's compiler gets of the options where it compiles kernels."""
    if request.checks.debug and request.pieces:
        request = replace(request, options=(*request.options, "--device-debug"))
    if CPU not in request.archs:
        return request
    if any("<<<" in text for _, text in request.pieces):
        from jitload.cpptext.source_kind import classify

        texts = [text for _, text in request.pieces]
        if classify(texts, has_embed_cubin=False, options=request.options) == "both":  # NVRTC alone would drop it
            from jitload.cpu.gpu_only import launches_error

            raise launches_error(request.pieces)
    return replace(request, cpu_flags=(*cpu_options(request.options), *options))


def _request_of_images(
    name: str, sources: Sources, target: Target, *, functions: Functions | None, settings: Settings
) -> Request:
    """Return the request for functions of cubins that were compiled elsewhere; they decide the architecture."""
    return Request(
        name=name,
        pieces=(),
        functions=read_functions(functions),
        archs=() if target.arch == "native" else resolve_gpu_arch(target.arch, settings, what="cubins are"),
        options=(),
        include_dirs=(),
        settings=settings,
        images=read_images(sources.cubins),
    )


def _host_source(
    name: str, sources: Sources, *, kind: Kind, flags: Flags, cuda_options: tuple[str, ...]
) -> HostSource | None:
    """Return the hand-written C++, if there is any; what is given for CUDA is for its texts, though they are C++."""
    cubins = read_cubins(sources.cubins, device_name=name if kind == "device" else "")
    for_host = () if kind == "device" else sources.cuda
    if not (sources.host or for_host or sources.objects):
        if cubins:
            raise JitLoadError(
                f"module {name!r} has cubins to embed and no C++ that launches them: give cpp_sources=, or "
                "kind='host' if cuda_sources is C++"
            )
        return None
    suffix = "cu" if kind == "mixed" else "cc"
    return HostSource(
        units=tuple(
            Unit(file=f, pieces=pieces, is_file=sources.are_files, flags=cuda_options if pieces[0] in for_host else ())
            for f, pieces in _files(sources, for_host, suffix)
            if pieces
        ),
        objects=sources.objects,
        cubins=cubins,
        flags=flags.host,
        link_flags=flags.link,
    )


def _files(sources: Sources, cuda: Pieces, suffix: str) -> list[tuple[str, Pieces]]:
    """Return what is compiled by itself, with a name in the build's directory: each file, or all texts of a kind."""
    if not sources.are_files:
        return [("cpp_sources.cc", sources.host), (f"cuda_sources.{suffix}", cuda)]
    pieces = (*sources.host, *cuda)
    return [(f"source{number}.{_suffix_of(piece[0], suffix)}", (piece,)) for number, piece in enumerate(pieces)]


def _suffix_of(label: str, for_cuda: str) -> str:
    """Return the suffix by which a source file is compiled: as C, as C++, or as CUDA's files are in this request."""
    suffix = Path(label).suffix.lower()
    if suffix in HOST_SUFFIXES:
        return "c" if suffix == ".c" else "cc"
    return for_cuda


def _check_embeddable(request: Request) -> None:
    """Refuse device code that cannot be embedded for hand-written C++."""
    if not (request.name.isascii() and request.name.isidentifier()):
        raise JitLoadError(
            f"name={request.name!r} must be a C++ name: the C++ finds its kernels with TVM_FFI_EMBED_CUBIN(name)"
        )
    if len(request.archs) != 1:
        raise JitLoadError(
            f"module {request.name!r} embeds one cubin for its C++, so it takes one architecture, not "
            f"{', '.join(request.archs)}"
        )


def slug_of(name: str) -> str:
    """Return a name as part of a file's name; names with the same slug differ by their key."""
    return _SLUG.sub("_", name)[:48] or "_"


def check_name(name: str) -> str:
    """Return a module's name, refusing one that no message and no path could show."""
    if not isinstance(name, str):
        raise JitLoadError(f"name must be a str, got {type(name).__name__}")
    if not name or len(name) > 256 or not name.isprintable():
        raise JitLoadError(f"name={name[:80]!r} must have 1 to 256 printable characters")
    return name
