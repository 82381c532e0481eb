"""Device source in, an object file for the CPU and its typed kernels out: the runs of the host's compiler.

The same text that NVRTC would get is compiled behind a header that gives C++ what CUDA adds to it, and a table of
kernels is appended. As with NVRTC the text only suggests what a kernel is; the compiler decides: `__global__` leaves
a mark in the object file, and each row of the table holds the types. One run is the rule; a second follows where a
row was refused, or where the marks show kernels that the text does not.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jitload.checks import WATCHED_SHARED, check_options
from jitload.cpu.gpu_only import (
    compiled_asm,
    explain,
    find_vanishing,
    gpu_only_error,
    has_asm,
    used_gpu_only,
)
from jitload.cpu.object_file import ObjectFile
from jitload.cpu.split import Split, split_kernels
from jitload.cpu.text import BY_SYMBOL, ROWS, compiler_flags, cpu_text, looks_again, preprocessor_lines
from jitload.cxx.headers import read_depfile
from jitload.device import probe
from jitload.device.demangle import demangle, demangle_variables
from jitload.device.kernels import DeviceSource, no_such_kernel
from jitload.device.source import find_candidates
from jitload.errors import CompileError
from jitload.host_build import Step, run_ninja, write_ninja
from jitload.model import CompiledSource, Cubin, Image, ImageKernel
from jitload.runtime import include_flags
from jitload.signature.kernels import read_kernels
from jitload.toolchain.cuda import CudaToolchain
from jitload.toolchain.host import Compiler, own_include_dir

# Device code reads memory through pointers of other types, and its integers wrap; both are nvcc's habit. Sections and
# sizes of functions are how the object file is read. glibc's own checks, which some compilers switch on by themselves,
# would end the process where `sanitize` names the user's line.
_FLAGS = (
    "-std=c++17", "-O3", "-pipe", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fno-extern-tls-init",
    "-fno-gnu-unique", "-fno-strict-aliasing", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-w",
    "-U_FORTIFY_SOURCE",
)  # fmt: skip
# At each turn of a loop a thread may be asked to let another one go on.
_PREEMPT = ("-fsanitize-coverage=trace-pc", "-DJITLOAD_CPU_PREEMPT=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProgram:
    """Kernels compiled for the CPU.

    Attributes:
        compiled: Their types and names, as NVRTC's run would give them; the cubin is empty.
        object_file: The object file's name in the work directory.
        rows: A kernel's symbol to its row in the table, and whether it may wait.
        dynamic_shared: The symbols of `extern __shared__` arrays, which the wrapper has to define.
        read: The files that the compiler read.
    """

    compiled: CompiledSource
    object_file: str
    rows: dict[str, tuple[int, bool]]
    dynamic_shared: tuple[str, ...]
    read: tuple[Path, ...]


def compile_for_cpu(
    source: DeviceSource, compiler: Compiler, kit: CudaToolchain | None, ninja: Path, work_dir: Path
) -> CpuProgram:
    """Compile device code for the CPU and read its kernels' types.

    Raises:
        CompileError: The compiler refused the source.
        LaunchSpecError: It refused a kernel that a launch names.
        SignatureError: A kernel's parameters cannot be read.
    """
    candidates = find_candidates([text for _, text in source.pieces])
    names = [candidate.name for candidate in candidates]
    plain = [c.name for c in candidates if not c.is_template and names.count(c.name) == 1]
    named = {probe.kernel_expression(kernel): kernel for kernel in source.kernels}
    _refuse_vanishing(source.name, source.pieces)
    runs = _Runs(source, compiler, kit, ninja, work_dir)
    found = runs.settle(tuple(dict.fromkeys((*named, *plain))), named)
    for spell in (_expression_of, _declaration_of):
        known = {row.symbol for row in found.rows()}
        if missing := tuple(filter(None, (spell(s) for s in found.marked() if s not in known))):
            found = runs.settle((*runs.expressions, *missing), named)
    rows = found.rows()
    image = Image(
        arch="cpu",
        kernels=tuple(
            ImageKernel(
                symbol=row.symbol, slots=row.slots, registers=0, shared_bytes=0, local_bytes=0, max_threads=1024
            )
            for row in rows
        ),
        variables=demangle_variables(found.variables()),
    )
    lowered = {text: (row.symbol, row.probe) for text, row in zip(runs.expressions, rows, strict=True)}
    kernels = read_kernels(image, lowered, candidates)
    compiled = CompiledSource(
        cubin=Cubin(data=b"", arch="cpu", kernels=kernels, variables=image.variables),
        symbols={kernel: lowered[expression][0] for expression, kernel in named.items()},
        candidates=candidates,
        headers=runs.headers,
    )
    return CpuProgram(
        compiled=compiled,
        object_file="cpu.o",
        rows={row.symbol: (number, row.can_wait) for number, row in enumerate(rows)},
        dynamic_shared=(*found.dynamic_shared(), *((WATCHED_SHARED,) if source.checks else ())),
        read=runs.read,
    )


def cpu_flags(source: DeviceSource, kit: CudaToolchain | None) -> tuple[str, ...]:
    """Return the compiler's options for device code; those that concern a GPU's code alone do not count here."""
    own = own_include_dir().parent
    kit_dirs = kit.include_dirs if kit else ()
    return (
        *_FLAGS,
        *_processor_flags(source.cpu_flags),
        *check_options(source.checks),
        *compiler_flags(source.cpu_flags),
        f"-I{own / 'cpu'}",
        *include_flags(),
        *(f"-I{path}" for path in source.include_dirs),
        *(word for path in kit_dirs for word in ("-isystem", str(path))),
    )


def _processor_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return what is left to say to x86-64's compiler.

    Shared memory and threadIdx are thread-local; with descriptors their place is worked out before a loop, not in it.
    `a * b + c` is one rounding, as nvcc makes it, where a user names processors that have it: a result is not to
    depend on the machine's.
    """
    if platform.machine() != "x86_64":
        return ("-ffp-contract=fast",)
    has_it = any(flag.startswith(("-march=", "-mfma")) for flag in flags)
    return ("-mtls-dialect=gnu2", "-ffp-contract=fast" if has_it else "-ffp-contract=off")


class _Runs:
    """The runs of the compiler for one source."""

    def __init__(
        self, source: DeviceSource, compiler: Compiler, kit: CudaToolchain | None, ninja: Path, work_dir: Path
    ) -> None:
        self.source = source
        self.compiler = compiler
        self.flags = (*cpu_flags(source, kit), "-MD", "-MF", "cpu.d")
        self.ninja = ninja
        self.work_dir = work_dir
        self.expressions: tuple[str, ...] = ()
        self.read: tuple[Path, ...] = ()
        self.headers: tuple[Path, ...] = ()  # those of them that are the user's
        self.own = (own_include_dir().parent, Path("/usr"), *(kit.include_dirs if kit else ()))
        self.is_preemptive = looks_again([text for _, text in source.pieces])
        self.split = None if source.checks or self.is_preemptive else _split(source)

    def settle(self, expressions: tuple[str, ...], named: dict[str, str]) -> ObjectFile:
        """Compile, and again without the rows that alone were refused."""
        while True:
            try:
                found = self._run(expressions)
                refused: frozenset[str] | None = found.undefined(expressions)
                if not refused:
                    return found
                failure = CompileError(stage="host", name=self.source.name, log="It is declared and nowhere defined.")
            except CompileError as error:
                if self.split:  # what is wrong is told of the user's own text alone
                    self.split = None if self.split.is_plain else _split(self.source, has_strides=False)
                    continue
                failure = error
                refused = _refused_rows(failure, expressions)
            if refused is None:
                raise explain(self._own_failure(failure, expressions))
            for text in refused:
                if text in named:
                    candidates = find_candidates([text for _, text in self.source.pieces])
                    raise no_such_kernel(named[text], candidates, failure) from failure
            expressions = tuple(text for text in expressions if text not in refused)

    def _own_failure(self, failure: CompileError, expressions: tuple[str, ...]) -> CompileError:
        """Return the failure with the log of the user's own errors alone."""
        if "Assembler messages" in failure.log:
            self._check_headers(self._read_headers())
        try:
            if expressions:
                self._compile("cpu.o", "-c")
        except CompileError as error:
            return error
        return failure

    def _run(self, expressions: tuple[str, ...]) -> ObjectFile:
        self.expressions = expressions
        self._compile("cpu.o", "-c", expressions=expressions)
        texts = self._read_headers()
        if not self.is_preemptive and looks_again([text for _, text in texts]):
            self.is_preemptive = True
            self.split = None
            return self._run(expressions)
        self._check_headers(texts)
        return ObjectFile((self.work_dir / "cpu.o").read_bytes())

    def _read_headers(self) -> list[tuple[str, str]]:
        self.read = tuple(read_depfile((self.work_dir / "cpu.d").read_text("utf-8", "surrogateescape")))
        self.headers = tuple(
            path
            for path in dict.fromkeys(self.read)
            if path.is_absolute() and not any(path.is_relative_to(root) for root in self.own)
        )
        return [(str(path), path.read_text("utf-8", "replace")) for path in self.headers]

    def _compile(self, output: str, *how: str, expressions: tuple[str, ...] = ()) -> None:
        (self.work_dir / "cpu.cc").write_text(
            cpu_text(self.source, expressions, self.split), encoding="utf-8", newline=""
        )
        flags = (*self.flags, *(_PREEMPT if self.is_preemptive else ()))
        command = (*self.compiler.command, *flags, *how, "cpu.cc", "-o", output)
        write_ninja(self.work_dir, (Step(output=output, command=command, inputs=("cpu.cc",)),))
        run_ninja(self.ninja, self.work_dir, name=self.source.name)

    def _check_headers(self, texts: Sequence[tuple[str, str]]) -> None:
        """Refuse what marks in the text cannot find: it stands in headers."""
        if what := used_gpu_only(self.read):
            raise gpu_only_error(self.source.name, self.source.pieces[0][0], 1, what)
        _refuse_vanishing(self.source.name, texts)
        if any(has_asm(text) for _, text in texts):
            self._compile("cpu.i", "-E")
            preprocessed = (self.work_dir / "cpu.i").read_text("utf-8", "replace")
            for file, line in compiled_asm(preprocessed, frozenset(file for file, _ in texts)):
                raise gpu_only_error(self.source.name, file, line, "inline PTX")


def _split(source: DeviceSource, *, has_strides: bool = True) -> Split | None:
    """Return the source with second forms of kernels, or None where it has none."""
    candidates = find_candidates([text for _, text in source.pieces])
    split = split_kernels(
        source.pieces, candidates, tuple(preprocessor_lines(source.cpu_flags)), has_strides=has_strides
    )
    return split if split.forms else None


def _refuse_vanishing(name: str, texts: Sequence[tuple[str, str]]) -> None:
    for label, text in texts:
        if found := find_vanishing(label, text):
            raise gpu_only_error(name, found.file, found.line, found.message.removeprefix("GPU only: "))


def _refused_rows(error: CompileError, expressions: Sequence[str]) -> frozenset[str] | None:
    """Return the rows that the compiler refused, or None where it refused something else."""
    places = [(d.file, d.line) for d in error.diagnostics if "error" in d.severity]
    own = [line for file, line in places if file == ROWS]
    others = [file for file, _ in places if file != ROWS and not file.endswith("jitload_cpu.h")]
    if not own or others:
        return None
    return frozenset(expressions[line - 1] for line in own if 0 < line <= len(expressions))


def _expression_of(symbol: str) -> str:
    """Return the kernel behind a symbol as an expression; one whose name nobody can write is ""."""
    readable = demangle(symbol)
    if readable is None:
        return symbol if symbol.isidentifier() else ""
    match = re.fullmatch(r"(?:void )?([^()]+(?:<.*>)?)\((.*)\)", readable)
    return f"static_cast<void(*)({match[2]})>({match[1]})" if match else ""


def _declaration_of(symbol: str) -> str:
    """Return a kernel for whose name C++ has no words: the symbol itself, and its parameters."""
    readable = demangle(symbol)
    match = re.fullmatch(r".*\((.*)\)", readable or "")
    return f"{BY_SYMBOL}{symbol}({match[1].replace('(anonymous namespace)::', '')})" if match else ""
