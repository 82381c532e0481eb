"""Compiles device code for the CPU with g++, into an object file of kernels with known types.

g++ gets a header that defines what CUDA adds to C++, the text that NVRTC would get, and an array with a row for each
kernel, the kernel table. As under NVRTC, jitload finds probable kernels in the text, and the compiler decides what is a
kernel: `__global__` leaves a mark in the object file, and each row of the table holds a kernel's types. The compiler
usually runs once. It runs again if it refused a row, or if the marks show kernels that were not found in the text.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from jitload.building.files_read import read_depfile
from jitload.building.ninja import compile_step, parse_diagnostics, run_ninja, write_ninja
from jitload.cpptext.lexer import strip_comments
from jitload.cpptext.source_kind import UserHeader
from jitload.cpu.object_file import TABLE, ObjectFile, linked_name
from jitload.cpu.text import (
    BY_SYMBOL,
    LAYOUT_FILE,
    ROW_FILE,
    compiler_flags,
    cpu_text,
    explain,
    find_lost_branch,
    gpu_header,
    gpu_include_lines,
    gpu_only_error,
    may_return_in_ptx,
    ptx_return,
    without_table_errors,
)
from jitload.cpu.waiting import TSAN_PARAMS, waiting_flags
from jitload.cuda.headers import LIBRARIES
from jitload.errors import CompileError, ToolchainError
from jitload.kernels.compilation import no_such_kernel
from jitload.kernels.host_code import compile_kernels_alone
from jitload.kernels.source import DeviceSource
from jitload.model import CompiledSource, CpuKernel, CpuProgram, Cubin, Kernel
from jitload.request.arguments import DEBUG
from jitload.signature import probe
from jitload.signature.demangle import demangle, demangle_variables
from jitload.signature.kernels import known_candidates, read_kernels, with_signatures
from jitload.signature.layouts import layout_queries, read_layouts, typed_variables
from jitload.toolchain.cuda import CudaToolchain
from jitload.toolchain.host import INCLUDE_DIR, Compiler, tvm_ffi_include_dirs

_log = logging.getLogger(__name__)

# As with nvcc, code may read memory through pointers of other types, and integers wrap. The object file is read
# function by function, so each has its own section. glibc's fortified functions would end the process where `sanitize`
# reports a line. -fstack-clash-protection makes a large frame touch the guard page below the stack. Headers of the
# toolkit are recognised by their directory, even if they are links.
_FLAGS = (
    "-std=c++17", "-O3", "-pipe", "-fPIC", "-fvisibility=hidden", "-fno-semantic-interposition", "-ffunction-sections",
    "-fno-extern-tls-init", "-fno-gnu-unique", "-fno-strict-aliasing", "-fwrapv", "-fno-math-errno",
    "-fno-trapping-math", "-w", "-U_FORTIFY_SOURCE", "-fstack-clash-protection", "-fno-canonical-system-headers",
    "-fsanitize=integer-divide-by-zero", "-fno-sanitize-recover=integer-divide-by-zero",
)  # fmt: skip
_COPIES = ("-fno-builtin-memset", "-fno-builtin-memcpy", "-fno-builtin-memmove")
# With these options, compiled code calls a function of sanitize.cc before each access to memory. That file knows
# which memory a kernel may access, so the sanitizers allocate no memory of their own.
_INSTRUMENTATION_FLAGS = {
    "address": (
        "-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0",
        "--param=asan-globals=0", *_COPIES, "-fsanitize=bounds", "-fno-sanitize-recover=bounds",
    ),
    "race": ("-fno-sanitize=kernel-address", "-fsanitize=thread", *TSAN_PARAMS, *_COPIES),
    "undefined": (
        "-fsanitize=undefined", "-fsanitize=float-cast-overflow", "-fno-sanitize=vptr",
        "-fno-sanitize-recover=undefined,float-cast-overflow", "-fno-wrapv",
    ),
    DEBUG: (),
}  # fmt: skip
# Headers in addition to the files in include/cpu. Most are empty, because jitload_cpu.h, which comes before every text,
# has their declarations. The classes called `pipeline` are for GPUs only. Four headers are NVIDIA's, and three of them
# come after jitload's headers, which have the types that they use.
_EMPTY_HEADERS = """
    cuda_runtime.h device_atomic_functions.h device_functions.h device_launch_parameters.h math_functions.h
    sm_20_atomic_functions.h sm_20_intrinsics.h sm_30_intrinsics.h sm_32_atomic_functions.h sm_32_intrinsics.h
    sm_60_atomic_functions.h sm_61_intrinsics.h vector_functions.h vector_types.h
"""
_NVIDIA_HEADER = """\
#if !__has_include_next(<{name}>)
#error "{name} is NVIDIA's: pip install 'jitload[cu13]' brings it ('jitload[cu12]' for CUDA 12)"
#endif
{before}#include_next <{name}>
"""
_FLOATS = "#include <cuda_bf16.h>\n"
_NVIDIA_HEADERS = {"cuda_fp4.h": _FLOATS, "cuda_fp6.h": _FLOATS, "cuda_fp8.h": _FLOATS, "math_constants.h": ""}
SHORT_HEADERS = {
    **dict.fromkeys(_EMPTY_HEADERS.split(), ""),
    **{name: _NVIDIA_HEADER.format(name=name, before=before) for name, before in _NVIDIA_HEADERS.items()},
    **LIBRARIES,
    "cuda/pipeline": "#include <cuda/barrier>\n",
    "cuda_pipeline.h": "#include <cuda_pipeline_primitives.h>\n",
}
# Directories in the work directory: SHORT_HEADERS, user headers without host code.
_SHORT_DIR, _USER_DIR = "headers", "user"
_RELEASE_MACRO = re.compile(r"\bCUDART_VERSION\b|\b__CUDA(?:RT_API_VERSION|CC_VER_\w+|_API_VER_\w+)")
_DYNAMIC_SHARED_SYMBOL = "__jitload_dynamic_shared"  # tells runtime/cpu/sanitize.cc where dynamic shared memory begins


def compile_for_cpu(
    source: DeviceSource, compiler: Compiler, toolchain: CudaToolchain | None, ninja: Path, work_dir: Path
) -> CpuProgram:
    """Compile device code for the CPU, without the host code that g++ rejects, and read its kernels' types."""

    def run(source: DeviceSource) -> CpuProgram:
        return _compile_for_cpu(source, _Compilation(source, compiler, toolchain, ninja, work_dir))

    return compile_kernels_alone(source, run)


def _compile_for_cpu(source: DeviceSource, compilation: _Compilation) -> CpuProgram:
    object_file = compilation.run()
    rows = object_file.rows()
    untyped = [Kernel(r.symbol, r.symbol, r.parameters, None, None, None, r.max_threads) for r in rows]
    variables, layouts = demangle_variables(object_file.variables()), read_layouts(object_file.layouts())
    candidates = known_candidates(source.reading, untyped)
    lowered = {text: (row.symbol, row.probe) for text, row in zip(compilation.expressions, rows, strict=True)}
    launched = {kernel: lowered[expression][0] for expression, kernel in compilation.launched.items()}
    kernels = read_kernels(untyped, lowered, candidates, layouts)
    compiled = CompiledSource(
        cubin=Cubin(
            data=b"",
            arch="cpu",
            kernels=with_signatures(kernels, launched, source.signatures),
            variables=typed_variables(variables, layouts, compilation.layouts.variables),
        ),
        symbols=launched,
        candidates=candidates,
        headers=compilation.user_headers,
    )
    return CpuProgram(
        compiled=compiled,
        object_file=compilation.output,
        kernels={
            row.symbol: CpuKernel(row=number, mode=row.mode, max_threads=row.max_threads, shared_bytes=row.shared_bytes)
            for number, row in enumerate(rows)
        },
        variables={v.name: linked_name(v.symbol) + compilation.suffix for v in variables},
        dynamic_shared=(*object_file.dynamic_shared(), *((_DYNAMIC_SHARED_SYMBOL,) if source.instrumentation else ())),
        files_read=compilation.files_read,
        table=TABLE + compilation.suffix,
    )


def cpu_flags(source: DeviceSource, toolchain: CudaToolchain | None) -> tuple[str, ...]:
    """Return g++'s options for compiling device code for the CPU."""
    toolkit_dirs = toolchain.include_dirs if toolchain else ()
    user_dirs = (_user_dir(source),) if source.headers else ()
    own_dirs = (_SHORT_DIR, INCLUDE_DIR / "cpu", INCLUDE_DIR, *tvm_ffi_include_dirs())
    return (
        *_FLAGS,
        *_processor_flags(source.cpu_flags),
        *_instrumentation_flags(source.instrumentation),
        *compiler_flags(source.cpu_flags),
        *_release_macros(toolchain),
        *(f"-I{path}" for path in (*user_dirs, *own_dirs, *source.include_dirs)),
        *(word for path in toolkit_dirs for word in ("-isystem", str(path))),
    )


def _user_dir(source: DeviceSource) -> str:
    """Return the directory for headers that replace the user's. Names such as `../common.h` do not lead out of it."""
    depth = max((os.path.normpath(header.name).split(os.sep).count("..") for header in source.headers), default=0)
    return os.path.join(_USER_DIR, *["d"] * depth)


def _release_macros(toolchain: CudaToolchain | None) -> Iterator[str]:
    """Yield the options that define the macros with CUDA's release, as nvcc of this release defines them."""
    if toolchain is None:
        return
    major, minor, build = (*toolchain.version, 0, 0)[:3]
    for name in ("CUDART_VERSION", "__CUDART_API_VERSION"):
        yield f"-D{name}={1000 * major + 10 * minor}"
    yield f"-D__CUDACC_VER_BUILD__={build}"
    for prefix in ("__CUDACC_VER", "__CUDA_API_VER"):
        yield from (f"-D{prefix}_MAJOR__={major}", f"-D{prefix}_MINOR__={minor}")


def _processor_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return g++'s options that depend on the processor, for thread-local variables and for `a * b + c`.

    `-mtls-dialect=gnu2`: Shared memory and threadIdx are thread-local variables. With this option, g++ uses TLS
    descriptors, and can compute the addresses of these variables before a loop instead of in it.

    `-ffp-contract`: nvcc compiles `a * b + c` to one instruction that rounds once. On x86-64, g++ may do so only if the
    user's options select a processor or contain `-mfma`. Otherwise, results would depend on the machine.
    """
    if platform.machine() != "x86_64":
        return ("-ffp-contract=fast",)
    has_fma = any(flag.startswith(("-march=", "-mfma")) for flag in flags)
    return ("-mtls-dialect=gnu2", "-ffp-contract=fast" if has_fma else "-ffp-contract=off")


def _instrumentation_flags(instrumentation: Sequence[str]) -> tuple[str, ...]:
    if not instrumentation:
        return ()
    level = "-O0" if DEBUG in instrumentation else "-O1"
    return ("-g", "-gdwarf-4", level, *(flag for name in instrumentation for flag in _INSTRUMENTATION_FLAGS[name]))


class _Compilation:
    """The runs of the compiler for one source. After the source's text comes the kernel table, an array of kernels.

    Attributes:
        layouts: The template instances for structures and device variables.
        launched: A dict from C++ expressions of kernels to the kernels' names in the user's `Launch` records.
        expressions: The C++ expressions of the kernels in the kernel table, row by row.
        files_read: The files that the compiler read.
        user_headers: The user's headers among these files.
        suffix: What distinguishes the symbols of this part of a library.
        output: The file name of the object file that is linked.
    """

    def __init__(
        self, source: DeviceSource, compiler: Compiler, toolchain: CudaToolchain | None, ninja: Path, work_dir: Path
    ) -> None:
        self.layouts = layout_queries(source.reading, source.kernels, source.exports, is_nvrtc=False)
        self.launched = {probe.kernel_expression(kernel): kernel for kernel in source.kernels}
        self.expressions: tuple[str, ...] = ()
        self.files_read: tuple[Path, ...] = ()
        self.user_headers: tuple[Path, ...] = ()
        self._replaced: dict[Path, UserHeader] = {}  # the headers that `_write_headers` wrote
        self.suffix = f"__part{source.part}" if source.part else ""
        self.output = f"kernels{self.suffix}.o"
        self._source = source
        self._compiler = compiler.command
        self._flags = (*cpu_flags(source, toolchain), "-MD", "-MF", "cpu.d")
        self._ninja = ninja
        self._work_dir = work_dir
        self._toolchain = toolchain
        self._known_dirs = (INCLUDE_DIR, Path("/usr"), *(toolchain.include_dirs if toolchain else ()))
        self._waiting_flags = waiting_flags(source.piece_texts, source.instrumentation)

    def run(self) -> ObjectFile:
        """Compile the source with a row in the kernel table for each kernel, and return the object file."""
        _refuse_gpu_code(self._source.name, self._source.pieces, self._toolchain)
        short_dir = self._work_dir / _SHORT_DIR
        self._write_headers()
        if any("include" in text for text in (*self._source.piece_texts, *self._source.cpu_flags)):
            for name, text in SHORT_HEADERS.items():
                path = short_dir / name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_text(text)
        object_file = self._compile_all()
        (self._work_dir / self.output).write_bytes(object_file.for_link(self.suffix))
        for directory in (short_dir, self._work_dir / _USER_DIR):
            shutil.rmtree(directory, ignore_errors=True)  # an error skips this line, so that they can be inspected
        return object_file

    def _write_headers(self) -> None:
        """Write the headers that replace the user's, each where an `#include` of its name finds it."""
        for header, text in self._source.header_texts:
            path = self._work_dir / _user_dir(self._source) / header.name
            if not path.is_relative_to(self._work_dir):
                continue  # the name is an absolute path, which always finds the user's file
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text, "utf-8", "surrogateescape")
            self._replaced[Path(os.path.normpath(path))] = header

    def _compile_all(self) -> ObjectFile:
        object_file = self._run_with_rows(self._source.first_expressions)
        for spell in (_expression_of, _declaration_of):
            in_table = {row.symbol for row in object_file.rows()}
            missing = tuple(filter(None, (spell(s) for s in object_file.marked() if s not in in_table)))
            if missing:
                object_file = self._run_with_rows((*self.expressions, *missing))
        self._check_names(object_file)
        return object_file

    def _check_names(self, object_file: ObjectFile) -> None:
        in_table = {row.symbol for row in object_file.rows()}
        names = {candidate.name.rpartition("::")[2] for candidate in self._source.reading.candidates}
        for symbol in object_file.marked():
            if symbol in names - in_table:
                log = f"The kernel {symbol!r} has the name of a function of CUDA: give it another name."
                raise CompileError(stage="host", name=self._source.name, log=log)
            if symbol not in in_table and "." not in symbol:  # the dot in `k.part.0` marks a part of a kernel
                _log.warning(
                    "%s: the kernel with the symbol %s… of %d characters is left out, because its name cannot be read; "
                    "name it in functions=, with Launch(kernel=...)",
                    self._source.name, symbol[:60], len(symbol),
                )  # fmt: skip

    def _run_with_rows(self, expressions: tuple[str, ...]) -> ObjectFile:
        """Compile with a row in the kernel table for each expression. Repeat without the rows that g++ refuses."""
        while True:
            try:
                object_file = self._run(expressions)
                refused: frozenset[str] | None = object_file.undefined(expressions)
                if not refused:
                    return object_file
                failure = CompileError(
                    stage="host", name=self._source.name, log="The kernel is declared but not defined."
                )
            except CompileError as error:
                if lines := {d.line for d in error.diagnostics if d.file == LAYOUT_FILE}:
                    kept = (text for line, text in enumerate(self.layouts.expressions, 1) if line not in lines)
                    self.layouts = self.layouts._replace(expressions=tuple(kept))
                    continue
                failure = error
                refused = _refused_rows(error, expressions)
            if refused is None:
                raise explain(self._error_of_source(failure, expressions))
            if launched := next((text for text in expressions if text in refused and text in self.launched), None):
                raise no_such_kernel(self.launched[launched], self._source.reading.candidates, failure) from failure
            expressions = tuple(text for text in expressions if text not in refused)

    def _run(self, expressions: tuple[str, ...]) -> ObjectFile:
        self.expressions = expressions
        self._compile(expressions)
        headers = self._read_headers()
        texts = [*self._source.piece_texts, *(text for _, text in headers)]
        flags = waiting_flags(texts, self._source.instrumentation)
        if flags != self._waiting_flags:
            self._waiting_flags = flags
            return self._run(expressions)
        self._refuse_gpu_headers(headers)
        if may_return_in_ptx(texts):
            self._refuse_return_in_ptx(expressions)
        return ObjectFile((self._work_dir / self.output).read_bytes())

    def _refuse_return_in_ptx(self, expressions: tuple[str, ...]) -> None:
        """Raise an error for the instruction `ret`. A CPU has it, too, but there it ends the loop over the threads."""
        preprocessed = self._work_dir / "cpu.i"
        self._compile(expressions, preprocessed.name, "-E")
        position = ptx_return(preprocessed.read_text("utf-8", "replace"))
        preprocessed.unlink()
        if position:
            raise gpu_only_error(self._source.name, *position, "inline PTX")

    def _compile(self, expressions: tuple[str, ...] = (), output: str = "", *options: str) -> None:
        text = cpu_text(self._source, expressions, self.layouts.expressions if expressions else ())
        (self._work_dir / "cpu.cc").write_text(text, encoding="utf-8", newline="")
        quoted = self._write_pieces()
        flags = (*self._flags, *self._waiting_flags, *options)
        write_ninja(self._work_dir, (compile_step(self._compiler, flags, "cpu.cc", output or self.output),))
        try:
            run_ninja(self._ninja, self._work_dir, name=self._source.name)
        finally:
            for path in quoted:
                path.unlink(missing_ok=True)

    def _write_pieces(self) -> list[Path]:
        """Write each text of the source to a file named after the text's label, and return the paths.

        g++ quotes lines of these files in its messages.
        """
        paths = []
        for label, text in self._source.pieces:
            path = self._work_dir / label
            if path.parent != self._work_dir or path.name == "cpu.cc":
                continue
            with suppress(OSError):  # raised if the label is too long for a file's name
                path.write_text(text, encoding="utf-8", newline="")
                paths.append(path)
        return paths

    def _error_of_source(self, failure: CompileError, expressions: tuple[str, ...]) -> CompileError:
        """Return one error for all errors in the user's text. If there are none, return the kernel table's error."""
        log = without_table_errors(failure.log)
        diagnostics = parse_diagnostics(log)
        if any("error" in diagnostic.severity for diagnostic in diagnostics):
            failure.log, failure.diagnostics = log, diagnostics
            return failure
        # Compile again without the table, because g++ notices an unclosed brace, for example, only in the table.
        try:
            if expressions:
                self._compile()
        except CompileError as error:
            return error
        return failure

    def _read_headers(self) -> list[tuple[str, str]]:
        """Record which files the compiler read. Return (name, text) pairs of the user's headers."""
        read = [*read_depfile((self._work_dir / "cpu.d").read_text("utf-8", "surrogateescape"))]
        replaced = {path: self._replaced.get(Path(os.path.normpath(self._work_dir / path))) for path in read}
        self.files_read = tuple(header.path if (header := replaced[path]) else path for path in read)
        texts = {header.path: header.text for header in replaced.values() if header}
        self.user_headers = tuple(
            path
            for path in dict.fromkeys(self.files_read)
            if path.is_absolute() and not any(path.is_relative_to(root) for root in self._known_dirs)
        )
        return [(str(path), texts.get(path) or path.read_text("utf-8", "replace")) for path in self.user_headers]

    def _refuse_gpu_headers(self, headers: Sequence[tuple[str, str]]) -> None:
        """Raise an error if a header is for GPUs only, or if a user's header has a branch that would be lost.

        `headers` are the (name, text) pairs of the user's headers.
        """
        if feature := gpu_header(self.files_read):
            file, line = next(gpu_include_lines(headers), (self._source.pieces[0][0], 1))
            raise gpu_only_error(self._source.name, file, line, feature)
        _refuse_gpu_code(self._source.name, headers, self._toolchain)


def _refuse_gpu_code(name: str, texts: Sequence[tuple[str, str]], toolchain: CudaToolchain | None) -> None:
    for label, text in texts:
        if toolchain is None and (macro := _RELEASE_MACRO.search(strip_comments(text))):
            raise ToolchainError(
                f"{label} uses {macro[0]}, the release of CUDA, and CUDA is not installed here. Install its headers: "
                "pip install 'jitload[cu13]'  ('jitload[cu12]' for CUDA 12)"
            )
        if lost := find_lost_branch(label, text):
            raise gpu_only_error(name, lost.file, lost.line, lost.message.removeprefix("GPU only: "))


def _refused_rows(error: CompileError, expressions: Sequence[str]) -> frozenset[str] | None:
    """Return the expressions whose rows of the kernel table have errors, or None if other code has errors, too."""
    errors = [d for d in error.diagnostics if "error" in d.severity]
    lines = [d.line for d in errors if d.file == ROW_FILE]
    if any("overloaded function" in d.message for d in errors):
        # If a kernel has the name of a function of CUDA, such as `max`, g++ reports an error in jitload_cpu.h. Only a
        # note to this error has the row's number.
        lines += [int(line) for line in re.findall(rf"^{re.escape(ROW_FILE)}:(\d+):", error.log, re.MULTILINE)]
    others = [d for d in errors if d.file != ROW_FILE and not d.file.endswith("jitload_cpu.h")]
    if not lines or others:
        return None
    return frozenset(expressions[line - 1] for line in lines if 0 < line <= len(expressions))


def _expression_of(symbol: str) -> str:
    """Return a C++ expression for the kernel with this symbol, or "" if C++ cannot name the kernel."""
    readable = demangle(symbol)
    if readable is None:
        return symbol if symbol.isidentifier() else ""
    match = re.fullmatch(r"(?:void )?([^()]+(?:<.*>)?)\((.*)\)", readable)
    return f"static_cast<void(*)({match[2]})>({match[1]})" if match else ""


def _declaration_of(symbol: str) -> str:
    """Return `BY_SYMBOL` + symbol + `(parameters)`, the table's entry for a kernel that C++ cannot name.

    Return "" for an unmangled symbol.
    """
    readable = demangle(symbol)
    match = re.fullmatch(r".*\((.*)\)", readable or "")
    return f"{BY_SYMBOL}{symbol}({match[1].replace('(anonymous namespace)::', '')})" if match else ""
