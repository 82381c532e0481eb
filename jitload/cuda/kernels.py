"""Compiles the device code of a request with NVRTC, and reads the names and types of its kernels.

NVRTC usually runs once for each architecture: it compiles the source, instantiates the templates that `Launch` records
name, and mangles the type of each kernel that the text shows. NVRTC runs again, for example, if a function in the text
turns out not to be a kernel, if a macro declares an `extern "C"` kernel that the text does not show, or if the text
uses names that nvcc declares by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from jitload.cpptext.declarations import find_candidates, find_unambiguous
from jitload.cpptext.includes import IncludeScan
from jitload.cpptext.lexer import has_matching_brackets
from jitload.cpptext.source_kind import UserHeader, user_headers
from jitload.cuda.headers import STAND_INS, provide_headers
from jitload.cuda.host_code import compile_kernels_alone
from jitload.cuda.nvrtc import (
    SYNTAX_ONLY,
    NvrtcJob,
    NvrtcResult,
    device_options,
    log_warnings,
    missing_function_hint,
    run_nvrtc,
)
from jitload.cuda.precompiled import file_states
from jitload.cuda.predefined import declarations_for, declarations_for_conditions
from jitload.cuda.source_check import check_is_device_code
from jitload.elf.cubin import read_image
from jitload.errors import CompileError, LaunchSpecError, SignatureError, nearest_name
from jitload.model import Candidate, CompiledSource, Cubin, Image
from jitload.request.arguments import NO_INSTRUMENTATION, Instrumentation
from jitload.request.kind import DEFAULT_DEVICE, kernels_alone, unqualified
from jitload.request.request import Request
from jitload.signature import layouts, probe
from jitload.signature.demangle import demangle_variables
from jitload.signature.exports import check_layouts
from jitload.signature.kernels import find_expressions_to_probe, read_kernels, with_header_candidates
from jitload.signature.layouts import LAYOUT_DECLARATIONS, read_layouts, typed_variables
from jitload.toolchain.arch import CPU, machine_arch
from jitload.toolchain.cuda import CudaToolchain, find_cuda_toolchain, nvrtc_include_dirs
from jitload.toolchain.cutlass import wheel_cutlass_dirs

_INCLUDES_CUTLASS = re.compile(r"#\s*include\s*[<\"]cut(?:e|lass)/")
_INCLUDE_OR_MACRO_OPTION = re.compile(r"(?:--pre-include=|-include=)(.*)|(?:-D|--define-macro=)(\w+)=(.*)", re.DOTALL)
# Matches what NVRTC's option --minimal removes: textures and surfaces, types and macros of the runtime and the driver,
# and `<<<…>>>`. Also matches #include, because headers such as CUB's may use what --minimal removes. A source without a
# match compiles to the same code with --minimal. With a match, the code may differ without an error, for example if the
# source tests a removed macro with #ifdef.
_NEEDS_MORE_THAN_MINIMAL = re.compile(
    r"#\s*include|\binclude=|minimal|MINIMAL|cuda[A-Z]|CUDART|<<<|_H__|libraryProp"
    r"|\b(?:CU[a-z]|CU_|CUDA_|tex|surf|MAJOR_VERSION|MINOR_VERSION|PATCH_LEVEL)"
)
# With this macro, cooperative_groups.h does not include the C++ library, which NVRTC takes a second to read.
_LIGHT_COOPERATIVE_GROUPS = "-D_CG_LIMIT_INCLUDED_DEPENDENCIES"
_OLD_STANDARD = re.compile(r"--?std=(?:c|gnu)\+\+(?:98|03)")


def compile_device_code(request: Request, toolchain: CudaToolchain | None) -> tuple[CompiledSource, ...]:
    """Return a request's machine code for each architecture. Sources are compiled, and cubins are read."""
    if request.cubins:
        from jitload.cuda.external_cubins import read_external_cubins

        return read_external_cubins(request)
    assert toolchain is not None
    check_is_device_code(request)
    return compile_for_gpus(request, toolchain)


# ---- all architectures of a request ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSource:
    """Device code to compile.

    Attributes:
        name: The module's name.
        pieces: The (label, text) pairs of the source. In compiler messages, the label is the file name.
        options: The user's NVRTC options without include directories.
        include_dirs: The user's include directories.
        kernels: The kernels in `Launch` records, as the user writes them: `scale<float>`, `scale(float*, int)`.
        signatures: The (name, signature) pairs of hand-written signatures. The name is an entry of `kernels`, or the
            exported name if the `Launch` record names no kernel.
        cpu_flags: The options of the host compiler if the code runs on the CPU.
        instrumentation: How the code is instrumented on the CPU.
        is_isolated: Whether NVRTC runs in a child process.
        precompiles: Whether the headers that the source includes may be precompiled.
        headers: Headers whose texts replace the user's files of these names.
        exports: The names in `functions=` without a `Launch.kernel`.
        part: The number of the source among the compilations that make up one library for the CPU.
    """

    name: str
    pieces: tuple[tuple[str, str], ...]
    options: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    kernels: tuple[str, ...] = ()
    signatures: tuple[tuple[str, str], ...] = ()
    cpu_flags: tuple[str, ...] = ()
    instrumentation: Instrumentation = NO_INSTRUMENTATION
    is_isolated: bool = False
    precompiles: bool = False
    headers: tuple[UserHeader, ...] = ()
    exports: tuple[str, ...] = ()
    part: int = 0

    @property
    def piece_texts(self) -> tuple[str, ...]:
        """The texts of the pieces."""
        return tuple(text for _, text in self.pieces)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that determine which headers are read.

        They are the pieces, and one line of C++ for each option that includes a header or defines a macro.
        """
        matches = filter(None, map(_INCLUDE_OR_MACRO_OPTION.match, self.options))
        lines = (f'#include "{m[1]}"' if m[1] else f"#define {m[2]} {m[3]}" for m in matches)
        return (*self.piece_texts, *lines)

    @property
    def header_texts(self) -> Iterator[tuple[UserHeader, str]]:
        """The headers with their texts. In compiler messages, they keep the paths of the user's files."""
        return ((header, join_pieces([(str(header.path), header.text)])) for header in self.headers)

    @property
    def signatures_by_expression(self) -> tuple[tuple[str, str], ...]:
        """The pairs of `signatures`, with each kernel's C++ expression in place of its name."""
        return tuple(
            (probe.kernel_expression(kernel) if kernel in self.kernels else kernel, signature)
            for kernel, signature in self.signatures
        )

    @property
    def is_minimal(self) -> bool:
        """Whether `--minimal` surely leaves the code unchanged. It saves a sixth of a small kernel's compile time."""
        return not any(map(_NEEDS_MORE_THAN_MINIMAL.search, (*self.piece_texts, *self.options)))

    @property
    def text(self) -> str:
        """The pieces as one text. `#line` directives make compilers count lines within each piece."""
        return join_pieces(self.pieces)


def layout_expressions(source: DeviceSource, candidates: Sequence[Candidate], *, is_nvrtc: bool) -> tuple[str, ...]:
    """Return C++ expressions whose symbols show the members of structures and the types of variables.

    `candidates` are the functions in the source that look like kernels. The expressions are for NVRTC, or for g++ if
    `is_nvrtc` is false.
    """

    def read_others() -> tuple[str, ...]:
        return (*source.texts[len(source.pieces) :], *user_headers(source.texts, source.include_dirs))

    texts, kernels = source.piece_texts, source.kernels
    if {unqualified(name) for name in (*kernels, *source.exports)} - {unqualified(c.name) for c in candidates}:
        candidates = (*candidates, *find_candidates(read_others()))
    return layouts.layout_expressions(texts, read_others, candidates, kernels, is_nvrtc=is_nvrtc)


def join_pieces(pieces: Iterable[tuple[str, str]]) -> str:
    """Join (label, text) pairs to one text. Compilers use the labels as file names in messages."""
    # Only these two characters need a backslash, because labels contain no unprintable characters.
    escaped = ((re.sub(r'(["\\])', r"\\\1", label), text) for label, text in pieces)
    return "".join(f'#line 1 "{label}"\n{text}\n' for label, text in escaped)


def compile_cubins(request: Request) -> tuple[CompiledSource, ...]:
    """Compile a request's device code for each architecture."""
    request = kernels_alone(request)
    check_is_device_code(request)
    return _compile_for_archs(device_source(request), request.archs, find_cuda_toolchain(request.settings))


def compile_for_gpus(request: Request, toolchain: CudaToolchain) -> tuple[CompiledSource, ...]:
    """Compile the device code of a request for each of its GPU architectures."""
    with naming_exports(request):
        archs = [arch for arch in request.archs if arch != CPU]
        compiled = _compile_for_archs(device_source(request), archs, toolchain)
    check_layouts(compiled)
    return compiled


def _compile_for_archs(
    source: DeviceSource, archs: Sequence[str], toolchain: CudaToolchain
) -> tuple[CompiledSource, ...]:
    """Compile device code for each architecture. One run of NVRTC makes the machine code and the PTX of `sm_90`."""
    compiled = {arch: compile_for_arch(source, arch, toolchain) for arch in dict.fromkeys(map(machine_arch, archs))}
    return tuple(compiled[arch] if arch in compiled else compiled[machine_arch(arch)].as_ptx(arch) for arch in archs)


def device_source(request: Request) -> DeviceSource:
    """Return the parts of a request that the compilers of device code need."""
    functions = request.functions or ()
    kernels = [launch.kernel for _, launch in functions if launch.kernel]
    includes_cutlass = any(_INCLUDES_CUTLASS.search(text) for _, text in request.pieces)
    return DeviceSource(
        name=request.name,
        pieces=request.pieces,
        # CUTLASS has functions without `__device__` that kernels call. Without these options, the first compile would
        # take seconds to fail, and `compile_kernels_alone` would add them.
        options=(*request.options, *(DEFAULT_DEVICE if includes_cutlass else ())),
        include_dirs=(*map(Path, request.include_dirs), *wheel_cutlass_dirs()),
        kernels=tuple(dict.fromkeys(kernels)),
        signatures=tuple((launch.kernel or name, launch.signature) for name, launch in functions if launch.signature),
        cpu_flags=request.cpu_flags,
        instrumentation=request.instrumentation,
        is_isolated=request.settings.isolates,
        precompiles=request.settings.precompiles,
        exports=tuple(name for name, launch in functions if not launch.kernel),
    )


@contextmanager
def naming_exports(request: Request) -> Iterator[None]:
    """Add details to errors that the `with` block raises.

    A LaunchSpecError about a `Launch.kernel` gets the name under which `functions=` exports the kernel. A CompileError
    gets a hint if `functions=` seems to misspell a host function.
    """
    try:
        yield
    except CompileError as error:
        exports = [name for name, launch in request.functions or () if not launch.kernel]
        error.hint = missing_function_hint(error.log, exports, [text for _, text in request.pieces]) or error.hint
        raise
    except LaunchSpecError as error:
        names = (name for name, launch in request.functions or () if launch.kernel == error.expression)
        error.kernel = error.kernel or next(names, "")
        raise


# ---- one architecture ---------------------------------------------------------------------------------------------


def compile_for_arch(source: DeviceSource, arch: str, toolchain: CudaToolchain) -> CompiledSource:
    """Compile device code for one architecture and read its kernels' types.

    Raises:
        CompileError: NVRTC rejected the source.
        LaunchSpecError: NVRTC rejected a kernel that a `Launch` names.
        SignatureError: The types of a kernel's parameters are unknown, or do not fit the sizes in the cubin.
        ToolchainError: NVRTC cannot be used, or does not know the architecture.
    """
    return compile_kernels_alone(source, lambda source: _compile_for_arch(source, arch, toolchain))


def _compile_for_arch(source: DeviceSource, arch: str, toolchain: CudaToolchain) -> CompiledSource:
    scan = IncludeScan(source.texts, source.include_dirs)
    with _compilation(source, arch, toolchain, scan) as compilation:
        candidates = compilation.candidates
        result, image = compilation.compile(first_expressions(source, candidates))
        symbols = compilation.symbols(result)
        if missing := find_expressions_to_probe(image, symbols):
            result, image = compilation.compile((*compilation.expressions, *missing))
            symbols = compilation.symbols(result)
    layouts = read_layouts(result.lowered.values())
    candidates = with_header_candidates(candidates, image, source.texts, source.include_dirs)
    try:
        kernels = read_kernels(image, symbols, candidates, source.signatures_by_expression, layouts)
    except SignatureError as error:
        raise _with_standard(error, source.options) from error
    own_dirs = nvrtc_include_dirs(toolchain)
    log_warnings(result.log, own_dirs)
    variables = typed_variables(demangle_variables(image.variables), layouts, source.piece_texts)
    if compilation.declarations:  # some declarations are #include lines
        scan = IncludeScan((*source.texts, *compilation.declarations), source.include_dirs)
    return CompiledSource(
        cubin=Cubin(data=result.cubin, arch=arch, log=result.log, kernels=kernels, variables=variables, ptx=result.ptx),
        symbols={kernel: symbols[probe.kernel_expression(kernel)][0] for kernel in source.kernels},
        candidates=candidates,
        headers=scan.headers(own_dirs),
    )


def check_device_code(source: DeviceSource, arch: str, toolchain: CudaToolchain) -> tuple[Path, ...]:
    """Check device code with NVRTC's front end, which makes no machine code.

    Return the user's headers that NVRTC may have read.

    Raises:
        CompileError: NVRTC rejected the source.
        LaunchSpecError: NVRTC rejected a kernel that a `Launch` names.
    """
    options = (*source.options, SYNTAX_ONLY)
    if "cooperative_groups" in source.text:
        with suppress(CompileError, LaunchSpecError):  # raised if the source needs what the macro below leaves out
            return _check(replace(source, options=(*options, _LIGHT_COOPERATIVE_GROUPS)), arch, toolchain)
    checked = replace(source, options=options)
    return compile_kernels_alone(checked, lambda source: _check(source, arch, toolchain))


def _check(source: DeviceSource, arch: str, toolchain: CudaToolchain) -> tuple[Path, ...]:
    scan = IncludeScan(source.texts, source.include_dirs)
    with _compilation(source, arch, toolchain, scan) as compilation:
        compilation.run(tuple(map(probe.kernel_expression, source.kernels)))
    return scan.headers(nvrtc_include_dirs(toolchain))


@contextmanager
def _compilation(
    source: DeviceSource, arch: str, toolchain: CudaToolchain, scan: IncludeScan
) -> Iterator[_Compilation]:
    """Yield a `_Compilation` of a source. The headers that jitload writes for NVRTC exist while the block runs."""
    include_dirs = nvrtc_include_dirs(toolchain, source.include_dirs)
    with provide_headers(include_dirs, scan.quoted_files(STAND_INS), source.text) as (headers, stand_in_dirs):
        job = NvrtcJob(
            name=source.pieces[0][0] if len(source.pieces) == 1 else f"{source.name}.cu",
            directory="/jitload",
            source=source.text,
            options=(
                *device_options(toolchain.version, arch),
                *(f"-I{path}" for path in (*include_dirs, *stand_in_dirs)),
                *source.options,
            ),
            headers=(*((header.name, text) for header, text in source.header_texts), *headers),
            is_isolated=source.is_isolated,
            header_state=_header_state(source, toolchain, scan),
        )
        yield _Compilation(source, toolchain, job)


def _header_state(source: DeviceSource, toolchain: CudaToolchain, scan: IncludeScan) -> str:
    """Return a text that changes with the headers of a source, or "" if they are not to be precompiled."""
    if not source.precompiles:
        return ""
    return f"{toolchain.identity}\n{file_states(scan.headers(nvrtc_include_dirs(toolchain)))}"


def _with_standard(error: SignatureError, options: Sequence[str]) -> SignatureError:
    """Return the error. If an option selects a standard before C++11, add that NVRTC reports no types with it."""
    old = next((option for option in options if _OLD_STANDARD.fullmatch(option)), None)
    if old is None:
        return error
    return SignatureError(
        f"{error}\n    The compiler reports the types only from C++11 on: leave the option {old} out, or name a newer "
        "standard."
    )


def first_expressions(source: DeviceSource, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Return C++ expressions for the kernels whose types the first run of a compiler has to report.

    They are the kernels in `Launch` records, and the candidates that are neither templates nor overloaded. Other
    templates and overloads are left out, because their symbols contain the types anyway. `candidates` are the functions
    in the text that look like kernels.
    """
    functions = [candidate.name for candidate in find_unambiguous(candidates)]
    return tuple(dict.fromkeys((*map(probe.kernel_expression, source.kernels), *functions)))


class _Compilation:
    """The runs of NVRTC that compile one source for one architecture.

    Attributes:
        candidates: The functions in the text that look like kernels.
        expressions: The C++ expressions for the kernels of the last run, such as `ns::scale<float>`.
        declarations: Lines to put before the source in the next run. They declare names that nvcc declares by itself.
    """

    def __init__(self, source: DeviceSource, toolchain: CudaToolchain, job: NvrtcJob) -> None:
        self.candidates = find_candidates(source.piece_texts)
        self.expressions: tuple[str, ...] = ()
        # A header that asks whether NVRTC compiles it needs no macros of nvcc.
        headers = (text for text in user_headers(source.texts, source.include_dirs) if "__CUDACC_RTC__" not in text)
        self.declarations = declarations_for_conditions((*source.texts, *headers))
        self._source = source
        self._nvrtc_path = toolchain.nvrtc_path
        self._job = job  # each run of NVRTC gets a changed copy
        self._is_minimal = source.is_minimal and toolchain.version >= (12, 4)
        self._rejected: frozenset[str] = frozenset()
        self._layouts = layout_expressions(source, self.candidates, is_nvrtc=True)
        self._is_checked = False

    def compile(self, expressions: tuple[str, ...]) -> tuple[NvrtcResult, Image]:
        """Compile, and return NVRTC's result and the description of its cubin."""
        result = self.run(expressions)
        return result, read_image(result.cubin, name=self._source.name, spill_bytes=result.spill_bytes)

    def run(self, expressions: tuple[str, ...]) -> NvrtcResult:
        """Run NVRTC. Repeat the run without the name expressions that NVRTC rejects.

        One repeat is enough, unless NVRTC reaches its limit of a hundred messages.
        """
        while True:
            try:
                return self._run(expressions)
            except CompileError as error:
                failure = error
            rejected = probe.rejected_expressions(failure.log) - self._rejected
            if rejected and not probe.is_only_name_errors(failure.log):
                self._run(())  # raises an error with only the messages about the source
            if not rejected or not probe.is_only_name_errors(failure.log):
                raise failure
            requested = {probe.kernel_expression(kernel): kernel for kernel in self._source.kernels}
            if self._is_minimal and not rejected.isdisjoint(requested):
                self._is_minimal = False  # a `Launch` may use a removed type, as in `k<cudaExtent>`
                continue
            if kernel := next((requested[expression] for expression in requested if expression in rejected), None):
                raise no_such_kernel(kernel, self.candidates, failure) from failure
            self._rejected |= rejected
            expressions = tuple(expression for expression in expressions if expression not in self._rejected)

    def _run(self, expressions: tuple[str, ...]) -> NvrtcResult:
        """Compile with two name expressions per kernel: the kernel, and a probe whose symbol has the kernel's type."""
        if self._may_crash(expressions):
            self._run(())
        self.expressions = expressions
        while True:
            try:
                return run_nvrtc(self._nvrtc_path, self._next_job())
            except CompileError as error:
                self._prepare_retry(error)

    def _may_crash(self, expressions: tuple[str, ...]) -> bool:
        """Return whether NVRTC may crash on name expressions. Return True at most once.

        The lines of `probe.instantiations` prevent the crash, but not in C++ before C++11 or after an unmatched
        bracket. If True, the caller compiles without name expressions first. That compile reports the errors in the
        source.
        """
        if self._is_checked or not probe.instantiations(expressions):
            return False
        self._is_checked = True
        is_old = any(map(_OLD_STANDARD.fullmatch, self._source.options))
        return is_old or not has_matching_brackets(self._source.text)

    def _next_job(self) -> NvrtcJob:
        names = [name for kernel in self.expressions for name in (kernel, probe.probe_expression(kernel))]
        options, headers = self._job.options, self._job.headers
        if self._is_minimal:
            options = (*options, "--minimal")
        if self.expressions:
            name, text = probe.PROBE_HEADER
            options = (*options, f"--pre-include={name}")
            headers = ((name, text + (LAYOUT_DECLARATIONS if self._layouts else "")), *headers)
            names += self._layouts
        return self._job._replace(
            source=self._job.source + probe.instantiations(self.expressions),
            options=options,
            headers=headers,
            expressions=tuple(name for name in names if name not in self._rejected),
            declared=self.declarations,
        )

    def _prepare_retry(self, error: CompileError) -> None:
        """Add declarations for the next run, or drop `--minimal`. Raise `error` again if neither can help."""
        try:
            self.declarations = declarations_for(error, self.declarations)
        except CompileError:
            if not self._is_minimal or probe.is_only_name_errors(error.log):
                raise
            self._is_minimal = False

    def symbols(self, result: NvrtcResult) -> dict[str, tuple[str, str]]:
        """Return a dictionary from the kernels' C++ expressions to (kernel's symbol, probe's symbol) pairs.

        The probe's symbol contains the kernel's type, or is "" if NVRTC rejected the probe.
        """
        if builtin := next((kernel for kernel in self.expressions if kernel not in result.lowered), None):
            raise SignatureError(
                f"kernel {builtin!r} cannot be compiled, because NVRTC has a built-in function of this name. "
                "Give the kernel another name."
            )
        return {
            kernel: (result.lowered[kernel], result.lowered.get(probe.probe_expression(kernel), ""))
            for kernel in self.expressions
        }


def no_such_kernel(kernel: str, candidates: Sequence[Candidate], error: CompileError) -> LaunchSpecError:
    """Return the error for a `Launch.kernel` that the compiler rejected. The hint lists kernels in the source."""
    name = re.split("[<(]", kernel)[0].strip()
    namesakes = [candidate for candidate in candidates if candidate.name == name]
    declarations = ", ".join(map(_declaration, namesakes or candidates)) or "none"
    names = [candidate.name for candidate in candidates]
    nearest = nearest_name(name, names) or next((n for n in names if n.rpartition("::")[2] == name), "")
    suggestion = f"Did you mean {nearest!r}? " if nearest and not namesakes else ""
    message = next((d.message for d in error.diagnostics if "__jitload_" not in d.message), "")
    problem = f"{kernel!r} does not match any kernel of that name" if namesakes else f"there is no kernel {kernel!r}"
    hint = f"{suggestion}The source declares: {declarations}"
    if message:
        hint += f"\n    The compiler says: {message}"
    return LaunchSpecError(problem, field="Launch.kernel", expression=kernel, hint=hint)


def _declaration(candidate: Candidate) -> str:
    template = "template " if candidate.is_template else ""
    return f"{template}{candidate.name}({', '.join(candidate.types)})"
