"""Device source in, an object file for the CPU and its typed kernels out: the runs of the host's compiler.

The same text that NVRTC would get is compiled behind a header that gives C++ what CUDA adds to it, and a table of
kernels is appended. As with NVRTC the text only suggests what a kernel is; the compiler decides: `__global__` leaves
a mark in the object file, and each row of the table holds the types. One run is the rule; a second follows where a
row was refused, or where the marks show kernels that the text does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jitload import probe
from jitload.checks import WATCHED_SHARED, check_options
from jitload.cpu_object import TABLE, ObjectFile
from jitload.demangle import demangle
from jitload.errors import CompileError
from jitload.host_build import compile_step, run_ninja, write_ninja
from jitload.kernels import Compiled, DeviceSource, no_such_kernel
from jitload.model import Cubin, Image, ImageKernel, Variable
from jitload.runtime import include_flags
from jitload.signature import read_kernels
from jitload.source import find_candidates
from jitload.toolchain import Compiler, Kit, own_include_dir

_ROWS = "<kernels>"  # the file name of the table's rows in messages
# Device code reads memory through pointers of other types, and its integers wrap; both are nvcc's habit. Sections and
# sizes of functions are how the object file is read.
_FLAGS = (
    "-std=c++17", "-O3", "-pipe", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fno-extern-tls-init",
    "-fno-gnu-unique", "-fno-strict-aliasing", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-w",
)  # fmt: skip
_PROBES = re.sub(r"#pragma.*\n", "", probe.PROBE_HEADER[1]).replace("__global__", "__attribute__((weak))")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProgram:
    """Kernels compiled for the CPU.

    Attributes:
        compiled: Their types and names, as NVRTC's run would give them; the cubin is empty.
        object_file: The object file's name in the work directory.
        rows: A kernel's symbol to its row in the table, and whether it may wait.
        dynamic_shared: The symbols of `extern __shared__` arrays, which the wrapper has to define.
        depfile: What the compiler read.
    """

    compiled: Compiled
    object_file: str
    rows: dict[str, tuple[int, bool]]
    dynamic_shared: tuple[str, ...]
    depfile: str


def compile_for_cpu(
    source: DeviceSource, compiler: Compiler, kit: Kit | None, ninja: Path, work_dir: Path
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
    runs = _Runs(source, compiler, kit, ninja, work_dir)
    found = runs.settle(tuple(dict.fromkeys((*named, *plain))), named)
    known = {row.symbol for row in found.rows()}
    if missing := tuple(filter(None, (_expression_of(s) for s in found.marked() if s not in known))):
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
        variables=tuple(_readable(variable) for variable in found.variables()),
    )
    lowered = {text: (row.symbol, row.probe) for text, row in zip(runs.expressions, rows, strict=True)}
    kernels = read_kernels(image, lowered, candidates)
    compiled = Compiled(
        cubin=Cubin(data=b"", arch="cpu", kernels=kernels, variables=image.variables),
        symbols={kernel: lowered[expression][0] for expression, kernel in named.items()},
        candidates=candidates,
        headers=(),
    )
    return CpuProgram(
        compiled=compiled,
        object_file="cpu.o",
        rows={row.symbol: (number, row.can_wait) for number, row in enumerate(rows)},
        dynamic_shared=(*found.dynamic_shared(), *((WATCHED_SHARED,) if source.checks else ())),
        depfile="cpu.d",
    )


def cpu_text(source: DeviceSource, expressions: Sequence[str]) -> str:
    """Return what the compiler gets: the user's text under its own lines, and a row for each kernel."""
    rows = "".join(
        f'#line {number} "{_ROWS}"\nJITLOAD_CPU_KERNEL({text}),\n' for number, text in enumerate(expressions, 1)
    )
    table = f'extern "C" const jitload_cpu_kernel {TABLE}[] = {{\n{rows}}};\n' if expressions else ""
    return f"{_PROBES}{source.text}{table}"


def cpu_flags(source: DeviceSource, kit: Kit | None) -> tuple[str, ...]:
    """Return the compiler's options for device code; those that concern a GPU's code alone do not count here."""
    own = own_include_dir().parent
    kit_dirs = kit.include_dirs if kit else ()
    return (
        *_FLAGS,
        *check_options(source.checks),
        *source.cpu_flags,
        f"-I{own / 'cpu'}",
        *include_flags(),
        *(f"-I{path}" for path in source.include_dirs),
        *(word for path in kit_dirs for word in ("-isystem", str(path))),
        "-include",
        "jitload_cpu.h",
    )


class _Runs:
    """The runs of the compiler for one source."""

    def __init__(self, source: DeviceSource, compiler: Compiler, kit: Kit | None, ninja: Path, work_dir: Path) -> None:
        self.source = source
        self.compiler = compiler
        self.flags = (*cpu_flags(source, kit), "-MD", "-MF", "cpu.d")
        self.ninja = ninja
        self.work_dir = work_dir
        self.expressions: tuple[str, ...] = ()

    def settle(self, expressions: tuple[str, ...], named: dict[str, str]) -> ObjectFile:
        """Compile, and again without the rows that alone were refused."""
        while True:
            try:
                return self._run(expressions)
            except CompileError as error:
                failure = error
            refused = _refused_rows(failure, expressions)
            if refused is None:
                if expressions:
                    self._run(())  # for the log of the user's own errors alone
                raise failure
            for text in refused:
                if text in named:
                    candidates = find_candidates([text for _, text in self.source.pieces])
                    raise no_such_kernel(named[text], candidates, failure) from failure
            expressions = tuple(text for text in expressions if text not in refused)

    def _run(self, expressions: tuple[str, ...]) -> ObjectFile:
        self.expressions = expressions
        (self.work_dir / "cpu.cc").write_text(cpu_text(self.source, expressions), encoding="utf-8", newline="")
        write_ninja(self.work_dir, (compile_step(self.compiler.command, self.flags, "cpu.cc", "cpu.o"),))
        run_ninja(self.ninja, self.work_dir, name=self.source.name)
        return ObjectFile((self.work_dir / "cpu.o").read_bytes())


def _refused_rows(error: CompileError, expressions: Sequence[str]) -> frozenset[str] | None:
    """Return the rows that the compiler refused, or None where it refused something else."""
    places = [(d.file, d.line) for d in error.diagnostics if "error" in d.severity]
    own = [line for file, line in places if file == _ROWS]
    others = [file for file, _ in places if file != _ROWS and not file.endswith("jitload_cpu.h")]
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


def _readable(variable: Variable) -> Variable:
    name = demangle(variable.symbol) or variable.symbol
    return Variable(name=name, symbol=variable.symbol, size=variable.size)
