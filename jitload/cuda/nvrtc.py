"""CUDA text and options in, machine code out: NVRTC in this process, and the drop-in for tvm-ffi's helper."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from jitload.cuda.interruptible import Flow, run_interruptible
from jitload.errors import CompileError, Diagnostic, ToolchainError

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\n]*?)\((?P<line>\d+)\): (?P<severity>catastrophic error|error|warning|remark|note)"
    r"(?: #[\w-]+)?: (?P<message>.*)$",
    re.MULTILINE,
)
_MISSING_HEADER = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')
_UNDECLARED = re.compile(r'identifier "(\w+)" is undefined')
# What nvcc knows without an #include, by way of the host's headers that come with cuda_runtime.h; NVRTC does not.
_INTEGERS = {
    "int8_t": "signed char", "int16_t": "short", "int32_t": "int", "int64_t": "long", "intptr_t": "long",
    "intmax_t": "long", "uint8_t": "unsigned char", "uint16_t": "unsigned short", "uint32_t": "unsigned int",
    "uint64_t": "unsigned long", "uintptr_t": "unsigned long", "uintmax_t": "unsigned long", "ssize_t": "long",
    "uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long",
}  # fmt: skip
_KNOWN_TO_NVCC = {
    r"(?:U?INT|U?LONG|U?LLONG|U?CHAR|SCHAR|U?SHRT)_(?:MAX|MIN)|CHAR_BIT": "#include <limits.h>",
    r"(?:FLT|DBL)_[A-Z0-9_]+": "#include <float.h>",
    r"U?INT(?:_LEAST|_FAST)?\d+_(?:MAX|MIN)|U?INT(?:PTR|MAX)_(?:MAX|MIN)|SIZE_MAX|PTRDIFF_(?:MAX|MIN)|U?INT\d+_C": (
        "#include <stdint.h>"
    ),
    r"INFINITY|NAN|HUGE_VALF?|M_[A-Z0-9_]+": "#include <math.h>",
    "assert": "#include <assert.h>",
    **{name: f"typedef {integer} {name};" for name, integer in _INTEGERS.items()},
}
_DECLARED = "__jitload_declared.h"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvrtcJob:
    """One run of NVRTC.

    Attributes:
        name: What messages call the source, `vec.cu`.
        source: The text.
        directory: Where the source claims to lie. NVRTC searches there for headers, and in the working directory, which
            no key knows, when it is not told.
        options: Command-line options.
        headers: Names and texts of headers that exist in memory only.
        expressions: Name expressions: kernels to instantiate and to find the symbols of.
        declared: Lines ahead of the source, for what nvcc would have known.
    """

    name: str
    source: str
    options: tuple[str, ...]
    directory: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    expressions: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()

    def with_declarations(self) -> NvrtcJob:
        """Return the job as NVRTC takes it, with the lines in a header that is read first."""
        if not self.declared:
            return self
        header = (_DECLARED, "\n".join((*self.declared, "")))
        options = (*self.options, f"--pre-include={_DECLARED}")
        return replace(self, options=options, headers=(*self.headers, header), declared=())


@dataclass(frozen=True, slots=True, kw_only=True)
class NvrtcResult:
    """What NVRTC made: machine code, its messages, and the symbol of each name expression."""

    cubin: bytes = field(repr=False)
    log: str
    lowered: Mapping[str, str]


def device_options(version: tuple[int, ...], arch: str) -> tuple[str, ...]:
    """Return the options that every run has."""
    # Without the second, NVRTC raises the stack limit of the whole process for the time of the compile.
    options = (f"--gpu-architecture={arch}", "--modify-stack-limit=false")
    # Anonymous namespaces carry the process id otherwise; NVRTC before 12.9 does not know the option.
    return (*options, "--frandom-seed=jitload") if version >= (12, 9) else options


def run_nvrtc(library_path: Path, job: NvrtcJob) -> NvrtcResult:
    """Compile once.

    Raises:
        CompileError: NVRTC refused the source, an option or a name expression; `.log` has its words.
        ToolchainError: The library cannot be loaded, or does not know the architecture.
    """
    library = _load(str(library_path))
    with _compiling():
        return run_interruptible(lambda flow: _compile(library, library_path, job.with_declarations(), flow))


def _compile(library: ctypes.CDLL, library_path: Path, job: NvrtcJob, flow: Flow) -> NvrtcResult:
    with _program(library, job) as program:
        flow.watch(library, program)
        for expression in job.expressions:
            _check(library, library.nvrtcAddNameExpression(program, expression.encode()))
        options = (ctypes.c_char_p * len(job.options))(*map(os.fsencode, job.options))
        status = library.nvrtcCompileProgram(program, len(job.options), options)
        _restore_locale()
        log = _read_sized(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != 0:
            raise _compile_error(library, library_path, job, status, log)
        lowered = {expression: _lowered(library, program, expression) for expression in job.expressions}
        return NvrtcResult(cubin=_read_sized(library, program, "CUBIN"), log=log, lowered=lowered)


def declarations_for(error: CompileError, declared: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines that declare what a failed compile missed and nvcc knows, those of earlier ones among them.

    Only a compile that failed gets them: a source for NVRTC may declare `int64_t` itself, and differently.

    Raises:
        CompileError: The failed one again, where that is not what is wrong.
    """
    names = _UNDECLARED.findall(error.log)
    lines = [line for known, line in _KNOWN_TO_NVCC.items() if any(re.fullmatch(known, name) for name in names)]
    if set(lines) <= set(declared):
        raise error
    return tuple(dict.fromkeys((*declared, *lines)))


def log_warnings(log: str, own: Sequence[Path]) -> None:
    """Show what NVRTC said of a source that it compiled: as a warning, unless it is all about headers in `own`."""
    if log.strip():
        diagnostics = parse_diagnostics(log)
        is_own = all(any(Path(d.file).is_relative_to(root) for root in own) for d in diagnostics)
        _log.log(logging.INFO if diagnostics and is_own else logging.WARNING, "%s", log.rstrip())


_in_flight: set[int] = set()  # threads inside NVRTC
_forked_inside = False


def _after_fork() -> None:
    global _forked_inside  # noqa: PLW0603  a fact of this process
    _forked_inside = bool(_in_flight)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def _compiling() -> Iterator[None]:
    """Note that NVRTC is at work: a child that is forked meanwhile inherits its locks as they are, held for good.

    Raises:
        ToolchainError: This process is such a child.
    """
    if _forked_inside:
        raise ToolchainError(
            "this process was forked while another thread was compiling with NVRTC, and NVRTC cannot be used in it any "
            "more. Start workers with the 'spawn' or 'forkserver' method, or fork before anything is compiled."
        )
    me = threading.get_ident()
    _in_flight.add(me)
    try:
        yield
    finally:
        _in_flight.discard(me)


def supported_archs(library_path: Path) -> tuple[str, ...]:
    """Return the architectures that an NVRTC compiles for, without suffixes: `("sm_75", "sm_80", …)`."""
    library = _load(str(library_path))
    count = ctypes.c_int()
    _check(library, library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check(library, library.nvrtcGetSupportedArchs(numbers))
    return tuple(f"sm_{number}" for number in numbers)


def parse_diagnostics(log: str) -> tuple[Diagnostic, ...]:
    """Return the messages of an NVRTC log."""
    return tuple(
        Diagnostic(file=found["file"], line=int(found["line"]), severity=found["severity"], message=found["message"])
        for found in _DIAGNOSTIC.finditer(log)
    )


@functools.lru_cache(maxsize=4)
def _load(path: str) -> ctypes.CDLL:
    """Load an NVRTC, behind two libraries that it looks for by itself, and in the wrong places.

    Its builtins: the 13.0 wheel has no RUNPATH and would not find them. The driver: from 12.9 on NVRTC opens it, and
    the 12.9 wheel's RUNPATH ends with the current directory.
    """
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
    try:
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
            if "alt" not in builtins.name:
                ctypes.CDLL(str(builtins))
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ToolchainError(f"NVRTC cannot be loaded from {path}: {error}") from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _restore_locale() -> None:
    """Give the thread the process's locale back: NVRTC 12.4 leaves its own behind, and `open()` reads ASCII then."""
    with suppress(AttributeError):  # no uselocale in this libc
        use = ctypes.pythonapi.uselocale
        use.argtypes, use.restype = (ctypes.c_void_p,), ctypes.c_void_p
        use(ctypes.c_void_p(-1))  # LC_GLOBAL_LOCALE


@contextmanager
def _program(library: ctypes.CDLL, job: NvrtcJob) -> Iterator[ctypes.c_void_p]:
    program = ctypes.c_void_p()
    count = len(job.headers)
    texts = (ctypes.c_char_p * count)(*(text.encode() for _, text in job.headers))
    names = (ctypes.c_char_p * count)(*(name.encode() for name, _ in job.headers))
    path = os.path.join(job.directory, job.name.lstrip("/")) if job.directory else job.name
    arguments = (ctypes.byref(program), job.source.encode(), path.encode(), count, texts, names)
    _check(library, library.nvrtcCreateProgram(*arguments))
    try:
        yield program
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read_sized(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _lowered(library: ctypes.CDLL, program: ctypes.c_void_p, expression: str) -> str:
    symbol = ctypes.c_char_p()
    _check(library, library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(symbol)))
    return (symbol.value or b"").decode()


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise ToolchainError(f"NVRTC failed: {library.nvrtcGetErrorString(status).decode()}")


def _compile_error(
    library: ctypes.CDLL, path: Path, job: NvrtcJob, status: int, log: str
) -> CompileError | ToolchainError:
    if "--gpu-architecture" in log or "--nv_arch" in log:  # the second: a suffix that it does not know
        arch = next(option.partition("=")[2] for option in job.options if option.startswith("--gpu-architecture="))
        known = ", ".join(supported_archs(path))
        return ToolchainError(
            f"this NVRTC ({path.name}) does not know {arch}; it knows {known}, some of them with a suffix a or f. "
            "Install a newer one (pip install -U 'jitload[cu13]'), or name another architecture."
        )
    diagnostics = parse_diagnostics(log)
    if not log.strip():
        log = library.nvrtcGetErrorString(status).decode()
    return CompileError(
        stage="nvrtc",
        name=job.name,
        log=log,
        diagnostics=diagnostics,
        command=job.options,
        hint=_hint(log, job.options),
    )


def _hint(log: str, options: Sequence[str]) -> str:
    if missing := _MISSING_HEADER.search(log):
        return (
            f"NVRTC has no {missing[1]!r}: pass its directory in extra_include_paths=[…]; CUDA's own headers come with "
            "pip install 'jitload[cu13]'."
        )
    if "unrecognized option" in log:
        return "NVRTC takes its own options, not all of nvcc's; take this one out of extra_cuda_cflags."
    macros = [option for option in options if option.startswith("-D")]
    if macros and log.startswith("__nv_nvrtc_builtin_header"):
        return f"A macro among {', '.join(macros)} is read by NVRTC's own header, too: #define it in the source."
    if "is considered a host function" in log:
        return (
            "Mark what kernels call __device__. Host functions beside kernels take nvcc, kind='mixed'; in C++ of their "
            "own, cpp_sources=, they take none."
        )
    return ""
