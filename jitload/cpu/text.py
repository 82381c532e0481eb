"""Makes the C++ text that g++ compiles for the CPU, and finds the CUDA features that only a GPU has.

g++ would misinterpret parts of CUDA: it silently drops a branch for `__CUDA_ARCH__`, and compiles cub's headers as host
code. jitload raises an error for a branch that would be lost. It puts an `#error` in place of such a header, and a
similar pragma before a launch. Both have an effect only in code that is compiled. Inline PTX that is compiled is
refused by g++ or its assembler, except for `ret`, which is an instruction of CPUs, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from jitload.cpptext.lexer import Token, tokenize
from jitload.cpptext.preprocessor import HEADER_NAME, Conditional, Macros, read_conditionals, split_directives
from jitload.cpu.object_file import TABLE
from jitload.cuda.messages import missing_header_hint, type_hint
from jitload.errors import CompileError, Diagnostic
from jitload.kernels.source import DeviceSource, join_pieces
from jitload.signature import probe
from jitload.signature.layouts import LAYOUT_DECLARATIONS

# File names in g++'s messages about generated text: the rows of the kernel table (the line is the row's number), the
# lines around these rows, and the template instances whose symbols contain the members of structures.
ROW_FILE = "<kernels>"
TABLE_FILE = "<kernel table>"
LAYOUT_FILE = "<layouts>"
# For a kernel that C++ cannot name, this prefix, the symbol and the parameters take the place of an expression.
BY_SYMBOL = "symbol "
# Probes are functions whose symbols contain the types of kernels. Probes are defined rather than only declared, because
# their template arguments may be types that are local to the source.
_PROBES = re.sub(
    r"__global__ void (__jitload_\w+)\(\);",
    r"void \1() {}",
    re.sub(r"#pragma.*\n", "", probe.PROBE_HEADER[1] + LAYOUT_DECLARATIONS),
)
_MACRO_OPTION = re.compile(r"-([DU])\s*(\w+)((?:\([^)]*\))?)(?:=(.*))?", re.DOTALL)
# Functions that C's headers declare, without those for arithmetic. A kernel may have one of these names, as with NVRTC.
_C_NAMES = frozenset(
    """
    abort access atexit atof atoi atol basename bcmp bcopy bzero calloc clearenv ctime daylight difftime div
    dprintf drem exit fclose fcvt feof ferror fflush ffs fgetc fgetpos fgets fileno flockfile fmemopen fopen
    fputc fputs fread freopen fscanf fseek ftell fwrite gamma gammaf gcvt getc getchar getdate getdelim getenv
    getline gets getsubopt getw gmtime index initstate ldiv link lldiv localtime mblen mktemp
    mktime perror popen pow10 putc putchar putenv puts putw qsort raise rand random realpath remove rename
    rewind rindex scale scanf secure_getenv seed select setbuf setenv setstate signal significand srand
    srandom step stime strdup strfry strsep strsignal system tempnam time timegm timezone tmpfile tmpnam
    tzname tzset ungetc unsetenv wait
    """.split()  # noqa: SIM905  as a list it would take a whole page
)
# Matches the inclusion of a C++ header. Such headers refer to C's functions, which then must keep their names.
_CXX_HEADER = re.compile(r"#[ \t]*include[ \t]*<(?!cuda|cooperative)")
# Matches a source's own declaration of a type that C's headers declare, too.
_OWN_C_TYPE = re.compile(
    r"\b(?:typedef\b[^;{}]*?|using\s+)\b"
    r"(u?int(?:8|16|32|64|max|ptr)_t|u(?:int|short|long)|u_(?:char|short|int|long)|(?:ssize|l?off|time|l?div)_t)\s*[;=]"
)
# NVIDIA's header for cooperative groups includes its header for atomics. jitload's header for cooperative groups
# does so only if the source uses atomics.
_ATOMICS = re.compile(r"\bcuda::(?:atomic|thread_scope|memory_order)")
_BOUNDS_BEFORE_GLOBAL = re.compile(
    r"(__launch_bounds__\s*\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))[\w\s\"]*?\b__global__\b"
)
_INSTANTIATION = re.compile(r"(\btemplate\s+)__global__\b")


def cpu_text(source: DeviceSource, expressions: Sequence[str], layouts: Sequence[str] = ()) -> str:
    """Return the C++ code for g++: the texts of the source with their own line numbers, then the kernel table.

    Args:
        source: The device code.
        expressions: The C++ expressions of the kernels. Each becomes a row of the kernel table, an array.
        layouts: Template instances to add. Their symbols encode members of structures and types of variables.
    """
    texts = [text for _, text in source.pieces]
    c_names = _C_NAMES & set(re.findall(r"\w+", " ".join(texts)))
    if c_names and any(_CXX_HEADER.search(text) for text in (*texts, *source.reading.header_texts)):
        c_names = frozenset()
    renamed = sorted(c_names | {name for text in texts for name in _OWN_C_TYPE.findall(text)})
    head = [
        *(f"#define {name} __jitload_c_{name}" for name in renamed),
        '#include "jitload_cpu.h"',
        *(f"#undef {name}" for name in renamed),
        *(("#define __JITLOAD_USES_ATOMICS",) if any(map(_ATOMICS.search, texts)) else ()),
        *_macro_lines(source.cpu_flags),
        "#include <assert.h>",  # after the macros, because it depends on NDEBUG
    ]
    pieces = join_pieces((label, mark_gpu_only(put_launch_bounds_last(text))) for label, text in source.pieces)
    instantiations = [
        f'#line {line} "{LAYOUT_FILE}"\ntemplate void {layout}();\n' for line, layout in enumerate(layouts, 1)
    ]
    table = _table(expressions) if expressions else ""
    return "\n".join([*head, f"{_PROBES}{pieces}{table}{''.join(instantiations)}"])


def put_launch_bounds_last(text: str) -> str:
    """Return the text with a copy of the launch bounds after each `__global__` that they precede.

    `__launch_bounds__` and `__global__` are macros for the same attribute, and g++ keeps only the last one. Explicit
    instantiations have the attributes of their templates, so they lose their `__global__`.
    """
    if "__launch_bounds__" not in text:
        return text
    text = _INSTANTIATION.sub(lambda match: match[1] + " " * len("__global__"), text)
    return _BOUNDS_BEFORE_GLOBAL.sub(r"\g<0> \1", text)


def _table(expressions: Sequence[str]) -> str:
    rows = []
    declarations = []
    for number, expression in enumerate(expressions, 1):
        name = expression
        if expression.startswith(BY_SYMBOL):
            name = f"__jitload_kernel_{number}"
            symbol, _, parameters = expression.removeprefix(BY_SYMBOL).partition("(")
            declarations.append(f'#line {number} "{ROW_FILE}"\nvoid {name}({parameters} __asm__("{symbol}");\n')
        rows.append(f'#line {number} "{ROW_FILE}"\nJITLOAD_CPU_KERNEL({name}),\n')
    begin = f'#line 1 "{TABLE_FILE}"\nextern "C" const jitload_cpu_kernel {TABLE}[] = {{\n'
    return "".join([*declarations, begin, *rows, f'#line 2 "{TABLE_FILE}"\n}};\n'])


def without_table_errors(log: str) -> str:
    """Return a compiler's log without the errors in the kernel table, which follow from errors in the user's text.

    For example, a kernel with a misspelt parameter type is not declared. The table then cannot name the kernel either.
    """
    kept: list[str] = []
    heading: list[str] = []  # lines such as "In function …", which belong to the next message
    is_dropped = False
    for line in log.splitlines(keepends=True):
        message = re.match(r"([^\s:][^\n:]*):\d+:(?:\d+:)? (fatal error|error|warning|note): ", line)
        if message:
            if message[2] != "note":
                is_dropped = message[1] in (ROW_FILE, TABLE_FILE) or message[1].endswith("jitload_cpu.h")
            kept += [] if is_dropped else [*heading, line]
            heading = []
        elif heading or not line.startswith(" "):
            heading.append(line)
        elif not is_dropped:
            kept.append(line)
    return "".join([*kept, *heading])


def compiler_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the options without `-D`, `-U` and `-include`.

    These options become lines of the text, after jitload's header, so that they do not affect the header.
    """
    return tuple(
        flag
        for previous, flag in pairwise(("", *flags))
        if "-include" not in (previous, flag) and not _MACRO_OPTION.fullmatch(flag)
    )


def _macro_lines(flags: Sequence[str]) -> Iterator[str]:
    """Yield the preprocessor lines for the options `-D`, `-U` and `-include`."""
    for flag in flags:
        if match := _MACRO_OPTION.fullmatch(flag):
            kind, name, parameters, value = match.groups()
            yield f"#undef {name}"
            if kind == "D":
                text = "1" if value is None else value.replace("\n", " ")
                yield f"#define {name}{parameters} {text}"
    yield from (f'#include "{path}"' for flag, path in pairwise(flags) if flag == "-include")


# ---- what only a GPU has -------------------------------------------------------------------------------------------

_MARK = "GPU only: "  # begins the message of an error about a feature that only a GPU has
_LAUNCHES = "launches with <<<…>>>; on the CPU, a Launch or mod.kernel[grid, block] launches a kernel"
_GPU_HEADERS = {
    "mma.h": "tensor cores (wmma)",
    "cub/": "cub",
    "thrust/": "thrust",
    "cute/": "cute",
    "cutlass/": "cutlass",
    "cuda/ptx": "PTX (cuda::ptx)",
    "cuda/std/barrier": "cuda::barrier",
    "cuda/latch": "cuda::latch",
    "cuda/std/latch": "cuda::latch",
    "cuda/semaphore": "cuda::semaphore",
    "cuda/std/semaphore": "cuda::semaphore",
    "cuda/warp": "shuffles of cuda::device",
    "cuda_awbarrier": "asynchronous barriers",
    "cuda_device_runtime_api.h": "dynamic parallelism",
    "cooperative_groups/details/": "internals of cooperative groups",
}
# Headers with only macros, which CuPy's complex.cuh includes.
_PORTABLE_HEADERS = ("thrust/version.h", "thrust/detail/config")
_GPU_NAMES = {
    r"grid_group::(?:sync|barrier_arrive|barrier_wait)": "a barrier of the whole grid",
    r"this_cluster|cluster_(?:group|arrive|wait|sync|dim)\w*|map_shared_rank|__cluster\w+": "thread block clusters",
    r"cluster_(?:index|rank)|(?:dim|num)_clusters": "thread block clusters",
    r"wmma|__mma_\w+|__wgmma\w*": "tensor cores",
    r"nvcuda": "tensor cores, and pipelines and barriers that are objects",
    r"tex(?:1D|2D|3D|Cubemap)\w*|surf(?:1D|2D|3D|Cubemap)\w*|cuda(?:Texture|Surface)\w*|texture|surface": (
        "textures and surfaces"
    ),
    r"cuda[A-Z]\w*": "CUDA's runtime within a kernel",
    r"memcpy_async|__pipeline_\w+|cuda::(?:make_)?pipeline\w*": "asynchronous copies",
    r"cuda::(?:device|barrier|latch|\w+_semaphore|ptx)\w*|barrier_(?:arrive|wait)": "barriers that are objects",
    r"__nv(?!_bfloat|_half|_fp\d)\w+|__cvta_\w+|__grid_\w+|__is(?:Shared|Global|Local|Constant|GridConstant)": (
        "instructions of the device"
    ),
    r"this_multi_grid|multi_grid_group": "several GPUs",
    r"__vib?(?:max|min|addmax|addmin)\w+": "instructions for dynamic programming (DPX)",
    r"__f(?:add|mul|fma)2_\w+": "pairs of floats in one register",
    r"\w+_scan_update|reduce_\w+_async|invoke_one\w*|block_tile_memory": "rare functions of cooperative groups",
    r"setmaxnreg|griddepcontrol|cudaGridDependencySynchronize": "instructions of the device",
}
# Match errors about inline PTX: of g++, and of the assembler, which names the file of an `asm` statement.
_ASM_ERROR = re.compile(r"\basm\b|(?:impossible|output|input|operand) constraint")
_ASSEMBLER_ERROR = re.compile(r"^(?!\{standard input\})(\S.*)(?<!\.s):(\d+): Error: ", re.MULTILINE)
_ASM = re.compile(r'\b(?:asm|__asm__|__asm)\b[^"();]*\(((?:\s*R?"(?:[^"\\]|\\.)*")+)')
_ESCAPE = re.compile(r"\\.")
_RETURN = re.compile(r"\bret\b")


def mark_gpu_only(text: str) -> str:
    """Return the text with an error in place of each `#include` of a GPU-only header, and before `<<<`.

    Line numbers do not change.
    """
    if not re.search(r"include|<<<", text):
        return text
    tokens = tokenize(text)
    marks = [(start, f"#error {_MARK}{what} //") for start, what in _gpu_includes(tokens)]
    launch_mark = f' _Pragma("GCC error \\"{_MARK}{_LAUNCHES}\\"") '
    marks += [(token.start, launch_mark) for token in tokens if token.text == "<<<"]
    pieces, end = [], 0
    text = text.replace("\r\n", "\n")  # the positions of tokens count any line break as one character
    for start, mark in sorted(marks):
        pieces += [text[end:start], mark]
        end = start
    return "".join([*pieces, text[end:]])


def without_gpu_headers(text: str) -> str:
    """Return the text without each `#include` of a GPU-only header. Line numbers do not change."""
    for start, _ in _gpu_includes(tokenize(text)):
        text = f"{text[:start]}//{text[start + 2 :]}"  # `#i` becomes the start of a comment
    return text


def _gpu_includes(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """Yield the start of each `#include` of a GPU-only header, and what the header declares."""
    for directive, run in split_directives(tokens):
        header = re.match(HEADER_NAME, directive.text) if directive and directive.name == "include" else None
        name = (header[1] or header[2]) if header else ""
        if feature := _header_feature(name):
            yield run[0].start, f"{feature}, which {name} declares"


def gpu_include_lines(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, int]]:
    """Yield the file and the line of each `#include` of a GPU-only header in the (file, text) pairs."""
    for file, text in texts:
        for start, _ in _gpu_includes(tokenize(text)):
            yield file, text.count("\n", 0, start) + 1


def may_return_in_ptx(texts: Iterable[str]) -> bool:
    """Return whether PTX in one of the texts may have the instruction `ret`, which ends a thread or a function."""
    whole = "".join(texts)
    return "asm" in whole and _RETURN.search(_ESCAPE.sub(" ", whole)) is not None


def ptx_return(preprocessed: str) -> tuple[str, int] | None:
    """Return the file and the line of the first `ret` in inline PTX in a preprocessor's output, or None."""
    for match in _ASM.finditer(preprocessed):
        if _RETURN.search(_ESCAPE.sub(" ", match[1])):
            *_, marker = re.finditer(r'^# (\d+) "([^"\n]*)".*\n', preprocessed[: match.start()], re.MULTILINE)
            return marker[2], int(marker[1]) + preprocessed.count("\n", marker.end(), match.start())
    return None


def gpu_header(files: Iterable[Path]) -> str:
    """Return a text about the first GPU-only header in `files`, with its feature and path, or "" if there is none."""
    for path in map(str, files):
        for folder in ("include/", "cccl/"):
            name = path.rpartition(folder)[2]
            feature = _header_feature(name)
            # Headers whose names begin with `cuda_` do not count: other headers of NVIDIA include them, too.
            if feature and not name.startswith("cuda_"):
                return f"{feature}, which {path} declares"
    return ""


def _header_feature(name: str) -> str:
    if name.startswith(_PORTABLE_HEADERS):
        return ""
    for prefix, feature in _GPU_HEADERS.items():
        if name == prefix or ((prefix.endswith("/") or "." not in prefix) and name.startswith(prefix)):
            return feature
    return ""


def explain(error: CompileError) -> CompileError:
    """Return an error about a GPU-only feature if such a feature caused `error`.

    Otherwise, return `error`, with a hint if its cause is known.
    """
    for diagnostic in error.diagnostics:
        if "error" not in diagnostic.severity:
            continue
        if _MARK in diagnostic.message:
            feature = diagnostic.message.partition(_MARK)[2]
            return gpu_only_error(error.name, *_user_line(diagnostic, error.log), feature, error)
        if _ASM_ERROR.search(diagnostic.message):
            return gpu_only_error(error.name, diagnostic.file, diagnostic.line, "inline PTX", error)
        not_declared = r"(\S)(\w+)(\S) (?:is not a member of|in namespace) (\S)(\w+)(\S)"
        message = re.sub(not_declared, r"\1\5::\2\3", diagnostic.message)
        message = message.partition("; did you mean")[0]
        quoted = re.findall(r"[\u2018'`]([^\u2019']*)[\u2019']", message)
        for pattern, feature in _GPU_NAMES.items():
            if any(re.search(rf"(?<!\w)(?:{pattern})(?!\w)", name) for name in quoted):
                said = f"{feature}: {diagnostic.message}"
                return gpu_only_error(error.name, diagnostic.file, diagnostic.line, said, error)
    if match := _ASSEMBLER_ERROR.search(error.log):
        return gpu_only_error(error.name, match[1], int(match[2]), "inline PTX", error)
    error.hint = error.hint or type_hint(error.log) or _hint(error.log)
    return error


def _hint(log: str) -> str:
    if missing := re.search(r"fatal error: (\S+): No such file or directory", log):
        return missing_header_hint(missing[1], "g++")
    if re.search(
        r"::main\W+ must return|cannot declare \W+::main|conflicting declaration (?:of C function|.* linkage)", log
    ):
        return "On the CPU, C++ has a function of this name: give the kernel another name."
    return ""


def _user_line(diagnostic: Diagnostic, log: str) -> tuple[str, int]:
    """Return the file and line in the user's code that caused a message. The message may be about jitload's header."""
    match = re.search(r"^([^\s:]+):(\d+):(?:\d+:)?   required from here$", log, re.MULTILINE)
    return (match[1], int(match[2])) if match else (diagnostic.file, diagnostic.line)


def gpu_only_error(name: str, file: str, line: int, feature: str, cause: CompileError | None = None) -> CompileError:
    """Return the error for a feature that only a GPU has. If there is an error of the compiler, `cause`, extend it."""
    error = cause or CompileError(stage="host", name=name, log="")
    first = Diagnostic(file=file, line=line, severity="error", message=f"{_MARK}{feature}")
    error.log = f"{file}:{line}: error: {first.message}\n{error.log}"
    error.diagnostics = (first, *error.diagnostics)
    error.hint = 'This needs a GPU: leave "cpu" out of arch, or write an alternative under #ifdef JITLOAD_CPU.'
    return error


# ---- conditions over __CUDA_ARCH__ -----------------------------------------------------------------------------------

_PORTABLE = "#if defined(__CUDA_ARCH__) || defined(JITLOAD_CPU)"
_OLDEST_GPU = 750  # the smallest __CUDA_ARCH__ in CUDA 13


def find_lost_branch(label: str, text: str) -> Diagnostic | None:
    """Return an error about the first conditional that would silently drop or add code on the CPU, or None.

    A conditional is fine if the CPU gets the same branch as all GPUs that CUDA 13 supports. A comparison of
    `__CUDA_ARCH__` is also fine if the CPU gets a branch with code: it is the branch for the oldest GPU.
    """
    if not re.search(r"__CUDA_?ARCH\w*|__CUDACC(?!_VER)\w*|__NVCC__", text):
        return None
    for conditional, outer in read_conditionals(tokenize(text)):
        on_gpus = _gpu_branches(conditional)
        on_cpu = conditional.branch(_arch_macros(None))
        if (on_gpus != {on_cpu} or on_cpu is None) and (problem := _lost_branch(conditional)):
            return Diagnostic(file=label, line=conditional.line, severity="error", message=f"{_MARK}{problem}")
        for size in (size for branch, size in enumerate(conditional.sizes) if not {branch, None} & on_gpus):
            for containing in outer:  # code that no GPU gets may be lost
                containing.sizes[-1] -= size
    return None


def _lost_branch(conditional: Conditional) -> str:
    """Return the problem that a conditional has on the CPU, or "" if it has none."""
    text = " ".join(f"{directive.name} {directive.text}" for directive in conditional.conditions)
    if "JITLOAD_CPU" in text or not any(conditional.sizes):  # the host code in a branch may have been left out
        return ""
    cpu_branch = conditional.branch(_arch_macros(None))
    if re.match(r"ifndef __CUDA_ARCH\w*|if ! *defined[ (]*__CUDA_ARCH\w*[ )]*(?:else ?)?$", text):
        return (
            "the CPU has no __CUDA_ARCH__, so this branch would be compiled, unlike on a GPU; "
            "write #if !defined(__CUDA_ARCH__) && !defined(JITLOAD_CPU)"
        )
    if re.search(r"(?:ifdef|ifndef|defined[ (]*) *__CUDA_ARCH\w*", text):
        return f"the CPU has no __CUDA_ARCH__, so this branch would silently be dropped; write {_PORTABLE}"
    if cpu_branch is None:  # another macro decides
        cpu_branch = -1 if conditional.conditions[-1].name != "else" else len(conditional.sizes) - 1
    if "__CUDA_ARCH" in text and (cpu_branch < 0 or not conditional.sizes[cpu_branch]):
        return (
            "a branch for some values of __CUDA_ARCH__ has no alternative for the CPU; write "
            "|| defined(JITLOAD_CPU) to compile it, && !defined(JITLOAD_CPU) to leave it out, or an #else with code"
        )
    macro = re.match(r"(?:ifdef|if defined[ (]*) *(__CUDACC(?!_VER)\w*|__NVCC__)", text)
    if macro and len(conditional.conditions) == 1 and conditional.sizes[0] > 0:
        return f"{macro[1]} is not defined on the CPU, and this branch has no #else; write || defined(JITLOAD_CPU)"
    return ""


def _gpu_branches(conditional: Conditional) -> set[int | None]:
    """Return the branches that GPUs get, from the oldest one that CUDA 13 supports. None means an uncertain one."""
    text = " ".join(directive.text for directive in conditional.conditions)
    numbers = [_OLDEST_GPU, *map(int, re.findall(r"\b[1-9]\d{2,3}\b", text))]
    archs = {number + step for number in numbers for step in (-1, 0, 1) if number + step >= _OLDEST_GPU}
    return {conditional.branch(_arch_macros(arch)) for arch in archs}


def _arch_macros(arch: int | None) -> Macros:
    return Macros({"__CUDA_ARCH__": None if arch is None else str(arch)}, ["-include"])  # others may be defined
