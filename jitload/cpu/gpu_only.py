"""A user's device text in, the same lines out with an error of ours where only a GPU can go on.

The host's compiler would take some of CUDA for something else: inline PTX reaches its assembler, a branch for
`__CUDA_ARCH__` is gone without a word, cub's headers are compiled for a host. Marks in the text speak only where the
compiler really comes by, so that what stands in another branch does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jitload.device.lexer import Token, tokenize
from jitload.errors import CompileError, Diagnostic

_DIRECTIVES = frozenset(
    """
    if ifdef ifndef elif elifdef elifndef else endif define undef include error warning pragma line
    """.split()  # noqa: SIM905  as a list it would take the whole page
)
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
_TEXT = r"""R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
_ASM = r"(?<![\w.])(?P<asm>asm|__asm__|__asm)\b(?=(?:\s|\\\n|volatile|__volatile__|goto|inline)*\()"
_EMPTY_ASM = re.compile(r"""(?:\s|\\\n|volatile|__volatile__|goto|inline)*\(\s*(?:""\s*)+[:)]""")
_INCLUDE = r"""(?P<include>^[ \t]*\#[ \t]*include[ \t]*["<](?P<name>[^">\n]+)[">])"""
_MARKED = re.compile(
    rf"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)|{_INCLUDE}|(?<![\w]){_TEXT}|(?<!\w)\d(?:'?[\w.])*|{_ASM}",
    re.DOTALL | re.MULTILINE,
)


def mark_gpu_only(text: str) -> str:
    """Return the text with marks on inline PTX and on headers that are for devices alone, on their own lines."""

    def replace(match: re.Match[str]) -> str:
        if match["asm"] and not _EMPTY_ASM.match(text, match.end()):
            return f'_Pragma("GCC error \\"GPU only: inline PTX\\"") {match["asm"]}'
        what = _header(match["name"]) if match["include"] else ""
        return f"#error GPU only: {what}, which {match['name']} declares //" if what else match[0]

    return _MARKED.sub(replace, text) if re.search(r"asm|include", text) else text


def find_vanishing(label: str, text: str) -> Diagnostic | None:
    """Return the first condition by which code for the device would be gone without a word.

    An `#if` over `__CUDA_ARCH__` with an `#else` that holds something takes that: it is the branch for the oldest GPU.
    """
    if not re.search(r"__CUDA_?ARCH\w*|__CUDACC\w*|__NVCC__", text):
        return None
    for chain in _chains([token for token in tokenize(text) if token.kind != "comment"]):
        if problem := _problem(chain):
            return Diagnostic(file=label, line=chain.lines[0], severity="error", message=f"GPU only: {problem}")
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
    return any(match["asm"] and not _EMPTY_ASM.match(text, match.end()) for match in _MARKED.finditer(text))


def compiled_asm(preprocessed: str, files: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yield file and line of inline PTX in some of the files, from the text after the preprocessor."""
    for part in re.split(r"^# (?=\d+ \")", preprocessed, flags=re.MULTILINE)[1:]:
        head, _, code = part.partition("\n")
        place = re.match(r'(\d+) "([^"]*)"', head)
        if not place or place[2] not in files:
            continue
        for match in _MARKED.finditer(code):
            if match["asm"] and not _EMPTY_ASM.match(code, match.end()):
                yield place[2], int(place[1]) + code.count("\n", 0, match.start())


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


@dataclass(slots=True)
class _Chain:
    """An `#if` up to its `#endif`: the conditions, and how many tokens of code each branch holds."""

    conditions: list[str]
    lines: list[int]
    sizes: list[int] = field(default_factory=lambda: [0])
    is_dead: bool = False


def _chains(tokens: Sequence[Token]) -> Iterator[_Chain]:
    """Yield each chain of conditions, in the order of their ends; none within `#if 0`."""
    waiting: list[_Chain] = []
    words: list[str] = []  # of the directive in hand
    line = 0
    for token, following in zip(tokens, (*tokens[1:], None), strict=True):
        if token.in_directive and token.text == "#" and following and following.text in _DIRECTIVES:
            yield from _follow(waiting, words, line)
            words, line = [], token.line
        elif token.in_directive:
            words.append(token.text)
        else:
            yield from _follow(waiting, words, line)
            words = []
            for chain in waiting:
                chain.sizes[-1] += 1
    yield from _follow(waiting, words, line)


def _follow(waiting: list[_Chain], words: Sequence[str], line: int) -> Iterator[_Chain]:
    condition = " ".join(words)
    if not words:
        return
    if words[0].startswith("if"):
        is_dead = any(chain.is_dead for chain in waiting) or condition in ("if 0", "if false")
        waiting.append(_Chain([condition], [line], is_dead=is_dead))
    elif words[0].startswith("el") and waiting:
        waiting[-1].conditions.append(condition)
        waiting[-1].lines.append(line)
        waiting[-1].sizes.append(0)
    elif words[0] == "endif" and waiting:
        chain = waiting.pop()
        if not chain.is_dead:
            yield chain
    else:
        for chain in waiting:
            chain.sizes[-1] += words[0] in ("error", "include", "define")


def _problem(chain: _Chain) -> str:
    text = " ".join(chain.conditions)
    if "JITLOAD_CPU" in text:
        return ""
    has_else = chain.conditions[-1] == "else" and chain.sizes[-1] > 0
    if re.search(r"(?:ifdef|ifndef|defined \(?) ?__CUDA_ARCH\w*", text):
        return f"the CPU has no __CUDA_ARCH__, and this branch would be gone without a word; write {_PORTABLE}"
    if "__CUDA_ARCH" in text and not has_else:
        return f"a branch for some values of __CUDA_ARCH__, and no #else for the CPU; write {_PORTABLE}"
    asks = re.match(r"(?:ifdef|if defined \(?) ?(__CUDACC\w*|__NVCC__)", chain.conditions[0])
    if asks and len(chain.conditions) == 1 and chain.sizes[0] > 0:
        return f"{asks[1]} is not defined on the CPU, and this branch has no #else; write || defined(JITLOAD_CPU)"
    return ""
