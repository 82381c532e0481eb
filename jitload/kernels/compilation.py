"""Compiles the device code of a request with NVRTC, and reads the names and types of its kernels.

NVRTC usually runs once for each architecture: it compiles the source, instantiates the templates that `Launch` records
name, and mangles the type of each kernel that the text shows. NVRTC runs again, for example, if a function in the text
turns out not to be a kernel, if a macro declares an `extern "C"` kernel that the text does not show, or if the text
uses names that nvcc declares by itself.

What reads NVRTC's result is imported after it has run: a background thread of the build imports it meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.candidate import Candidate
from jitload.cuda.headers import STAND_INS, provide_headers
from jitload.cuda.job import SYNTAX_ONLY, NvrtcJob, NvrtcResult, device_options
from jitload.cuda.nvrtc import log_warnings, run_nvrtc
from jitload.cuda.predefined import declarations_for, declarations_for_texts
from jitload.errors import CompileError, LaunchSpecError, SignatureError, nearest_name
from jitload.kernels.host_code import compile_kernels_alone
from jitload.kernels.source import DeviceSource, check_is_not_ptx, device_source, leading_directives, naming_exports
from jitload.request.kind import kernels_alone
from jitload.request.request import Request
from jitload.signature import probe
from jitload.signature.demangle import demangle_variables
from jitload.signature.layouts import LAYOUT_DECLARATIONS, layout_queries, read_layouts, typed_variables
from jitload.toolchain.arch import CPU, machine_arch
from jitload.toolchain.cuda import CudaToolchain, find_cuda_toolchain, nvrtc_include_dirs
from jitload.toolchain.fingerprints import find_file_state

if TYPE_CHECKING:
    from jitload.model import CompiledSource, Cubin

# With this macro, cooperative_groups.h does not include the C++ library, which NVRTC takes a second to read.
_LIGHT_COOPERATIVE_GROUPS = "-D_CG_LIMIT_INCLUDED_DEPENDENCIES"
_OLD_STANDARD = r"--?std=(?:c|gnu)\+\+(?:98|03)"


def compile_device_code(request: Request, toolchain: CudaToolchain | None) -> tuple[CompiledSource, ...]:
    """Return a request's machine code for each architecture. Sources are compiled, and cubins are read."""
    if request.cubins:
        from jitload.kernels.external_cubins import read_external_cubins

        return read_external_cubins(request)
    assert toolchain is not None
    check_is_not_ptx(request)
    return compile_for_gpus(request, toolchain)


def compile_cubins(request: Request) -> tuple[CompiledSource, ...]:
    """Compile a request's device code for each architecture."""
    request = kernels_alone(request)
    check_is_not_ptx(request)
    compiled = _compile_for_archs(device_source(request), request.archs, find_cuda_toolchain(request.settings))
    from jitload.signature.exports import check_has_kernels

    may_be_hidden = any(word in text for word in ("__device__", "#include") for _, text in request.pieces)
    if not compiled[0].candidates and not may_be_hidden:
        check_has_kernels(compiled[0])
    return compiled


def compile_for_gpus(request: Request, toolchain: CudaToolchain) -> tuple[CompiledSource, ...]:
    """Compile the device code of a request for each of its GPU architectures."""
    with naming_exports(request):
        archs = [arch for arch in request.archs if arch != CPU]
        compiled = _compile_for_archs(device_source(request), archs, toolchain)
    from jitload.signature.exports import check_layouts

    check_layouts(compiled)
    return compiled


def _compile_for_archs(
    source: DeviceSource, archs: Sequence[str], toolchain: CudaToolchain
) -> tuple[CompiledSource, ...]:
    """Compile device code for each architecture. One run of NVRTC makes the machine code and the PTX of `sm_90`."""
    compiled = {arch: compile_for_arch(source, arch, toolchain) for arch in dict.fromkeys(map(machine_arch, archs))}
    return tuple(compiled[arch] if arch in compiled else compiled[machine_arch(arch)].as_ptx(arch) for arch in archs)


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
    reading, own_dirs = source.reading, nvrtc_include_dirs(toolchain)
    headers = reading.files(own_dirs)
    compilation = _Compilation(source, arch, toolchain)
    result, untyped = compilation.compile(source.first_expressions)
    from jitload.model import CompiledSource
    from jitload.signature.kernels import find_expressions_to_probe, known_candidates, read_kernels, with_signatures

    symbols = compilation.symbols(result)
    if missing := find_expressions_to_probe(untyped.kernels, symbols):
        result, untyped = compilation.compile((*compilation.expressions, *missing))
        symbols = compilation.symbols(result)
    layouts = read_layouts(result.lowered.values())
    candidates = known_candidates(reading, untyped.kernels)
    launched = {kernel: symbols[probe.kernel_expression(kernel)][0] for kernel in source.kernels}
    kernels = read_kernels(untyped.kernels, symbols, candidates, layouts)
    kernels = with_signatures(kernels, launched, source.signatures)
    if result.log:
        log_warnings(result.log, own_dirs)
    variables = typed_variables(demangle_variables(untyped.variables), layouts, compilation.layouts.variables)
    if any("#include" in line for line in compilation.declarations):
        headers = reading.files(own_dirs, compilation.declarations)
    return CompiledSource(
        cubin=replace(untyped, arch=arch, log=result.log, kernels=kernels, variables=variables, ptx=result.ptx),
        symbols=launched,
        candidates=candidates,
        headers=headers,
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
            return _check(source._replace(options=(*options, _LIGHT_COOPERATIVE_GROUPS)), arch, toolchain)
    checked = source._replace(options=options)
    return compile_kernels_alone(checked, lambda source: _check(source, arch, toolchain))


def _check(source: DeviceSource, arch: str, toolchain: CudaToolchain) -> tuple[Path, ...]:
    headers = source.reading.files(nvrtc_include_dirs(toolchain))
    _Compilation(source, arch, toolchain).run(tuple(map(probe.kernel_expression, source.kernels)))
    return headers


class _Compilation:
    """The runs of NVRTC that compile one source for one architecture.

    Attributes:
        expressions: The C++ expressions for the kernels of the last run, such as `ns::scale<float>`.
        layouts: The name expressions for structures and device variables.
    """

    def __init__(self, source: DeviceSource, arch: str, toolchain: CudaToolchain) -> None:
        reading = source.reading
        self.expressions: tuple[str, ...] = ()
        self._shadowed = reading.quoted_files(STAND_INS)
        # A header that asks whether NVRTC compiles it needs no macros of nvcc.
        self._headers = [text for text in reading.header_texts if "__CUDACC_RTC__" not in text]
        self._directives = leading_directives(source.pieces[0][1]) if source.keeps_headers else ""
        self.layouts = layout_queries(reading, source.kernels, source.exports, is_nvrtc=True)
        self._source = source
        self._arch = arch
        self._toolchain = toolchain
        self._is_minimal = source.is_minimal and toolchain.version >= (12, 4)
        self._rejected: frozenset[str] = frozenset()
        self._added: tuple[str, ...] = ()  # declarations that a failed run showed to be missing
        self._is_checked = False

    @property
    def declarations(self) -> tuple[str, ...]:
        """Lines to put before the source. They declare names that nvcc declares by itself."""
        return (*self._job.declared, *self._added)

    @cached_property
    def _job(self) -> NvrtcJob:
        """The run of NVRTC, without what differs from run to run."""
        source = self._source
        files = source.reading.files(nvrtc_include_dirs(self._toolchain)) if self._directives else ()
        states = (find_file_state(path) or f"{path}" for path in files)
        return NvrtcJob(
            name=source.pieces[0][0] if len(source.pieces) == 1 else f"{source.name}.cu",
            directory="/jitload",
            source=source.text,
            options=(*device_options(self._toolchain.version, self._arch), *source.compiler_options),
            headers=tuple((header.name, text) for header, text in source.header_texts),
            declared=declarations_for_texts((*source.piece_texts, *source.option_lines, *self._headers)),
            is_isolated=source.is_isolated,
            directives=self._directives,
            header_state="\n".join((f"{self._toolchain.identity}", *states)),
        )

    def compile(self, expressions: tuple[str, ...]) -> tuple[NvrtcResult, Cubin]:
        """Compile, and return NVRTC's result and its cubin, whose kernels have no types."""
        result = self.run(expressions)
        from jitload.elf.cubin import read_cubin

        return result, read_cubin(result.cubin, name=self._source.name, spill_bytes=result.spill_bytes)

    def run(self, expressions: tuple[str, ...]) -> NvrtcResult:
        """Run NVRTC with two name expressions per kernel: the kernel, and a probe whose symbol has the kernel's type.

        Repeat the run with what its errors show to be missing, and without the name expressions that NVRTC rejects.
        """
        if self._may_crash(expressions):
            self.run(())
        self.expressions = expressions
        while True:
            try:
                return self._run_nvrtc()
            except CompileError as error:
                failure = error
            self._prepare_retry(failure)

    def _may_crash(self, expressions: tuple[str, ...]) -> bool:
        """Return whether NVRTC may crash on name expressions. Return True at most once.

        The lines of `probe.instantiations` prevent the crash, but not in C++ before C++11 or after an unmatched
        bracket. If True, the caller compiles without name expressions first. That compile reports the errors in the
        source.
        """
        if self._is_checked or not probe.instantiations(expressions):
            return False
        self._is_checked = True
        is_old = any(re.fullmatch(_OLD_STANDARD, option) for option in self._source.options)
        return is_old or not self._source.reading.has_matching_brackets

    def _run_nvrtc(self) -> NvrtcResult:
        names = [name for kernel in self.expressions for name in (kernel, probe.probe_expression(kernel))]
        source = self._source.text + probe.instantiations(self.expressions)
        headers: list[tuple[str, str]] = []
        options = ["--minimal"] if self._is_minimal else []
        if self.expressions:
            name, text = probe.PROBE_HEADER
            options.append(f"--pre-include={name}")
            headers.append((name, text + (LAYOUT_DECLARATIONS if self.layouts.expressions else "")))
            names += self.layouts.expressions
        include_dirs = nvrtc_include_dirs(self._toolchain, self._source.include_dirs)
        with provide_headers(include_dirs, self._shadowed, self._source.text) as (own_headers, stand_in_dirs):
            job = self._job._replace(
                source=source,
                options=(*self._job.options, *(f"-I{path}" for path in (*include_dirs, *stand_in_dirs)), *options),
                headers=(*headers, *self._job.headers, *own_headers),
                expressions=tuple(name for name in names if name not in self._rejected),
                declared=self.declarations,
            )
            return run_nvrtc(self._toolchain.nvrtc_path, job)

    def _prepare_retry(self, error: CompileError) -> None:
        """Add declarations for the next run, drop `--minimal`, or leave rejected name expressions out.

        If nothing of this can help, raise the error of the source, or an error about a kernel that a `Launch` names.
        """
        with suppress(CompileError):
            self._added += declarations_for(error, self.declarations)
            return
        rejected = probe.rejected_expressions(error.log) - self._rejected
        is_about_names = probe.is_only_name_errors(error.log)
        requested = {probe.kernel_expression(kernel): kernel for kernel in self._source.kernels}
        # A removed type may be the cause, in the source or in a `Launch`, as in `k<cudaExtent>`.
        if self._is_minimal and not (is_about_names and rejected.isdisjoint(requested)):
            self._is_minimal = False
            return
        if rejected and not is_about_names:
            self.run(())  # raises an error with only the messages about the source
        if not rejected or not is_about_names:
            raise error
        if kernel := next((requested[expression] for expression in requested if expression in rejected), None):
            raise no_such_kernel(kernel, self._source.reading.candidates, error) from error
        self._rejected |= rejected
        self.expressions = tuple(expression for expression in self.expressions if expression not in self._rejected)

    def symbols(self, result: NvrtcResult) -> dict[str, tuple[str, str]]:
        """Return a dictionary from the kernels' C++ expressions to (kernel's symbol, probe's symbol) pairs.

        The probe's symbol contains the kernel's type, or is "" if NVRTC rejected the probe.
        """
        if name := next((kernel for kernel in self.expressions if kernel not in result.lowered), None):
            raise SignatureError(
                f"kernel {name!r} cannot be compiled, because NVRTC or the source has another function of this "
                f"name. Give the kernel another name, or name the types of its parameters, Launch({f'{name}(…)'!r})."
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
