"""PTX, LTO-IR or a fatbin in, a `Cubin` out: recognises them, has them linked, and explains what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jitload.cuda.linkers import Format, Linked, LinkJob, link_with_driver, link_with_nvjitlink
from jitload.elf.cubin import read_image
from jitload.elf.fatbin import is_fatbin, read_fatbin, select_cubin, select_ptx
from jitload.errors import CompileError, Diagnostic, JitLoadError, ToolchainError
from jitload.model import Cubin
from jitload.request.arguments import check_name, read_strings
from jitload.request.options import nvrtc_options
from jitload.settings import Settings, read_settings
from jitload.signature.demangle import demangle_variables
from jitload.signature.kernels import read_kernels_without_source
from jitload.toolchain.arch import resolve_one_gpu_arch
from jitload.toolchain.cuda import find_nvjitlink

_LTO_IR = b"\xed\x43\x4e\x7f"
_VERSION = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*\.version\s+\d+\.\d+")
_TARGET = re.compile(rb"^\s*\.target\s+(sm_\w+)", re.MULTILINE)
_DIAGNOSTIC = re.compile(r"^ptxas .*?, line (\d+); (fatal|error|warning)\s*: (.*)$", re.MULTILINE)
# As nvcc and NVRTC have them, and as nvJitLink has them.
_SPELLINGS = (
    ("--ptxas-options=", "-Xptxas="),
    ("--maxrregcount=", "-maxrregcount="),
    ("--generate-line-info", "-lineinfo"),
    ("--device-debug", "-g"),
)
_HOW_TO_GET = {12: "pip install nvidia-nvjitlink-cu12", 13: "pip install nvidia-nvjitlink"}


def format_of(source: object) -> Format | None:
    r"""Say which format between source and machine code this is; None for source text and all else.

    Example:
        >>> format_of("// made by nvcc\n.version 9.0\n.target sm_80\n")
        'ptx'
    """
    if isinstance(source, str):
        source = source.encode(errors="replace")
    if not isinstance(source, bytes | bytearray | memoryview):
        return None
    data = bytes(source)
    if data.startswith(_LTO_IR):
        return "lto-ir"
    if is_fatbin(data):
        return "fatbin"
    return "ptx" if _VERSION.match(data) else None


def compile_image(
    source: str | bytes | bytearray | memoryview, *, name: str, arch: str, flags: Sequence[str] | None
) -> Cubin:
    """Compile what is no source any more; its kernels are typed as far as their symbols tell.

    Args:
        source: PTX, LTO-IR or a fatbin, of which the machine code is taken where it has some for the architecture.
        name: What messages call it.
        arch: One architecture.
        flags: Options, as for nvcc.

    Raises:
        CompileError: The linker refused it; `.log` has its words.
        JitLoadError: The bytes are something else.
        ToolchainError: There is no linker, or it does not know the architecture.
    """
    settings = read_settings()
    target = resolve_one_gpu_arch(arch, settings, who="compile_cubin()")
    options = tuple(map(_spell, nvrtc_options(read_strings(flags, "extra_cuda_cflags"))))
    data, format_ = _read(source, check_name(name))
    if format_ == "fatbin":
        entries = read_fatbin(data, name=repr(name))
        if not options and (code := select_cubin(entries, target)):
            return _told(code, name, target)
        if text := select_ptx(entries, target):
            data, format_ = text, "ptx"
    return _compile(LinkJob(data=data, format=format_, name=name, arch=target, options=options), settings)


def _read(source: str | bytes | bytearray | memoryview, name: str) -> tuple[bytes, Format]:
    data = source.encode(errors="replace") if isinstance(source, str) else bytes(source)
    format_ = format_of(data)
    if format_ is None:
        raise JitLoadError(
            f"{name!r} is bytes that begin with {data[:8]!r}: neither PTX, LTO-IR nor a fatbin. CUDA source is a "
            "str, and a cubin is compiled already."
        )
    if format_ == "ptx":
        data = data.rstrip(b"\0")  # as NVRTC hands it out
        if b"\0" in data:
            raise JitLoadError(f"{name!r} is PTX with a NUL character in it")
    return data, format_


def _compile(job: LinkJob, settings: Settings) -> Cubin:
    path = find_nvjitlink(settings)
    linked = link_with_nvjitlink(path, job) if path else link_with_driver(job)
    if linked is None:
        raise _no_linker(job, settings)
    if linked.cubin is None:
        raise _refusal(job, linked, "nvJitLink" if path else "the driver's linker")
    cubin = _told(linked.cubin, job.name, job.arch, log=linked.log)
    if job.format == "fatbin" and not cubin.kernels:
        raise _nothing_for(job)
    return cubin


def _told(code: bytes, name: str, arch: str, *, log: str = "") -> Cubin:
    image = read_image(code, name=name)
    variables = demangle_variables(image.variables)
    return Cubin(data=code, arch=arch, log=log, kernels=read_kernels_without_source(image), variables=variables)


def _spell(option: str) -> str:
    found = next(((theirs, ours) for theirs, ours in _SPELLINGS if option.startswith(theirs)), None)
    return found[1] + option.removeprefix(found[0]) if found else option


def _no_linker(job: LinkJob, settings: Settings) -> ToolchainError:
    command = _HOW_TO_GET.get(int(settings.nvrtc) if settings.nvrtc.isdigit() else 13, _HOW_TO_GET[13])
    instead = "there is no driver whose linker could do it"
    if job.format != "ptx" or job.options:
        instead = f"the driver's linker takes no {'options' if job.format == 'ptx' else job.format.upper()}"
    return ToolchainError(
        f"compiling {job.format.upper()} ({job.name!r}) takes nvJitLink, which was not found, and {instead}. Install "
        f"it with: {command}  (or {_HOW_TO_GET[12]} for a driver older than CUDA 13)"
    )


def _nothing_for(job: LinkJob) -> JitLoadError:
    """Return the error for a fatbin from which a linker takes nothing: it links no finished code, compressed or not."""
    there = ", ".join(entry.arch for entry in read_fatbin(job.data, name=repr(job.name)))
    return JitLoadError(
        f"the fatbin {job.name!r} has neither PTX for {job.arch} nor machine code for it that is not compressed; it "
        f"has: {there}. Name an architecture that it has, or compile with --compress-mode=none."
    )


def _refusal(job: LinkJob, linked: Linked, linker: str) -> JitLoadError:
    log = linked.log
    if job.format == "fatbin" and "bad input" in log:
        return _nothing_for(job)
    if "unsupported architecture" in log or "is not defined for option 'gpu-name'" in log:
        return ToolchainError(
            f"{linker} does not know {job.arch} (for {job.name!r}):\n{log}\nName another architecture, or install a "
            f"newer linker: {_HOW_TO_GET[13].replace('install', 'install -U')}"
        )
    diagnostics = tuple(
        Diagnostic(file=job.name, line=int(line), severity="error" if severity == "fatal" else severity, message=words)
        for line, severity, words in _DIAGNOSTIC.findall(log)
    )
    command = (f"--gpu-architecture={job.arch}", *job.options)
    hint = _hint(job, log)
    return CompileError(stage="ptx", name=job.name, log=log, diagnostics=diagnostics, command=command, hint=hint)


def _hint(job: LinkJob, log: str) -> str:
    if "Unsupported .version" in log or "need newer version of nvJitLink" in log:
        what = job.format.upper()
        return (
            f"This {what} is newer than the linker. Install a newer one (pip install -U nvidia-nvjitlink), or make the "
            f"{what} with an older compiler."
        )
    if "specified by .target is higher" in log:
        target = _TARGET.search(job.data)
        lowest = target[1].decode() if target else "its .target"
        return f"This PTX is for {lowest} and newer, and {job.arch} is older: arch={lowest!r}."
    if "unrecognized option" in log:
        return (
            "What is compiled already takes the linker's options alone: '-maxrregcount=32', '-Xptxas=-v', '-lineinfo'."
        )
    return ""
