"""A user's device text in, the same lines out with an error of ours where only a GPU can go on.

The host's compiler would take some of CUDA for something else: inline PTX reaches its assembler, a branch for
`__CUDA_ARCH__` is gone without a word, cub's headers are compiled for a host. Marks in the text speak only where the
compiler really comes by, so that what stands in another branch does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from pathlib import Path

from jitload.cpptext.lexer import Token, code_tokens, tokenize
from jitload.cpptext.preprocessor import HEADER_NAME, Conditional, read_conditionals, split_directives
from jitload.errors import CompileError, Diagnostic

_PORTABLE = "#if defined(__CUDA_ARCH__) || defined(JITLOAD_CPU)"
_HEADERS = {
    "mma.h": "tensor cores (wmma)",
    "cub/": "cub",
    "thrust/": "thrust",
    "cute/": "cute",
    "cutlass/": "cutlass",
    "cuda/ptx": "PTX (cuda::ptx)",
    "cuda/barrier": "cuda::barrier",
    "cuda/std/barrier": "cuda::barrier",
    "cuda/pipeline": "cuda::pipeline",
    "cuda/latch": "cuda::latch",
    "cuda/std/latch": "cuda::latch",
    "cuda/semaphore": "cuda::semaphore",
    "cuda/std/semaphore": "cuda::semaphore",
    "cuda_pipeline": "asynchronous copies",
    "cuda_awbarrier": "asynchronous barriers",
    "cuda_device_runtime_api.h": "dynamic parallelism",
    "cooperative_groups/memcpy_async.h": "asynchronous copies",
    "cooperative_groups/details/": "the inside of cooperative groups",
}
_NAMES = {
    r"grid_group::sync": "a barrier of the whole grid",
    r"this_cluster|cluster_group|cluster_(?:arrive|wait|sync|dim)\w*|map_shared_rank|__cluster\w+": (
        "thread block clusters"
    ),
    r"wmma|nvcuda|__mma_\w+|__wgmma\w*": "tensor cores",
    r"tex(?:1D|2D|3D|Cubemap)\w*|surf(?:1D|2D|3D|Cubemap)\w*|cuda(?:Texture|Surface)\w*|texture|surface": (
        "textures and surfaces"
    ),
    r"cuda[A-Z]\w*": "CUDA's runtime within a kernel",
    r"memcpy_async|__pipeline_\w+|cuda::pipeline\w*": "asynchronous copies",
    r"cuda::(?:barrier|latch|\w+_semaphore|ptx)\w*|barrier_(?:arrive|wait)": "barriers that are objects",
    r"__nv\w+|__cvta_\w+|__is(?:Shared|Global|Local|Constant|GridConstant)|__grid_\w+": "instructions of the device",
    r"this_multi_grid|multi_grid_group": "several GPUs",
    r"setmaxnreg|griddepcontrol|cudaGridDependencySynchronize": "instructions of the device",
}
_ASM = ("asm", "__asm__", "__asm")
_ASM_QUALIFIERS = ("volatile", "__volatile__", "goto", "inline")


def mark_gpu_only(text: str) -> str:
    """Return the text with errors before inline PTX and instead of headers for the GPU, on the same lines."""
    if not re.search(r"asm|include", text):
        return text
    marks: list[tuple[int, str]] = []
    tokens = code_tokens(text)
    for directive, run in split_directives(tokens):
        name = HEADER_NAME.match(directive.text) if directive and directive.name == "include" else None
        if name and (feature := _header(name[1] or name[2])):
            marks.append((run[0].start, f"#error GPU only: {feature}, which {name[1] or name[2]} declares //"))
    marks += [(token.start, '_Pragma("GCC error \\"GPU only: inline PTX\\"") ') for token in _inline_ptx(tokens)]
    pieces, end = [], 0
    text = text.replace("\r\n", "\n")  # as the tokens count
    for start, mark in sorted(marks):
        pieces += [text[end:start], mark]
        end = start
    return "".join([*pieces, text[end:]])


def _inline_ptx(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the first token of each `asm` statement that is not empty."""
    for index, token in enumerate(tokens):
        if token.text not in _ASM or (index and tokens[index - 1].text == "."):
            continue
        following = [other.text for other in tokens[index + 1 : index + 12]]
        statement = list(dropwhile(_ASM_QUALIFIERS.__contains__, following))
        operands = list(dropwhile('""'.__eq__, statement[1:]))
        is_empty = len(operands) + 1 < len(statement) and operands[:1] != [] and operands[0][0] in ":)"
        if statement[:1] == ["("] and not is_empty:
            yield token


def find_vanishing(label: str, text: str) -> Diagnostic | None:
    """Return the first condition by which code for the device would be gone without a word.

    An `#if` over `__CUDA_ARCH__` with an `#else` that holds something takes that: it is the branch for the oldest GPU.
    """
    if not re.search(r"__CUDA_?ARCH\w*|__CUDACC\w*|__NVCC__", text):
        return None
    for conditional in read_conditionals(code_tokens(text)):
        if problem := _problem(conditional):
            return Diagnostic(file=label, line=conditional.line, severity="error", message=f"GPU only: {problem}")
    return None


def used_gpu_only(read: Iterable[Path]) -> str:
    """Return what a compile read that is for devices alone."""
    for path in map(str, read):
        for folder in ("include/", "cccl/"):
            name = path.rpartition(folder)[2]
            if (what := _header(name)) and not name.startswith("cuda_"):  # those are read by NVIDIA's own headers, too
                return f"{what}, which {path} declares"
    return ""


def has_asm(text: str) -> bool:
    """Tell whether a header has inline PTX; it may stand in a branch that is never compiled."""
    return "asm" in text and any(True for _ in _inline_ptx(code_tokens(text)))


def compiled_asm(preprocessed: str, files: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yield file and line of inline PTX in some of the files, given the preprocessor's output."""
    for part in re.split(r"^# (?=\d+ \")", preprocessed, flags=re.MULTILINE)[1:]:
        head, _, code = part.partition("\n")
        position = re.match(r'(\d+) "([^"]*)"', head)
        if position and position[2] in files and "asm" in code:
            yield from ((position[2], int(position[1]) + token.line - 1) for token in _inline_ptx(code_tokens(code)))


def explain(error: CompileError) -> CompileError:
    """Return the error, with words of ours first where the compiler missed something that only a GPU has."""
    for found in error.diagnostics:
        if "error" not in found.severity:
            continue
        if "GPU only: " in found.message:
            what = found.message.partition("GPU only: ")[2]
            return gpu_only_error(error.name, *_place(found, error.log), what, error)
        message = re.sub(r"(\S)(\w+)(\S) is not a member of (\S)(\w+)(\S)", r"\1\5::\2\3", found.message)
        quoted = re.findall(r"[\u2018'`]([^\u2019']*)[\u2019']", message)
        for pattern, what in _NAMES.items():
            if any(re.search(rf"(?<!\w)(?:{pattern})(?!\w)", words) for words in quoted):
                return gpu_only_error(error.name, found.file, found.line, f"{what}: {found.message}", error)
    return error


def launches_error(pieces: Sequence[tuple[str, str]]) -> CompileError:
    """Return the error for `<<<…>>>`, from a host or from a kernel."""
    for label, text in pieces:
        if line := next((token.line for token in tokenize(text) if token.text == "<<<"), 0):
            return gpu_only_error(label, label, line, "launches with <<<…>>>; on the CPU a Launch says grid and block")
    return gpu_only_error(pieces[0][0], pieces[0][0], 1, "launches with <<<…>>>")


def _place(found: Diagnostic, log: str) -> tuple[str, int]:
    """Return the user's line behind a message that may stand in a header of ours."""
    asked = re.search(r"^([^\s:]+):(\d+):(?:\d+:)?   required from here$", log, re.MULTILINE)
    return (asked[1], int(asked[2])) if asked else (found.file, found.line)


def gpu_only_error(name: str, file: str, line: int, what: str, cause: CompileError | None = None) -> CompileError:
    """Return the error for a construct that the CPU does not have."""
    first = Diagnostic(file=file, line=line, severity="error", message=f"GPU only: {what}")
    return CompileError(
        stage="host",
        name=name,
        log=f"{file}:{line}: error: {first.message}\n" + (cause.log if cause else ""),
        diagnostics=(first, *(cause.diagnostics if cause else ())),
        command=cause.command if cause else (),
        work_dir=cause.work_dir if cause else None,
        hint='This runs on a GPU alone: leave "cpu" out of arch, or write another way for it under #ifdef JITLOAD_CPU.',
    )


def _header(name: str) -> str:
    for start, what in _HEADERS.items():
        if name == start or ((start.endswith("/") or "." not in start) and name.startswith(start)):
            return what
    return ""


def _problem(conditional: Conditional) -> str:
    text = " ".join(f"{directive.name} {directive.text}" for directive in conditional.conditions)
    if "JITLOAD_CPU" in text:
        return ""
    has_else = conditional.conditions[-1].name == "else" and conditional.sizes[-1] > 0
    if re.search(r"(?:ifdef|ifndef|defined[ (]*) *__CUDA_ARCH\w*", text):
        return f"the CPU has no __CUDA_ARCH__, and this branch would be gone without a word; write {_PORTABLE}"
    if "__CUDA_ARCH" in text and not has_else:
        return f"a branch for some values of __CUDA_ARCH__, and no #else for the CPU; write {_PORTABLE}"
    macro = re.match(r"(?:ifdef|if defined[ (]*) *(__CUDACC\w*|__NVCC__)", text)
    if macro and len(conditional.conditions) == 1 and conditional.sizes[0] > 0:
        return f"{macro[1]} is not defined on the CPU, and this branch has no #else; write || defined(JITLOAD_CPU)"
    return ""
