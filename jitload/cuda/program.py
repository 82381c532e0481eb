"""Compiles one CUDA source to a cubin with NVRTC, in this process."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jitload.building.stages import stage
from jitload.cuda.bindings import inside_nvrtc, load_bindings
from jitload.cuda.interruptible import Cancellation, run_interruptible
from jitload.cuda.job import SYNTAX_ONLY, NvrtcJob, NvrtcResult
from jitload.cuda.messages import REPORT, arch_advice, hint_for, parse_diagnostics, read_spills, without_report
from jitload.errors import CompileError, ToolchainError
from jitload.toolchain.arch import capability_of, load_driver

_SLOW_S = 0.5  # processor time of a compile; the next one with the same headers runs where they are kept parsed
slow: set[str] = set()  # the directives of these compiles


def compile_in_process(library_path: Path, job: NvrtcJob) -> NvrtcResult:
    """Run NVRTC once in this process. The errors are those of `run_nvrtc`."""
    with inside_nvrtc(), stage(f"NVRTC compiles {job.name}"):
        return run_interruptible(functools.partial(compile_program, load_nvrtc(library_path), library_path, job))


@functools.lru_cache(maxsize=4)
def load_nvrtc(path: Path) -> Any:
    """Return cuda.bindings.nvrtc, which calls the library at `path`.

    Two other libraries are loaded first, because NVRTC might not find them, or might find a wrong copy:

    - The driver. NVRTC 12.9 and newer open it, and the RUNPATH of the 12.9 wheel ends with the current directory.
    - NVRTC's builtins library. NVRTC in the 13.0 wheel has no RUNPATH, and does not find this library.
    """
    load_driver()
    for name in sorted(os.listdir(path.parent)):
        if name.startswith("libnvrtc-builtins.so.") and "alt" not in name:
            with suppress(OSError):  # NVRTC will report that the library is missing
                ctypes.CDLL(str(path.parent / name))
    return load_bindings("nvrtc", path)


def compile_program(nvrtc: Any, library_path: Path, job: NvrtcJob, cancellation: Cancellation) -> NvrtcResult:
    """Run NVRTC once in this thread. `cancellation` can cancel the compile."""
    with _program(nvrtc, job) as (program, options):
        for expression in job.expressions:
            _call(nvrtc, "nvrtcAddNameExpression", program, expression.encode())
        start = time.thread_time()
        status, report = _run_program(nvrtc, program, options, cancellation)
        if job.directives and time.thread_time() - start > _SLOW_S:
            slow.add(job.directives)
        log = without_report(report, job.options)
        if status != 0:
            raise _compile_error(nvrtc, library_path, job, status, log)
        if SYNTAX_ONLY in job.options:
            return NvrtcResult(cubin=b"", log=log, lowered={}, ptx="", spill_bytes={})
        lowered = {
            expression: _call(nvrtc, "nvrtcGetLoweredName", program, expression.encode()).decode()
            for expression in job.expressions
        }
        ptx = _read(nvrtc, program, "PTX").rstrip(b"\0").decode(errors="replace")
        cubin = _read(nvrtc, program, "CUBIN")
        return NvrtcResult(cubin=cubin, log=log, lowered=lowered, ptx=ptx, spill_bytes=read_spills(report))


def _run_program(nvrtc: Any, program: Any, options: Sequence[bytes], cancellation: Cancellation) -> tuple[Any, str]:
    """Compile a program. Return the status, and the log with the report of ptxas."""
    cancellation.watch(nvrtc, program)
    _has_compiled.set()
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _restore_locale()
    return status, _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")


_has_compiled = threading.Event()  # set when NVRTC begins the first compile of the process


def wait_for_compile(at_most_s: float) -> None:
    """Wait until NVRTC has begun the first compile of the process."""
    _has_compiled.wait(at_most_s)


def _after_fork() -> None:
    global _has_compiled  # noqa: PLW0603  a fact about the process
    _has_compiled = threading.Event()  # another thread may have held the lock of the old one


os.register_at_fork(after_in_child=_after_fork)


def _restore_locale() -> None:
    """Make the thread use the locale of the process again.

    NVRTC 12.4 leaves another locale, with which `open()` decodes files as ASCII.
    """
    uselocale = ctypes.pythonapi.uselocale
    uselocale.argtypes, uselocale.restype = (ctypes.c_void_p,), ctypes.c_void_p
    uselocale(ctypes.c_void_p(-1))  # -1 is LC_GLOBAL_LOCALE


@contextmanager
def _program(nvrtc: Any, job: NvrtcJob) -> Iterator[tuple[Any, list[bytes]]]:
    """Yield a program of NVRTC and the options to compile it with."""
    names, texts = ([header[part].encode() for header in job.headers] for part in (0, 1))
    path = os.path.join(job.directory, job.name.lstrip("/")) if job.directory else job.name
    program = _call(nvrtc, "nvrtcCreateProgram", job.source.encode(), path.encode(), len(names), texts, names)
    try:
        yield program, [os.fsencode(option) for option in (*job.options, REPORT)]
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(nvrtc: Any, program: Any, name: str) -> bytes:
    """Return the log, the PTX or the cubin of a program."""
    buffer = bytearray(_call(nvrtc, f"nvrtcGet{name}Size", program))
    _call(nvrtc, f"nvrtcGet{name}", program, buffer)
    return bytes(buffer)


def _call(nvrtc: Any, function: str, *arguments: Any) -> Any:
    """Call a function of NVRTC and return the result. Raise ToolchainError if the status is an error."""
    status, *values = getattr(nvrtc, function)(*arguments)
    if status != 0:
        raise ToolchainError(
            f"NVRTC failed in {function}(): {_status_text(nvrtc, status)}. Another NVRTC may work (JITLOAD_NVRTC)."
        )
    return values[0] if values else None


def _status_text(nvrtc: Any, status: Any) -> str:
    return str(nvrtc.nvrtcGetErrorString(status)[1], "utf-8")


def _compile_error(nvrtc: Any, path: Path, job: NvrtcJob, status: Any, log: str) -> CompileError | ToolchainError:
    if "--gpu-architecture" in log or "--nv_arch" in log:  # NVRTC names --nv_arch if it does not know the suffix
        arch = next(option.partition("=")[2] for option in job.options if option.startswith("--gpu-architecture="))
        numbers = _call(nvrtc, "nvrtcGetSupportedArchs")
        archs = ", ".join(f"sm_{number}" for number in numbers)
        return ToolchainError(
            f"this NVRTC ({path.name}) does not know {arch}; it knows {archs}, some of them with a suffix a or f. "
            f"{arch_advice(capability_of(arch)[0], min(numbers), _call(nvrtc, 'nvrtcVersion'))}"
        )
    diagnostics = parse_diagnostics(log)
    if not log.strip():
        log = _status_text(nvrtc, status)
    return CompileError(
        stage="nvrtc",
        name=job.name,
        log=log,
        diagnostics=diagnostics,
        command=job.options,
        hint=hint_for(log, job.options),
    )
