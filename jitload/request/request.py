"""Turns the arguments of a public function such as `load_inline` into one `Request`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jitload.errors import CompileError, Diagnostic, JitLoadError, LaunchSpecError
from jitload.request.arguments import (
    DEBUG,
    FAST_COMPILE,
    Call,
    Pieces,
    absolute_path,
    check_name,
    read_functions,
)
from jitload.request.cubins import LabelledCubin, check_cubin_name, read_embedded_cubins, read_labelled_cubins
from jitload.request.kind import DEFAULT_DEVICE, check_host_functions, find_kind, leaves_host_code_out, with_light_torch
from jitload.request.launch import Launch
from jitload.request.options import cpu_options, take_archs, take_libraries, translate_cuda_options
from jitload.request.tune import Choice, Tuned, Values
from jitload.settings import Settings, read_settings
from jitload.toolchain.arch import CPU, add_archs, check_options_agree, resolve_arch, resolve_gpu_arch
from jitload.words import Argument, Words

if TYPE_CHECKING:
    from jitload.cpptext.source_kind import SourceKind
    from jitload.model import Cubin

RECORD_FILE = "kernels.record"  # the file that describes kernels; see `codegen/record.py`
# A file whose name begins with a dot is hidden, and a name that begins with a hyphen is read as an option.
_NOT_IN_FILE_NAMES = re.compile(r"^[.-]|[^A-Za-z0-9_.-]+")
_LAUNCH = re.compile(
    r"<<<|cu(?:da)?Launch\w+|thrust|cub"
)  # the token of a launch, or of a header whose functions launch


class Unit(NamedTuple):
    """A translation unit of host code, with or without kernels.

    Attributes:
        file: The unit's file name in the build directory.
        pieces: `(label, text)` pairs. Messages call a text by its label.
        is_file: Whether the unit is a source file. Only inline text gets tvm-ffi's convenience headers.
        flags: Options for this unit alone.
    """

    file: str
    pieces: Pieces
    is_file: bool = False
    flags: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether the unit contains kernels and the C++ that launches them with `<<<…>>>`."""
        return self.file.endswith(".cu")

    @property
    def is_relocatable(self) -> bool:
        """Whether the unit's device code is linked with the device code of other units."""
        return self.is_mixed and "-rdc=true" in self.flags


class HostSource(NamedTuple):
    """The hand-written C++ of a request.

    Attributes:
        units: The parts that are compiled separately, in order.
        objects: Object files to link.
        cubins: Name and bytes of each cubin to embed.
        flags: `extra_cflags`.
        link_flags: `extra_ldflags`.
        is_object: Whether the result is an object file for the user to link, not a library.
        is_torch: Whether the C++ is written for torch's C++ interface.
    """

    units: tuple[Unit, ...]
    objects: tuple[str, ...] = ()
    cubins: tuple[tuple[str, bytes], ...] = ()
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    is_object: bool = False
    is_torch: bool = False

    @property
    def pieces(self) -> Pieces:
        """The `(label, text)` pairs of all units."""
        return tuple(piece for unit in self.units for piece in unit.pieces)

    @property
    def is_mixed(self) -> bool:
        """Whether any unit contains kernels together with host code."""
        return any(unit.is_mixed for unit in self.units)


class VariantSource(NamedTuple):
    """One specialization of a Triton kernel: its exported name, and its `triton.plan.Plan` or its compiled cubins.

    `values` are what distinguishes it from other variants.
    """

    name: str
    plan: Any = None
    cubins: tuple[Cubin, ...] = ()
    values: Values = ()


class TritonSource(NamedTuple):
    """A Triton kernel in a request. Two Triton kernels are equal if their `parts` are equal.

    Attributes:
        parts: `(name, value)` pairs for the cache key: everything that determines the library.
        name: The kernel's name.
        variants: Its specializations, in the order in which a call tries them.
        grid: The launch expressions for the number of programs, or None if each call passes them.
        kernel: The `triton.kernel.TritonKernel`, or None for a compiled kernel.
        choice: How a key chooses among the variants, or None if the first that fits is launched.
        doc: The docstring of the functions.
    """

    parts: tuple[tuple[str, str | tuple[str, ...]], ...]
    name: str
    variants: tuple[VariantSource, ...]
    grid: Any
    kernel: Any = None
    choice: Choice | None = None
    doc: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TritonSource) and self.parts == other.parts

    def __ne__(self, other: object) -> bool:  # needed because `tuple` defines its own __ne__
        return not self == other

    def __hash__(self) -> int:
        return hash(self.parts)


class Request(NamedTuple):
    """A description of what a call of a public function needs. Equal requests get the same module.

    Attributes:
        name: The module's name, as given.
        kind: The kind of source, which is a module of `jitload.sources`.
        archs: The architectures, such as `sm_90a` and `cpu`, but never `native`.
        settings: The settings at the time of the call.
        pieces: `(label, text)` pairs of code for NVRTC; empty for host or mixed source, cubins and Triton.
        functions: Exported names and their launches; None exports every kernel.
        options: NVRTC options from `extra_cuda_cflags`.
        include_dirs: The user's include directories.
        host: The hand-written C++, or None if there is none.
        is_kind_explicit: Whether the caller passed `kind=`.
        triton: The Triton kernel, if the request is for one.
        cubins: Cubins whose kernels become functions, if there is no source.
        cpu_flags: Options for compiling kernels for the CPU; empty if `archs` does not contain `cpu`.
        instrumentation: Names of sanitizers for kernels, and `DEBUG`.
        tuned: The file of measurements by which variants are chosen.
        leaves_host_code_out: Whether a build leaves out the host code in `pieces`.
    """

    name: str
    kind: Literal["device", "cubin", "triton", "host", "cpu"]
    archs: tuple[str, ...]
    settings: Settings
    pieces: Pieces = ()
    functions: tuple[tuple[str, Launch], ...] | None = None
    options: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()
    host: HostSource | None = None
    is_kind_explicit: bool = False
    triton: TritonSource | None = None
    cubins: tuple[LabelledCubin, ...] = ()
    cpu_flags: tuple[str, ...] = ()
    instrumentation: tuple[str, ...] = ()
    tuned: Tuned | None = None
    leaves_host_code_out: bool = False

    @property
    def slug(self) -> str:
        """The name for use in file names: at most 48 letters, digits and the characters `_`, `.` and `-`.

        Two names may have the same slug; their cache keys differ.
        """
        return _NOT_IN_FILE_NAMES.sub("_", self.name)[:48] or "_"

    @property
    def has_record(self) -> bool:
        """Whether the result is a record of kernels, which can be launched before there is a library."""
        return self.kind not in ("host", "cpu")

    @property
    def product(self) -> str:
        """The file name of the library or object file that a build produces."""
        return f"{self.slug}.o" if self.host is not None and self.host.is_object else f"{self.slug}.so"


def make_request(call: Call) -> Request:
    """Return the request of a call, with the current settings, and record the call if they ask for this."""
    settings = _settings_of(call)
    request = _make_request(call, settings)
    if settings.record and call.makes in ("module", "library"):
        from jitload.request.recording import decode_call, encode_call, record_item

        def is_same(item: dict[str, Any]) -> bool:
            return _make_request(decode_call(item), settings) == request

        record_item(settings.record, encode_call(call, request.archs), is_same)
    return request


def _make_request(call: Call, settings: Settings) -> Request:
    check_name(call.name)
    request = _request_for_code(call, settings) if call.sources.has_code else _request_for_cubins(call, settings)
    if call.tuned is not None and not any(launch.tune is not None for _, launch in request.functions or ()):
        problem = f"{call.tuned.label} chooses variants, but no function has a Launch(tune=…)"
        raise LaunchSpecError(problem, field="tuned")
    _check_instrumentation(call.instrumentation, request.archs, has_host_code=request.host is not None)
    return request


def _request_for_code(call: Call, settings: Settings) -> Request:
    """Return the request for source and object files."""
    call = with_light_torch(call)
    if call.functions is not None:
        call = call._replace(exports=read_functions(call.functions))
    kind = "device" if call.makes == "cubin" else find_kind(call)
    leaves_out = leaves_host_code_out(call, kind)
    kind = "device" if leaves_out else kind
    cuda_options: tuple[str, ...] = ()
    cuda_dirs: tuple[Path, ...] = ()
    option_archs: tuple[str, ...] = ()
    if call.options.cuda:
        options, option_archs = take_archs(call.options.cuda)
        options, libraries = take_libraries(options)
        call = call._replace(options=call.options._replace(link=(*call.options.link, *libraries)))
        cuda_options, cuda_dirs = translate_cuda_options(kind, options)
    host = _host_source(call, kind, cuda_options)
    if host is not None:
        check_host_functions(call, host)
    include_dirs = (*call.options.include_dirs, *call.sources.directories, *cuda_dirs, *call.options.host_dirs)
    if settings.cutlass:
        from jitload.toolchain.cutlass import cutlass_dirs

        include_dirs += cutlass_dirs(settings.cutlass)
    archs = () if kind == "host" else _resolve_archs(call, host, option_archs, settings)
    request = Request(
        name=call.name,
        kind="host" if host is not None else "cpu" if CPU in archs else "device",
        pieces=call.sources.cuda if kind == "device" else (),
        functions=_kernels(call) if kind == "device" else call.exports or None,
        archs=archs,
        options=(*cuda_options, *(DEFAULT_DEVICE if leaves_out else ())) if kind == "device" else (),
        include_dirs=tuple(str(absolute_path(path, "extra_include_paths")) for path in include_dirs),
        settings=settings,
        host=host,
        is_kind_explicit=call.kind is not None,
        instrumentation=call.instrumentation,
        tuned=call.tuned,
        leaves_host_code_out=leaves_out,
    )
    if host is not None and request.pieces:
        _check_embeddable(request)
    if CPU in archs and (name := next((name for name, launch in request.functions or () if launch.tensor_maps), None)):
        problem = "tensor maps exist only on GPUs: build the kernel without the architecture 'cpu'"
        raise LaunchSpecError(problem, kernel=name, field="tma")
    return _with_cpu_flags(request, call.options.host)


def _settings_of(call: Call) -> Settings:
    """Return the settings from environment variables. The call's `isolate=` and `gpu_check=` take precedence."""
    settings = read_settings()
    if call.isolate is not None:
        settings = settings._replace(isolates=bool(call.isolate))
    if call.gpu_check is not None:
        settings = settings._replace(checks_for_gpu=bool(call.gpu_check))
    return settings


def _request_for_cubins(call: Call, settings: Settings) -> Request:
    """Return the request for cubins compiled elsewhere; with `arch="native"`, the cubins decide the architecture."""
    if call.sources.cubins is None and call.makes == "cubin":
        raise JitLoadError(f"the source of {call.name!r} is empty")
    if not call.sources.cubins:
        raise JitLoadError(
            f"module {call.name!r} has no source: ",
            Argument("no source", python="pass cuda_sources= or cpp_sources=, or files as sources="),
        )
    _check_has_no_source_arguments(call)
    functions = _kernels(call._replace(exports=read_functions(call.functions)))
    if name := next((name for name, launch in functions or () if launch.bounds), None):
        hint = "The bounds are worked out from the source of the kernel: pass the source, or leave bounds= out."
        raise LaunchSpecError("needs CUDA source, not a cubin", kernel=name, field="bounds", hint=hint)
    return Request(
        name=call.name,
        kind="cubin",
        archs=() if call.arch == "native" else resolve_gpu_arch(call.arch, settings, subject="cubins are compiled"),
        settings=settings,
        functions=functions,
        cubins=read_labelled_cubins(call.sources.cubins),
    )


def _check_has_no_source_arguments(call: Call) -> None:
    options = call.options
    values = {
        "debug": DEBUG in call.instrumentation,
        "kind": call.kind,
        "fast_compile": FAST_COMPILE in options.cuda,
        "extra_cuda_cflags": options.cuda,
        "extra_cflags": options.host or options.host_dirs,
        "extra_ldflags": options.link,
        "extra_include_paths": options.include_dirs,
    }
    if name := next((name for name, value in values.items() if value), None):
        raise JitLoadError(Argument(name), " is for sources, but cubins are compiled already")


def _kernels(call: Call) -> tuple[tuple[str, Launch], ...] | None:
    """Return the exported names and launches, or None for every kernel. An empty list or mapping is an error."""
    if call.exports == ():
        raise LaunchSpecError("is empty", field="functions", hint="Leave it out to export every kernel.")
    return call.exports


def _gpu_only(pieces: Sequence[tuple[str, str]]) -> CompileError:
    """Return the error for kernels on the CPU beside C++ for the host. It names the line of the first launch."""
    from jitload.cpptext.lexer import tokenize

    tokens = ((label, token) for label, text in pieces for token in tokenize(text))
    launches = ((label, token.line) for label, token in tokens if _LAUNCH.fullmatch(token.text))
    label, line = next(launches, (pieces[0][0], 1))
    message = "GPU only: launches with <<<…>>> and other C++ for the host beside kernels"
    hint = ('This needs a GPU: leave "cpu" out of ', Argument("arch"), ". To load kernels alone, name only them in ")
    return CompileError(
        stage="host",
        name=label,
        log=f"{label}:{line}: error: {message}\n",
        diagnostics=(Diagnostic(file=label, line=line, severity="error", message=message),),
        hint=Words(*hint, Argument("functions"), " and pass no C++ sources."),
    )


def _resolve_archs(
    call: Call, host: HostSource | None, option_archs: Sequence[str], settings: Settings
) -> tuple[str, ...]:
    """Return the architectures to compile kernels for. Hand-written C++ and cubins allow only GPUs."""
    arch = add_archs(call.arch, option_archs, settings) if option_archs else call.arch
    if host is not None:
        if host.is_mixed and call.names_cpu:
            raise _gpu_only(host.pieces)
        return resolve_gpu_arch(
            arch, settings, subject="kernels with C++ of your own are compiled", may_be_ptx=host.is_mixed
        )
    if call.makes == "cubin":
        archs = resolve_gpu_arch(call.arch, settings, subject="machine code is made")
        check_options_agree(archs, option_archs)
        return archs
    return resolve_arch(arch, settings, may_be_cpu=call.makes == "module")


def _with_cpu_flags(request: Request, host_options: tuple[str, ...]) -> Request:
    """Return the request with the options for debugging and for the CPU, if needed."""
    if DEBUG in request.instrumentation and request.pieces:
        request = request._replace(options=(*request.options, "--device-debug"))
    if CPU not in request.archs:
        return request
    return request._replace(cpu_flags=(*cpu_options(request.options), *host_options))


def _host_source(call: Call, kind: SourceKind, cuda_options: tuple[str, ...]) -> HostSource | None:
    """Return the hand-written C++ of a call, or None if there is none."""
    sources = call.sources
    cuda = () if kind == "device" else sources.cuda
    if not (sources.host or cuda or sources.objects):
        if sources.cubins:
            raise JitLoadError(
                f"module {call.name!r} has cubins to embed but no C++ that launches them: pass cpp_sources=, or "
                "kind='host' if cuda_sources is C++"
            )
        return None
    return HostSource(
        units=tuple(_units(call, kind, cuda, cuda_options)),
        objects=sources.objects,
        cubins=read_embedded_cubins(sources.cubins, device_name=call.name if kind == "device" else ""),
        flags=call.options.host,
        link_flags=call.options.link,
        is_torch=call.torch is not None,
    )


def _units(call: Call, kind: SourceKind, cuda: Pieces, cuda_options: tuple[str, ...]) -> Iterator[Unit]:
    """Yield the translation units. Each source file is a unit, and so are all inline texts of one language together.

    The suffix of a unit's file tells the compiler the language. nvcc compiles what has kernels. `cuda_sources` get the
    options for CUDA code even if they are C++ for the host.
    """
    sources = call.sources
    if not sources.are_files:
        suffix = "cu" if kind == "mixed" else "cc"
        inline = (("cpp_sources.cc", sources.host, ()), (f"cuda_sources.{suffix}", cuda, cuda_options))
        yield from (Unit(file, pieces, flags=flags) for file, pieces, flags in inline if pieces)
        return
    for number, piece in enumerate((*sources.host, *cuda)):
        is_cuda = number >= len(sources.host)
        of_piece = call._replace(sources=sources._replace(cuda=(piece,)))
        is_mixed = is_cuda and kind == "mixed" and (call.kind is not None or find_kind(of_piece) != "host")
        suffix = "cu" if is_mixed else "c" if piece[0].endswith(".c") else "cc"
        yield Unit(f"source{number}.{suffix}", (piece,), is_file=True, flags=cuda_options if is_cuda else ())


def _check_embeddable(request: Request) -> None:
    """Raise JitLoadError if hand-written C++ cannot embed the request's device code."""
    check_cubin_name(request.name, "the kernels are embedded under the module's name,")
    if len(request.archs) != 1:
        raise JitLoadError(
            f"module {request.name!r} embeds one cubin for its C++, so it takes one architecture, not "
            f"{', '.join(request.archs)}"
        )


def _check_instrumentation(instrumentation: Sequence[str], archs: Sequence[str], *, has_host_code: bool) -> None:
    """Raise JitLoadError for the instrumentation of hand-written C++, and for sanitizers if `archs` has no `cpu`."""
    if instrumentation and has_host_code:
        options = Argument("extra_cflags", is_name=True)
        subject = (Argument("sanitize"), " and ", Argument("debug"))
        raise JitLoadError(*subject, " are for kernels; for C++ of your own pass options in ", options)
    if any(name != DEBUG for name in instrumentation) and CPU not in archs:
        target = ", ".join(archs) or "that of the cubins"
        problem = f" is for kernels on the CPU, but the architecture is {target}: pass "
        raise JitLoadError(Argument("sanitize"), problem, Argument("arch", "cpu"))
