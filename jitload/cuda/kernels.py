"""Device source and an architecture in, a typed `Cubin` out: the runs of NVRTC, and what each is for.

One run is the rule: it compiles the source, instantiates what the launches name, and reads each candidate's type. A
second one follows where a candidate was no kernel after all, where a macro made an `extern "C"` kernel that the text
does not show, or where the text was written for nvcc and relies on names that its headers bring.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jitload.cpptext.declarations import find_candidates
from jitload.cpptext.includes import read_headers
from jitload.cuda import probe
from jitload.cuda.headers import headers_in_memory
from jitload.cuda.nvrtc import NvrtcJob, NvrtcResult, declarations_for, device_options, log_warnings, run_nvrtc
from jitload.elf.cubin import read_image
from jitload.errors import CompileError, LaunchSpecError, SignatureError, nearest_name
from jitload.model import Candidate, CompiledSource, Cubin, Image
from jitload.request.instrumentation import NO_INSTRUMENTATION, Instrumentation
from jitload.signature.demangle import demangle_variables
from jitload.signature.kernels import find_expressions_to_probe, read_kernels
from jitload.toolchain.cuda import CudaToolchain, nvrtc_include_dirs

_AS_TEXT = re.compile(r"(?:--pre-include=|-include=)(.*)|(?:-D|--define-macro=)(\w+)=(.*)", re.DOTALL)
# What --minimal leaves out, by the names it has: textures and surfaces, the types and macros of the runtime and the
# driver, and launches; and headers, which may need them (CUB does). Where a macro is asked for by #ifdef, or the source
# has such a name for something of its own, nothing else would tell.
_LEFT_OUT = re.compile(
    r"#\s*include|\binclude=|minimal|MINIMAL|cuda[A-Z]|CUDART|<<<|_H__|libraryProp"
    r"|\b(?:CU[a-z]|CU_|CUDA_|tex|surf|MAJOR_VERSION|MINOR_VERSION|PATCH_LEVEL)"
)
_OLD_STANDARD = re.compile(r"--?std=(?:c|gnu)\+\+(?:98|03)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSource:
    """Device code to compile.

    Attributes:
        name: The module's name.
        pieces: Label and text of each piece; messages name the label.
        options: The user's NVRTC options, include directories not among them.
        include_dirs: The user's include directories.
        kernels: The kernels named by launches, as a user writes them: `scale<float>`, `scale(float*, int)`.
        signatures: Hand-written signatures by kernel, as in `kernels`, or by exported name.
        cpu_flags: The options for the host's compiler, where the code runs on the CPU.
        instrumentation: How it is instrumented there.
    """

    name: str
    pieces: tuple[tuple[str, str], ...]
    options: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    kernels: tuple[str, ...] = ()
    signatures: tuple[tuple[str, str], ...] = ()
    cpu_flags: tuple[str, ...] = ()
    instrumentation: Instrumentation = NO_INSTRUMENTATION

    @property
    def texts(self) -> tuple[str, ...]:
        """What decides which headers are read: the pieces, and the options as the lines they stand for."""
        given = (_AS_TEXT.match(option) for option in self.options)
        lines = (f'#include "{o[1]}"' if o[1] else f"#define {o[2]} {o[3]}" for o in given if o)
        return (*(text for _, text in self.pieces), *lines)

    @property
    def signatures_by_expression(self) -> tuple[tuple[str, str], ...]:
        """The signatures by the expressions of the kernels that launches name, or by exported name."""
        return tuple(
            (probe.kernel_expression(kernel) if kernel in self.kernels else kernel, signature)
            for kernel, signature in self.signatures
        )

    @property
    def is_minimal(self) -> bool:
        """Whether it needs nothing that NVRTC can leave out, by its looks; that is a sixth of a small kernel's time."""
        return not any(map(_LEFT_OUT.search, (*(text for _, text in self.pieces), *self.options)))

    @property
    def text(self) -> str:
        """The one text that NVRTC gets."""
        return join_pieces(self.pieces)


def join_pieces(pieces: Iterable[tuple[str, str]]) -> str:
    """Return the pieces of a source as one text, in which each counts its own lines under its label."""
    return "".join(f'#line 1 "{quoted_label(label)}"\n{text}\n' for label, text in pieces)


def quoted_label(label: str) -> str:
    """Return a label as it stands between the quotes of a `#line`; one that is read from files is printable."""
    return re.sub(r'(["\\])', r"\\\1", label)


def compile_kernels(source: DeviceSource, arch: str, toolchain: CudaToolchain) -> CompiledSource:
    """Compile device code for one architecture and read its kernels' types.

    Raises:
        CompileError: NVRTC refused the source.
        LaunchSpecError: NVRTC refused a kernel that a launch names.
        SignatureError: A kernel's types and its parameter sizes disagree.
        ToolchainError: NVRTC does not know the architecture.
    """
    candidates = find_candidates([text for _, text in source.pieces])
    rounds = _Rounds(source, candidates, arch, toolchain)
    result, image = rounds.settle(_first_expressions(source, candidates))
    if missing := find_expressions_to_probe(image, rounds.lowered(result)):
        result, image = rounds.settle((*rounds.kernels, *missing))
    lowered = rounds.lowered(result)
    named = {kernel: probe.kernel_expression(kernel) for kernel in source.kernels}
    try:
        kernels = read_kernels(image, lowered, candidates, source.signatures_by_expression)
    except SignatureError as error:
        raise _with_standard(error, source.options) from error
    log_warnings(result.log, nvrtc_include_dirs(toolchain))
    variables = demangle_variables(image.variables)
    cubin = Cubin(data=result.cubin, arch=arch, log=result.log, kernels=kernels, variables=variables)
    symbols = {kernel: lowered[expression][0] for kernel, expression in named.items()}
    headers = read_headers((*source.texts, *rounds.declared), source.include_dirs, nvrtc_include_dirs(toolchain))
    return CompiledSource(cubin=cubin, symbols=symbols, candidates=candidates, headers=headers)


def _with_standard(error: SignatureError, options: Sequence[str]) -> SignatureError:
    """Add to the error why the compiler could not be asked, where the source's standard is older than the question."""
    old = next((option for option in options if _OLD_STANDARD.fullmatch(option)), None)
    if old is None:
        return error
    return SignatureError(
        f"{error}\n    With {old} the compiler cannot be asked for them, which takes C++11: leave that option out, or "
        "name a newer standard."
    )


def _first_expressions(source: DeviceSource, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the kernel expressions for the first run: what launches name, and candidates that are no templates.

    A name with several candidates, or with a template beside it, is no expression by itself; its symbols carry the
    types.
    """
    names = [candidate.name for candidate in candidates]
    plain = [c.name for c in candidates if not c.is_template and names.count(c.name) == 1]
    return tuple(dict.fromkeys((*map(probe.kernel_expression, source.kernels), *plain)))


class _Rounds:
    """The runs of NVRTC for one source and architecture."""

    def __init__(
        self, source: DeviceSource, candidates: Sequence[Candidate], arch: str, toolchain: CudaToolchain
    ) -> None:
        self.source = source
        self.candidates = candidates
        self.toolchain = toolchain
        self.kernels: tuple[str, ...] = ()
        self.refused: frozenset[str] = frozenset()
        self.declared: tuple[str, ...] = ()
        self.extra = ("--minimal",) if source.is_minimal and toolchain.version >= (12, 4) else ()
        include_dirs = nvrtc_include_dirs(toolchain, source.include_dirs)
        self.headers = headers_in_memory(include_dirs)
        self.options = (
            *device_options(toolchain.version, arch),
            *(f"-I{path}" for path in include_dirs),
            *source.options,
        )

    def settle(self, kernels: tuple[str, ...]) -> tuple[NvrtcResult, Image]:
        """Compile, and compile again without the name expressions that alone were refused, until none is.

        NVRTC lists all that it refuses at once, up to a hundred messages.
        """
        while True:
            try:
                result = self.run(kernels)
                return result, read_image(result.cubin, name=self.source.name)
            except CompileError as error:
                failure = error
            refused = probe.rejected_expressions(failure.log) - self.refused
            if refused and not probe.is_only_name_errors(failure.log):
                self.run(())  # for the log of the user's own errors alone
            if not refused or not probe.is_only_name_errors(failure.log):
                raise failure
            if self.extra and not refused.isdisjoint(map(probe.kernel_expression, self.source.kernels)):
                self.extra = ()  # `k<cudaExtent>`: a launch may name what the source does not
                continue
            self._refuse_named(failure, refused)
            self.refused |= refused
            kernels = tuple(kernel for kernel in kernels if kernel not in self.refused)

    def run(self, kernels: tuple[str, ...]) -> NvrtcResult:
        """Compile once, with two expressions for each kernel: itself, and the probe of its type."""
        self.kernels = kernels
        wanted = (text for kernel in kernels for text in (kernel, probe.probe_expression(kernel)))
        expressions = tuple(text for text in wanted if text not in self.refused)
        name = self.source.pieces[0][0] if len(self.source.pieces) == 1 else f"{self.source.name}.cu"
        options = (*self.options, *self.extra)
        headers = self.headers
        if kernels:
            options = (*options, f"--pre-include={probe.PROBE_HEADER[0]}")
            headers = (probe.PROBE_HEADER, *headers)
        job = NvrtcJob(
            name=name,
            directory="/jitload",
            source=self.source.text,
            options=options,
            headers=headers,
            expressions=expressions,
            declared=self.declared,
        )
        try:
            return run_nvrtc(self.toolchain.nvrtc_path, job)
        except CompileError as error:
            self._mend(error)
        return self.run(kernels)

    def _mend(self, error: CompileError) -> None:
        """Change what the next run of NVRTC gets so that it may go better; raise the error where nothing can."""
        try:
            self.declared = declarations_for(error, self.declared)
        except CompileError:
            if not self.extra or probe.is_only_name_errors(error.log):
                raise
            self.extra = ()

    def lowered(self, result: NvrtcResult) -> dict[str, tuple[str, str]]:
        """Return each kernel's symbol and its probe's, "" where the probe was refused."""
        return {
            kernel: (result.lowered[kernel], result.lowered.get(probe.probe_expression(kernel), ""))
            for kernel in self.kernels
        }

    def _refuse_named(self, error: CompileError, refused: frozenset[str]) -> None:
        """Raise LaunchSpecError where what NVRTC refused is a kernel that a launch names."""
        for kernel in self.source.kernels:
            expression = probe.kernel_expression(kernel)
            if expression in refused:
                raise no_such_kernel(kernel, self.candidates, error) from error


def no_such_kernel(kernel: str, candidates: Sequence[Candidate], error: CompileError) -> LaunchSpecError:
    """Return the error for a `Launch.kernel` that NVRTC refused, with the kernels that the source shows."""
    name = re.split("[<(]", kernel)[0].strip()
    same = [c for c in candidates if c.name == name]
    shown = ", ".join(_declaration(c) for c in same or candidates) or "none"
    names = [c.name for c in candidates]
    close = nearest_name(name, names) or next((n for n in names if n.rpartition("::")[2] == name), "")
    guess = f"Did you mean {close!r}? " if close and not same else ""
    first = next((d.message for d in error.diagnostics if "__jitload_" not in d.message), "")
    problem = f"no kernel {kernel!r}" if not same else f"{kernel!r} fits none of the kernels of that name"
    hint = f"{guess}The source declares: {shown}"
    return LaunchSpecError(
        problem, field="Launch.kernel", expression=kernel, hint=f"{hint}\n    NVRTC says: {first}" if first else hint
    )


def _declaration(candidate: Candidate) -> str:
    template = "template " if candidate.is_template else ""
    return f"{template}{candidate.name}({', '.join(candidate.types)})"


def layout_difference(first: Cubin, other: Cubin) -> str:
    """Return how two architectures' kernels differ; nothing where one wrapper serves both."""
    for here, there in ((first, other), (other, first)):
        names = {kernel.name for kernel in there.kernels}
        if absent := next((kernel.name for kernel in here.kernels if kernel.name not in names), None):
            return f"kernel {absent!r} is in the code for {here.arch}, but not in that for {there.arch}"
    plain = [[replace(p, name="") for p in kernel.parameters] for kernel in first.kernels]
    if plain != [[replace(p, name="") for p in kernel.parameters] for kernel in other.kernels]:
        return f"the kernels of {first.arch} and {other.arch} take different parameters"
    return ""
