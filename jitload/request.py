"""The arguments of the public functions in, one frozen `Request` out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jitload.arch import CPU, resolve_arch, resolve_gpu_arch
from jitload.checks import NO_CHECKS, Checks, check_checks, cpu_options
from jitload.errors import JitLoadError, LaunchSpecError
from jitload.flags import device_flags, host_flags, nvcc_flags, split_includes
from jitload.gpu_only import launches_error
from jitload.launch import Launch
from jitload.paths import absolute_path
from jitload.settings import Settings, read_settings
from jitload.sources import (
    HOST_SUFFIXES,
    GivenImage,
    HostSource,
    Image,
    Paths,
    Pieces,
    Unit,
    check_backend,
    read_cubins,
    read_images,
    read_kind,
    read_options,
    read_paths,
)
from jitload.triton_source import TritonSource

Functions = str | Sequence[str] | Mapping[str, "Launch | str | None"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HandWritten:
    """The arguments of a public call that concern hand-written C++, as given.

    Attributes:
        cpp: Label and text of each piece of `cpp_sources`, or of each file.
        objects: Object files.
        are_files: Whether the pieces are files, each compiled by itself as it is.
        embed_cubin: Names and cubins.
        flags: `extra_cflags`.
        link_flags: `extra_ldflags`.
        backend: None or `"cuda"`.
        kind: What `cuda_sources` is, where that is said.
        makes_cubin: Whether machine code is asked for, and no library.
        may_be_cpu: Whether kernels may be for the CPU where there is no GPU: what is built runs here and now.
        checks: How kernels are to be watched.
    """

    cpp: Pieces = ()
    objects: tuple[str, ...] = ()
    are_files: bool = False
    embed_cubin: Mapping[str, Image] | None = None
    flags: Sequence[str] | None = None
    link_flags: Sequence[str] | None = None
    backend: str | None = None
    kind: str | None = None
    makes_cubin: bool = False
    may_be_cpu: bool = False
    checks: Checks = NO_CHECKS


def make_request(  # noqa: PLR0913  one for each thing a user may ask for
    name: str,
    pieces: Pieces,
    *,
    functions: Functions | None,
    arch: str | Sequence[str],
    flags: Sequence[str] | None,
    include_paths: Paths | None,
    by_hand: HandWritten | None = None,
) -> Request:
    """Check the arguments of a public call and return its request, with the settings of this moment."""
    settings = read_settings()
    check_name(name)
    given = by_hand or HandWritten(kind="device", makes_cubin=True)
    has_source = any(text.strip() for _, text in (*pieces, *given.cpp)) or bool(given.objects)
    if not has_source and given.embed_cubin:
        return _request_of_images(name, given, functions, arch, settings)
    if not has_source:
        raise JitLoadError(f"module {name!r} has no source: give cuda_sources= or cpp_sources=, or files as sources=")
    options, dirs = split_includes(read_options(given.flags, "extra_cflags"))
    cuda_flags = read_options(flags, "extra_cuda_cflags")
    exports = read_functions(functions)
    device, host = _split_sources(name, pieces, given, functions=functions, options=options, cuda_flags=cuda_flags)
    if host is not None:
        _check_host_functions(functions, host)
    is_mixed = host is not None and host.is_mixed
    for_cuda = nvcc_flags if is_mixed else device_flags if device else host_flags
    device_options, device_dirs = split_includes(for_cuda(cuda_flags))
    include_dirs = (*read_paths(include_paths, "extra_include_paths"), *device_dirs, *dirs)
    request = Request(
        name=name,
        pieces=device,
        functions=exports,
        archs=_resolve_arch(given, host, arch, settings) if device or is_mixed else (),
        options=device_options if device else (),
        include_dirs=tuple(str(absolute_path(path, "extra_include_paths")) for path in include_dirs),
        settings=settings,
        host=host,
        is_kind_given=by_hand is not None and by_hand.kind is not None,
        checks=given.checks,
    )
    if host is not None and device:
        _check_embeddable(request)
    check_checks(request.checks, request.archs, has_host_code=host is not None)
    return _with_cpu_flags(request, options)


def _resolve_arch(
    given: HandWritten, host: HostSource | None, arch: str | Sequence[str], settings: Settings
) -> tuple[str, ...]:
    """Return the architectures for kernels in source; C++ written by hand launches those of a GPU."""
    if host is not None:
        if host.is_mixed and CPU in ((arch,) if isinstance(arch, str) else arch):
            raise launches_error([piece for unit in host.units for piece in unit.pieces])
        return resolve_gpu_arch(arch, settings, what="kernels with C++ of your own are compiled")
    if given.makes_cubin:
        return resolve_gpu_arch(arch, settings, what="machine code is made")
    return resolve_arch(arch, settings, may_be_cpu=given.may_be_cpu)


def _with_cpu_flags(request: Request, options: tuple[str, ...]) -> Request:
    """Add what the host's compiler gets of the options where it compiles kernels."""
    if request.checks.debug and request.pieces:
        request = replace(request, options=(*request.options, "--device-debug"))
    if CPU not in request.archs:
        return request
    return replace(request, cpu_flags=(*cpu_options(request.options), *options))


def _request_of_images(
    name: str,
    given: HandWritten,
    functions: Functions | None,
    arch: str | Sequence[str],
    settings: Settings,
) -> Request:
    """Return the request for functions of cubins that were compiled elsewhere; they decide the architecture."""
    check_backend(given.backend)
    return Request(
        name=name,
        pieces=(),
        functions=read_functions(functions),
        archs=() if arch == "native" else resolve_gpu_arch(arch, settings, what="cubins are"),
        options=(),
        include_dirs=(),
        settings=settings,
        images=read_images(given.embed_cubin),
    )


def _split_sources(  # noqa: PLR0913  the arguments of one call
    name: str,
    pieces: Pieces,
    given: HandWritten,
    *,
    functions: Functions | None,
    options: tuple[str, ...],
    cuda_flags: tuple[str, ...],
) -> tuple[Pieces, HostSource | None]:
    """Return the device code, and the hand-written C++ if there is any."""
    check_backend(given.backend)
    # Of a text that includes others, the functions named may be kernels in a header, or a macro's.
    has_header = any("#include" in text for _, text in pieces) or any("__global__" in flag for flag in cuda_flags)
    names_functions = functions is not None and not _has_launches(functions) and not has_header
    kind = read_kind(
        given.kind,
        tuple(text for _, text in pieces),
        has_cubins=bool(given.embed_cubin),
        has_host_code=bool(given.cpp or given.objects) or names_functions,
    )
    device = pieces if kind == "device" else ()
    suffix = "cu" if kind == "mixed" else "cc"
    texts = (*given.cpp, *(() if device else pieces))
    link_flags = read_options(given.link_flags, "extra_ldflags")
    cubins = read_cubins(given.embed_cubin, device_name=name if device else "")
    if not texts and not given.objects:
        if cubins:
            raise JitLoadError(
                f"module {name!r} has cubins to embed and no C++ that launches them: give cpp_sources=, or "
                "kind='host' if cuda_sources is C++"
            )
        return device, None
    inline = (("cpp_sources.cc", given.cpp), (f"cuda_sources.{suffix}", () if device else pieces))
    units = tuple(Unit(file=file, pieces=texts) for file, texts in inline if texts)
    if given.are_files:
        units = tuple(
            Unit(file=f"source{number}.{_suffix_of(piece[0], suffix)}", pieces=(piece,), is_file=True)
            for number, piece in enumerate(texts)
        )
    if not device:  # what is given for CUDA is for its texts, though they are C++
        extra, _ = split_includes(nvcc_flags(cuda_flags) if kind == "mixed" else host_flags(cuda_flags))
        units = tuple(replace(unit, flags=extra) if unit.pieces[0] in pieces else unit for unit in units)
    host = HostSource(units=units, objects=given.objects, cubins=cubins, flags=options, link_flags=link_flags)
    return device, host


def _suffix_of(label: str, for_cuda: str) -> str:
    """Return the suffix by which a source file is compiled: as C, as C++, or as CUDA's files are in this request."""
    suffix = Path(label).suffix.lower()
    if suffix in HOST_SUFFIXES:
        return "c" if suffix == ".c" else "cc"
    return for_cuda


def _has_launches(functions: Functions) -> bool:
    return isinstance(functions, Mapping) and any(isinstance(value, Launch) for value in functions.values())


def _check_host_functions(functions: Functions | None, host: HostSource) -> None:
    """Refuse what `functions=` cannot say of functions that are C++."""
    if isinstance(functions, Mapping):
        for name, value in functions.items():
            if isinstance(value, Launch):
                raise LaunchSpecError(
                    "a Launch is for kernels, and this module's functions are C++",
                    kernel=name,
                    field=f"functions[{name!r}]",
                    hint="Give its name, or its name with a docstring; the C++ does the launch.",
                )
    if functions is not None and all(unit.is_file for unit in host.units):
        raise LaunchSpecError(
            "names functions of C++ files, which are compiled as they are",
            field="functions",
            hint="Write TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function) in the file.",
        )


def _check_embeddable(request: Request) -> None:
    """Refuse device code that cannot be embedded for hand-written C++."""
    if not _NAME.fullmatch(request.name):
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


def read_functions(functions: Functions | None) -> tuple[tuple[str, Launch], ...] | None:
    """Return `functions=` as names with launches: a name, several, or a mapping to a `Launch` or a docstring."""
    if functions is None:
        return None
    if isinstance(functions, Mapping):
        rows = list(functions.items())
    elif isinstance(functions, Iterable):
        rows = [(name, None) for name in ([functions] if isinstance(functions, str) else functions)]
    else:
        problem = f"must be a name, several, or a mapping to Launch records, got {type(functions).__name__}"
        raise LaunchSpecError(problem, field="functions")
    if not rows:
        raise LaunchSpecError("is empty", field="functions", hint="Leave it out to export every kernel.")
    names = [_exported(name) for name, _ in rows]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LaunchSpecError(f"names {twice!r} twice", field="functions")
    return tuple((name, _launch(name, value)) for name, value in rows)


def _exported(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LaunchSpecError(
            f"{name!r} is not a name a function can be exported under",
            field="functions",
            hint="Use letters, digits and underscores; name the kernel itself with Launch(kernel=…).",
        )
    return name


def _launch(name: str, value: object) -> Launch:
    if value is None:
        return Launch()
    if isinstance(value, str):
        return Launch(doc=value)
    if isinstance(value, Launch):
        return value
    raise LaunchSpecError(
        f"functions[{name!r}] must be a Launch or a docstring, got {type(value).__name__}",
        kernel=name,
        field="functions",
    )
