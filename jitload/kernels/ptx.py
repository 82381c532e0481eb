"""Compiles PTX, LTO-IR and fatbins to a `Cubin`, with nvJitLink."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jitload.cuda.fatbin import is_fatbin, read_fatbin, select_image
from jitload.cuda.nvjitlink import Format, LinkJob, link
from jitload.elf.cubin import read_cubin
from jitload.errors import CompileError, Diagnostic, JitLoadError, ToolchainError
from jitload.kernels.external_cubins import typed_cubin
from jitload.model import Cubin
from jitload.request.arguments import check_name, read_flags
from jitload.request.options import nvrtc_options, take_archs
from jitload.settings import Settings, read_settings
from jitload.toolchain.arch import resolve_one_gpu_arch
from jitload.toolchain.libraries import find_nvjitlink
from jitload.words import Argument, Words

_PACKAGE = "nvidia-nvjitlink  (nvidia-nvjitlink-cu12 for CUDA 12)"
_LTO_IR = b"\xed\x43\x4e\x7f"
_VERSION = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*\.version\s+\d+\.\d+")
_TARGET = re.compile(rb"^\s*\.target\s+(sm_\w+)", re.MULTILINE)
_DIAGNOSTIC = re.compile(r"^ptxas .*?, line (\d+); (fatal|error|warning)\s*: (.*)$", re.MULTILINE)
# Options of nvcc and NVRTC, and how nvJitLink spells them.
_NVJITLINK_OPTIONS = (
    ("--ptxas-options=", "-Xptxas="),
    ("--maxrregcount=", "-maxrregcount="),
    ("--generate-line-info", "-lineinfo"),
    ("--device-debug", "-g"),
)


def format_of(source: str | bytes | bytearray | memoryview) -> Format | None:
    r"""Return the format of PTX, LTO-IR or a fatbin, or None for anything else.

    Example:
        >>> format_of("// made by nvcc\n.version 9.0\n.target sm_80\n")
        'ptx'
    """
    data = _bytes_of(source)
    if data.startswith(_LTO_IR):
        return "lto-ir"
    if is_fatbin(data):
        return "fatbin"
    return "ptx" if _VERSION.match(data) else None


def _bytes_of(source: str | bytes | bytearray | memoryview) -> bytes:
    return source.encode(errors="replace") if isinstance(source, str) else bytes(source)


def compile_image(
    source: str | bytes | bytearray | memoryview, *, name: str, arch: str, flags: Sequence[str] | None
) -> Cubin:
    """Compile PTX, LTO-IR or a fatbin. The types of the kernels are read from their symbols.

    Args:
        source: The code. A fatbin's machine code for the architecture is returned unchanged, unless there are options.
        name: The name of the code in messages.
        arch: One architecture.
        flags: Options in nvcc's spelling.

    Raises:
        CompileError: The linker rejected the code; `.log` has its messages.
        JitLoadError: The source has another format, or is a fatbin without code for the architecture.
        ToolchainError: There is no linker, or it does not know the architecture.
    """
    settings = read_settings()
    others, named = take_archs(read_flags(flags, "extra_cuda_cflags"))
    target = resolve_one_gpu_arch(arch, settings, function="compile_cubin()", option_archs=named)
    options = tuple(map(_nvjitlink_option, nvrtc_options(others)))
    data, format_ = _read(source, check_name(name))
    if format_ == "fatbin":
        entries = read_fatbin(data, name=repr(name))
        if not options and (code := select_image(entries, target, is_ptx=False)):
            return replace(typed_cubin(read_cubin(code, name=name)), arch=target)
        if text := select_image(entries, target, is_ptx=True):
            data, format_ = text, "ptx"
    return _compile(LinkJob(data=data, format=format_, name=name, arch=target, options=options), settings)


def _read(source: str | bytes | bytearray | memoryview, name: str) -> tuple[bytes, Format]:
    data = _bytes_of(source)
    format_ = format_of(data)
    if format_ is None:
        raise JitLoadError(
            f"{name!r} is not PTX, LTO-IR or a fatbin: its bytes begin with {data[:8]!r}. Pass CUDA source as a str; "
            "a cubin is already compiled."
        )
    if format_ == "ptx":
        data = data.rstrip(b"\0")  # NVRTC ends PTX with a NUL
        if b"\0" in data:
            raise JitLoadError(
                f"{name!r} is PTX that contains a NUL character, at which linkers stop reading: generate it again"
            )
    return data, format_


def _compile(job: LinkJob, settings: Settings) -> Cubin:
    path = find_nvjitlink(settings)
    if path is None:
        problem = f"compiling {job.format.upper()} ({job.name!r}) needs nvJitLink, which was not found"
        raise ToolchainError(f"{problem}. Install it with: pip install {_PACKAGE}")
    linked = link(path, job)
    if linked.cubin is None:
        raise _link_error(job, linked.log)
    cubin = typed_cubin(read_cubin(linked.cubin, name=job.name, spill_bytes=linked.spill_bytes))
    if job.format == "fatbin" and not cubin.kernels:
        raise _no_code_error(job)
    return replace(cubin, log=linked.log)


def _nvjitlink_option(option: str) -> str:
    for prefix, spelling in _NVJITLINK_OPTIONS:
        if option.startswith(prefix):
            return spelling + option.removeprefix(prefix)
    return option


def _no_code_error(job: LinkJob) -> JitLoadError:
    """Return the error for a fatbin that has no PTX for the architecture. Linkers ignore machine code in fatbins."""
    archs = ", ".join(entry.arch for entry in read_fatbin(job.data, name=repr(job.name)))
    return JitLoadError(
        f"the fatbin {job.name!r} has neither PTX nor uncompressed machine code for {job.arch}; it has code for: "
        f"{archs}. Name one of these architectures, or compile the fatbin with --compress-mode=none."
    )


def _link_error(job: LinkJob, log: str) -> JitLoadError:
    """Return the error for a job that nvJitLink rejected."""
    if job.format == "fatbin" and "bad input" in log:
        return _no_code_error(job)
    if "unsupported architecture" in log or "is not defined for option 'gpu-name'" in log:
        return ToolchainError(
            f"nvJitLink does not know {job.arch} (for {job.name!r}):\n{log}\nName another architecture, or install a "
            f"newer linker: pip install -U {_PACKAGE}"
        )
    diagnostics = tuple(
        Diagnostic(
            file=job.name, line=int(line), severity="error" if severity == "fatal" else severity, message=message
        )
        for line, severity, message in _DIAGNOSTIC.findall(log)
    )
    command = (f"--gpu-architecture={job.arch}", *job.options)
    hint = _hint(job, log)
    return CompileError(stage="ptx", name=job.name, log=log, diagnostics=diagnostics, command=command, hint=hint)


def _hint(job: LinkJob, log: str) -> str:
    if "Unsupported .version" in log or "need newer version of nvJitLink" in log:
        format_name = job.format.upper()
        return (
            f"This {format_name} is newer than the linker. Install a newer linker (pip install -U {_PACKAGE}), "
            f"or generate the {format_name} with an older compiler."
        )
    if (target := _TARGET.search(job.data)) and ("with .target '" in log or "specified by .target is higher" in log):
        hint = f"This PTX is for {target[1].decode()}, and not for {job.arch}. Compile it for "
        return Words(hint, Argument("arch", target[1].decode()), ", or generate it for another .target.")
    if "unrecognized option" in log:
        return (
            "Code that is already compiled takes only the linker's options, such as '-maxrregcount=32', '-Xptxas=-v' "
            "and '-lineinfo'."
        )
    return ""
