"""Compiles CUDA source to cubins with NVRTC."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from jitload.building.stages import stage
from jitload.cuda.bindings import load_bindings
from jitload.cuda.interruptible import Cancellation, run_interruptible
from jitload.cuda.precompiled import are_headers_slow, find_precompiled, remember_if_slow, split_job
from jitload.cuda.predefined import UNDECLARED
from jitload.errors import Argument, CompileError, Diagnostic, ToolchainError, Words, find_diagnostics, nearest_name
from jitload.toolchain.arch import capability_of, load_driver
from jitload.toolchain.cuda import extra_of
from jitload.toolchain.cutlass import cutlass_conflict_hint, cutlass_hint

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\n]*?)\((?P<line>\d+)\): (?P<severity>catastrophic error|error|warning|remark|note)"
    r"(?: #[\w-]+)?: (?P<message>.*)$",
    re.MULTILINE,
)
# For each kind of narrow float: the names that people write, CUDA's types, and the header that declares these types.
_NARROW_FLOATS = (
    (r"(?:__)?(?:nv_)?(?:bfloat16|bfloat162|bf16)", "__nv_bfloat16 and __nv_bfloat162", "cuda_bf16.h"),
    (r"(?:__)?(?:nv_)?(?:half2?|float16|fp16)", "__half and __half2", "cuda_fp16.h"),
    (r"__nv_fp8\w*", "__nv_fp8_e4m3 and __nv_fp8_e5m2", "cuda_fp8.h"),
)
_UNKNOWN_NAME = re.compile(r"identifier \"(\w+)\" is undefined|[\u2018'](\w+)[\u2019'] (?:was not|has not|does not)")
_MISSING_HEADER = re.compile(r'(?:cannot|could not) open source file "(?:\./)?([^"]+)"')
_FOR_HOST_CODE = re.compile(r"(?:torch|ATen|c10|pybind11)/")
SYNTAX_ONLY = "--fdevice-syntax-only"  # with this option NVRTC ends after its front end and makes no cubin
_DECLARED = "__jitload_declared.h"
_HOST_FUNCTION = "is considered a host function"
_log = logging.getLogger(__name__)


class NvrtcJob(NamedTuple):
    """One run of NVRTC.

    Attributes:
        name: The name of the source in messages, such as `vec.cu`.
        source: The text.
        options: Command-line options.
        directory: The directory of the source, which need not exist. With "", NVRTC searches the working directory for
            headers. The cache key does not cover these headers.
        headers: (name, text) pairs of headers that exist in memory only.
        expressions: The name expressions. NVRTC instantiates them and returns their symbols.
        declared: Lines to put before the source. They declare names that nvcc declares by itself.
        is_isolated: Whether NVRTC runs in a child process, so that a crash ends only the child.
        header_state: A text that changes with all headers that the source may include. With "", they are never
            precompiled.
        precompiles: Whether to use precompiled headers, and to keep them in the process that runs NVRTC.
    """

    name: str
    source: str
    options: tuple[str, ...]
    directory: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    expressions: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    is_isolated: bool = False
    header_state: str = ""
    precompiles: bool = False

    def with_declarations(self) -> NvrtcJob:
        """Return this job with the lines of `declared` moved to a header that NVRTC reads before the source."""
        if not self.declared:
            return self
        header = (_DECLARED, "\n".join((*self.declared, "")))
        options = (*self.options, f"--pre-include={_DECLARED}")
        return self._replace(options=options, headers=(*self.headers, header), declared=())


class NvrtcResult(NamedTuple):
    """What one run of NVRTC returned.

    `lowered` maps name expressions to symbols. `spill_bytes` maps symbols of kernels to the bytes that a thread spills.
    """

    cubin: bytes
    log: str
    lowered: Mapping[str, str]
    ptx: str
    spill_bytes: Mapping[str, int]


def device_options(version: tuple[int, ...], arch: str) -> tuple[str, ...]:
    """Return the options of every compile for an architecture. `version` is NVRTC's version."""
    # By default, NVRTC raises the stack limit of the whole process while it compiles, so this is turned off.
    # nvcc always has __int128.
    options = (f"--gpu-architecture={arch}", "--modify-stack-limit=false", "--device-int128")
    # Without a seed, names in anonymous namespaces contain the process id. NVRTC before 12.9 does not know the option.
    return (*options, "--frandom-seed=jitload") if version >= (12, 9) else options


def run_nvrtc(library_path: Path, job: NvrtcJob) -> NvrtcResult:
    """Run NVRTC once, in this process or in a child process.

    Raises:
        CompileError: NVRTC rejected the source, an option or a name expression; `.log` has its messages.
        ToolchainError: The library cannot be used, or it does not know the architecture.
    """
    _log.info("the options of NVRTC for %s: %s", job.name, " ".join(job.options))
    job = job.with_declarations()
    if job.is_isolated or (not job.precompiles and are_headers_slow(job)):
        from jitload.cuda.isolated import run_isolated

        with stage(f"NVRTC compiles {job.name} in a child process"):
            return run_isolated(library_path, job._replace(is_isolated=False, precompiles=bool(job.header_state)))
    nvrtc = load_nvrtc(library_path)
    with stage(f"NVRTC compiles {job.name}"), _compiling():
        return run_interruptible(lambda cancellation: _compile(nvrtc, library_path, job, cancellation))


def prepare_nvrtc(library_path: Path, *, is_isolated: bool) -> None:
    """Load NVRTC before the first job is ready. Only background threads call this function.

    If `is_isolated` is true, start a child process for the job, and do not load NVRTC here.
    """
    if is_isolated:
        from jitload.cuda.isolated import prepare_child

        prepare_child()
    else:
        load_nvrtc(library_path)


@functools.lru_cache(maxsize=4)
def load_nvrtc(path: Path) -> Any:
    """Return cuda.bindings.nvrtc, which calls the library at `path`.

    Two other libraries are loaded first, because NVRTC might not find them, or might find a wrong copy:

    - The driver. NVRTC 12.9 and newer open it, and the RUNPATH of the 12.9 wheel ends with the current directory.
    - NVRTC's builtins library. NVRTC in the 13.0 wheel has no RUNPATH, and does not find this library.
    """
    load_driver()
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
        if "alt" not in builtins.name:
            with suppress(OSError):  # NVRTC will report that the library is missing
                ctypes.CDLL(str(builtins))
    return load_bindings("nvrtc", path)


def _compile(nvrtc: Any, library_path: Path, job: NvrtcJob, cancellation: Cancellation) -> NvrtcResult:
    split = split_job(job) if job.precompiles else None
    header = find_precompiled(nvrtc, split, lambda job: _create_header(nvrtc, job, cancellation)) if split else None
    with _program(nvrtc, header.use(split.job) if header and split else job) as (program, options):
        for expression in job.expressions:
            _call(nvrtc, "nvrtcAddNameExpression", program, expression.encode())
        start = time.thread_time()
        status, report = _run_program(nvrtc, program, options, cancellation)
        if not job.precompiles:
            remember_if_slow(job, time.thread_time() - start)
        log = without_report(report, job.options)
        if header:
            log = header.merge_messages(log)
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


def _create_header(nvrtc: Any, job: NvrtcJob, cancellation: Cancellation) -> str | None:
    """Run a job that creates a precompiled header. Return NVRTC's messages, or None if it has created nothing."""
    with _program(nvrtc, job) as (program, options):
        status, report = _run_program(nvrtc, program, options, cancellation)
        is_created = status == 0 and nvrtc.nvrtcGetPCHCreateStatus(program) == (0,)
        return without_report(report, job.options) if is_created else None


def _run_program(nvrtc: Any, program: Any, options: Sequence[bytes], cancellation: Cancellation) -> tuple[Any, str]:
    """Compile a program. Return the status, and the log with the report of ptxas."""
    cancellation.watch(nvrtc, program)
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _restore_locale()
    return status, _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")


def log_warnings(log: str, include_dirs: Sequence[Path]) -> None:
    """Log the messages of a successful compile.

    The level is INFO if all messages are about files in `include_dirs`, and otherwise WARNING.
    """
    if log.strip():
        diagnostics = parse_diagnostics(log)
        is_in_headers = all(any(Path(d.file).is_relative_to(root) for root in include_dirs) for d in diagnostics)
        _log.log(logging.INFO if diagnostics and is_in_headers else logging.WARNING, "%s", log.rstrip())


_threads_in_nvrtc: set[int] = set()
_was_forked_during_compile = False


def _after_fork() -> None:
    global _was_forked_during_compile  # noqa: PLW0603  a fact about the process
    _was_forked_during_compile = bool(_threads_in_nvrtc)


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def _compiling() -> Iterator[None]:
    """Record that this thread is in NVRTC while the `with` block runs.

    A process that is forked meanwhile cannot use NVRTC. It inherits held locks of NVRTC, and none of its threads
    releases them.

    Raises:
        ToolchainError: This process was forked while a thread was in NVRTC.
    """
    if _was_forked_during_compile:
        raise ToolchainError(
            "this process was forked while another thread was compiling with NVRTC, and NVRTC cannot be used in it any "
            "more. Start workers with the 'spawn' or 'forkserver' method, or fork before anything is compiled."
        )
    thread = threading.get_ident()
    _threads_in_nvrtc.add(thread)
    try:
        yield
    finally:
        _threads_in_nvrtc.discard(thread)


def parse_diagnostics(log: str) -> tuple[Diagnostic, ...]:
    """Return the messages of an NVRTC log."""
    return find_diagnostics(_DIAGNOSTIC, log)


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
    path = os.path.join(job.directory, job.name.lstrip("/")) if job.directory else job.name
    names, texts = ([header[part].encode() for header in job.headers] for part in (0, 1))
    program = _call(nvrtc, "nvrtcCreateProgram", job.source.encode(), path.encode(), len(names), texts, names)
    try:
        yield program, [os.fsencode(option) for option in (*job.options, _REPORT)]
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
            f"{_arch_advice(capability_of(arch)[0], min(numbers), _call(nvrtc, 'nvrtcVersion'))}"
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
        hint=type_hint(log) or _character_hint(log) or _hint(log, job.options),
    )


def _arch_advice(number: int, oldest: int, major: int) -> str:
    """Return advice about an architecture that NVRTC does not know.

    `number` is the architecture as an integer: 90 for sm_90. `oldest` is the oldest architecture that NVRTC knows.
    `major` is NVRTC's CUDA version.
    """
    if number < oldest:
        older = ", or install an older NVRTC (pip install 'jitload[cu12]') and set JITLOAD_NVRTC=12"
        is_in_cuda_12 = major > 12 and number >= 50
        return f"Name another architecture{older if is_in_cuda_12 else ''}."
    newest = ", or 'jitload[cu13]' without JITLOAD_NVRTC=12" if major == 12 else ""
    return f"Install a newer one (pip install -U {extra_of(major)}{newest}), or name another architecture."


def type_hint(log: str) -> str:
    """Return a hint if an unknown name in the log looks like a type of 16-bit or 8-bit floats, otherwise ""."""
    for match in _UNKNOWN_NAME.finditer(log):
        for pattern, types, header in _NARROW_FLOATS:
            if re.fullmatch(pattern, match[1] or match[2]):
                return f"CUDA's types of this kind are {types}, which #include <{header}> declares."
    return ""


def _character_hint(log: str) -> str:
    if "unrecognized token" not in log or log.isascii():
        return ""
    return (
        "Outside of comments and strings, NVRTC reads only ASCII: rename identifiers, and replace typographic quotes."
    )


def _hint(log: str, options: Sequence[str]) -> str:
    if missing := missing_header(log):
        return missing_header_hint(missing, "NVRTC")
    if "unrecognized option" in log:
        options_argument = Argument("extra_cuda_cflags", is_name=True)
        return Words("NVRTC does not have all options of nvcc: remove this option from ", options_argument, ".")
    macros = [option for option in options if option.startswith("-D")]
    if macros and log.startswith("__nv_nvrtc_builtin_header"):
        return f"NVRTC's own header also reads one of the macros {', '.join(macros)}: #define it in the source instead."
    if '"__global__" does not apply here' in log and (undeclared := UNDECLARED.search(log)):
        return f"The type {undeclared[1]!r} is not declared: define it before the kernel, or include its header."
    if _HOST_FUNCTION in log or "device-side kernel launch could not be processed" in log:
        return Words(
            "Functions that kernels call need __device__. Put host functions such as main() between "
            "#ifndef __CUDACC_RTC__ and #endif, where NVRTC does not read them. To call host functions from Python, ",
            *("name them, ", Argument("functions", "run", python="functions=['run']")),
            ", in cuda_sources= or in cpp_sources=.",
        )
    return cutlass_conflict_hint(log)


def has_host_function(log: str) -> bool:
    """Return whether NVRTC has rejected a host function."""
    return _HOST_FUNCTION in log


def missing_function_hint(log: str, names: Iterable[str], texts: Iterable[str]) -> str:
    """Return a hint about a misspelled name in `functions=`, or "" if there is no sign of this mistake.

    If `functions=` misspells a host function, jitload may take the source for kernels alone. NVRTC then rejects the
    host function. The hint needs two signs: this error of NVRTC in `log`, and one of `names` that is not a word in
    `texts`.
    """
    words = set(re.findall(r"\w+", " ".join(texts)))
    missing = next((name for name in names if name not in words), "")
    if not missing or _HOST_FUNCTION not in log:
        return ""
    suggestion = nearest_name(missing, words)
    advice = f" Did you mean {suggestion!r}?" if suggestion else ""
    return Words(Argument("functions"), f" has {missing!r}, which is not in the source.{advice}")


def missing_header(log: str) -> str:
    """Return the name of the header that NVRTC did not find, or "" if the log names none."""
    match = _MISSING_HEADER.search(log)
    return match[1] if match else ""


def missing_header_hint(header: str, compiler: str) -> str:
    """Return advice about a header that a compiler of device code did not find."""
    if hint := cutlass_hint(header):
        return hint
    if header.startswith("curand"):
        return f"{header!r} was not found. Install it with: pip install nvidia-curand  (nvidia-curand-cu12 for CUDA 12)"
    if _FOR_HOST_CODE.match(header):
        return f"<{header}> is for host code, and {compiler} compiles only the kernels: leave the bindings out."
    return Words(
        *(
            f"{compiler} has no {header!r}: pass its directory in ",
            Argument("extra_include_paths", python="extra_include_paths=[…]"),
        ),
        ". CUDA's own headers are installed with: pip install 'jitload[cu13]'  ('jitload[cu12]' for CUDA 12)",
    )


# ---- the report of ptxas ---------------------------------------------------------------------------------------

# This option asks for the report. NVRTC and nvJitLink accept it, and it changes neither the code nor, measurably, the
# time.
_REPORT = "--ptxas-options=-v"
_KERNEL = re.compile(r"Compiling entry function '([^']+)'")
_COMPILED_FUNCTION = re.compile(r"Function properties for (\S+)\n.* (\d+) bytes spill stores")
# Matches the lines of the report. Notes with a number, such as `ptxas info : (C7510) Potential Performance Loss`, do
# not match, because ptxas also prints them without the option.
_REPORT_LINE = re.compile(r"^ptxas (?:info    : (?!\(C\d)|        \.).*(?:\n ?|\Z)", re.MULTILINE)
_ASKS_FOR_REPORT = re.compile(r"(?:-Xptxas|--ptxas-options)[= ](?:\S*,)?(?:-v|--verbose)\b")


def read_spills(log: str, *, is_linked: bool = False) -> dict[str, int]:
    """Return a dictionary from kernels' symbols to the bytes that a thread spills.

    NVRTC compiles a called function again for each kernel that calls it. The log lists the function below the kernel,
    and the bytes of both are added.

    A linker (`is_linked`) compiles a called function once, and its log does not name the callers. If such a function
    spills, the bytes of the kernels are unknown, and the dictionary is empty.
    """
    parts = _KERNEL.split(log)
    kernels = dict(zip(parts[1::2], map(_COMPILED_FUNCTION.findall, parts[2::2]), strict=True))
    if is_linked and any(name not in kernels and int(stores) for name, stores in _COMPILED_FUNCTION.findall(log)):
        return {}
    return {kernel: sum(int(stores) for _, stores in functions) for kernel, functions in kernels.items()}


def without_report(log: str, options: Sequence[str]) -> str:
    """Return the log without the report of ptxas, unless the user's options ask for the report."""
    return log if _ASKS_FOR_REPORT.search(" ".join(options)) else _REPORT_LINE.sub("", log).lstrip("\n")
