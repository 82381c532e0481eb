"""Shows a kernel: its CUDA source, its PTX and its machine code, in colours in a notebook."""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jitload.cache.entry import MANIFEST
from jitload.cpptext.declarations import find_candidates, find_closing
from jitload.cpptext.host_functions import find_host_functions
from jitload.cpptext.lexer import Token, tokenize
from jitload.elf.file import ElfFile
from jitload.errors import JitLoadError
from jitload.inspection.code import (
    KernelCode,
    LoadedKernel,
    find_code,
    find_ptx,
    has_machine_code,
    is_intact,
    read_embedded_ptx,
    read_entry,
)
from jitload.settings import read_settings
from jitload.toolchain.arch import canonical_arch, machine_arch
from jitload.toolchain.nvcc import find_nvdisasm, run_nvdisasm
from jitload.words import Argument, Words

_UNFOLDED_LINES = 60  # a notebook folds a longer listing


class Listing(str):
    """PTX or SASS as a `str` whose `repr` has no quotes.

    Notebooks show it in colours if Pygments is installed. A long listing is folded.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        lines = self.splitlines()
        if len(lines) <= _UNFOLDED_LINES:
            return self._highlighted()
        title = next((line.strip("/ ") for line in lines if line.strip("/ ")), "")
        return f"<details><summary>{html.escape(title)} ({len(lines)} lines)</summary>{self._highlighted()}</details>"

    def _highlighted(self) -> str:
        try:
            from pygments import highlight
            from pygments.formatters import HtmlFormatter
        except ImportError:
            return f"<pre>{html.escape(self)}</pre>"
        formatter = HtmlFormatter(style=_style(), noclasses=True, nobackground=True)
        text: str = highlight(str(self), _lexer(), formatter)
        return text


def _style() -> Any:
    """Return a Pygments style for both light and dark backgrounds."""
    from pygments import token
    from pygments.style import Style

    class _AssemblyStyle(Style):  # type: ignore[misc]  # Pygments may be missing
        styles = {  # noqa: RUF012  Pygments reads it from the class
            token.Comment: "italic #767676",
            token.Keyword: "bold",
            token.Keyword.Pseudo: "#b0559b",
            token.Keyword.Type: "#2b8755",
            token.Name.Label: "#b8584a",
            token.Name.Variable: "#2a7fc4",
            token.Number: "#a8690b",
            token.String: "#2b8755",
        }

    return _AssemblyStyle


def _lexer() -> Any:
    """Return a Pygments lexer for both PTX and SASS."""
    from pygments import token
    from pygments.lexer import RegexLexer

    class _AssemblyLexer(RegexLexer):  # type: ignore[misc]  # Pygments may be missing
        name = "CUDA assembly"
        tokens = {  # noqa: RUF012  Pygments reads it from the class
            "root": [
                (r"//[^\n]*|/\*.*?\*/", token.Comment),
                (r"^[ \t]*[.$\w]+:", token.Name.Label),
                (r"`?\([.$\w]+\)", token.Name.Label),
                (r'"[^"\n]*"', token.String),
                (r"@!?%?[\w]+", token.Keyword.Pseudo),
                (r"%[\w.]+|\bU?[RP](?:\d+|Z|T)\b(?:\.\w+)*|\bSR_[\w.]+", token.Name.Variable),
                (r"-?\b0[xXfFdD][0-9a-fA-F]+|-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b", token.Number),
                (r"\.[a-z_]\w*", token.Keyword.Type),
                (r"\b[A-Z][A-Z0-9]+(?:\.[\w.]+)?|\b[a-z]\w*(?:\.[\w:.]+)+", token.Keyword),
                (r"[\w.$]+", token.Name),
                (r"\s+", token.Whitespace),
                (r".", token.Punctuation),
            ],
        }

    return _AssemblyLexer()


# ---- CUDA source -----------------------------------------------------------------------------------------------------

_SOURCE = re.compile(r"(?:source\d+|c(?:pp|uda)_sources)\.(?:cu|cc)")


def read_source(facts: Mapping[str, Any], origin: Path) -> str | None:
    """Return the definition of a typed function as text, from the sources in the cache entry of the library `origin`.

    Return None if the definition is not found there. `facts` is the function's description in the library.
    """
    name = facts["kernel"]["name"].partition("<")[0] if "kernel" in facts else facts["name"]
    texts = kept_texts(origin)
    if "kernel" in facts:
        candidates = [(texts[candidate.piece], candidate) for candidate in find_candidates(texts)]
    else:
        functions = [(text, function) for text in texts for function in find_host_functions(text)]
        candidates = [(text, function.candidate) for text, function in functions if function.is_definition]
    for text, candidate in candidates:
        if f"::{candidate.name}".endswith(f"::{name}"):
            return _definition(text, candidate.line)
    return None


def kept_texts(origin: Path) -> list[str]:
    """Return the sources in the cache entry of a library, or [] if the library is not in a cache entry."""
    manifest = read_entry(origin)
    names = [name for name in (manifest["files"] if manifest else ()) if _SOURCE.fullmatch(name)]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    paths = [origin.parent / name for name in names]
    if manifest is None or not all(is_intact(path, manifest) for path in paths):
        return []
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


def _definition(text: str, line: int) -> str:
    """Return the lines of the function whose name is on the given line. Lines are counted from 1."""
    tokens = tokenize(text)
    index = next(number for number, token in enumerate(tokens) if token.line >= line and token.kind == "word")
    first, last = _first_line(tokens, index), _last_line(tokens, index)
    return "\n".join(text.splitlines()[first - 1 : last])


def _first_line(tokens: list[Token], index: int) -> int:
    """Return the line on which a function begins, including the comments, attributes or `template <…>` before it."""
    first = index
    while first and tokens[first - 1].text not in {";", "{", "}"} and not tokens[first - 1].in_directive:
        first -= 1
    while tokens[first].kind == "comment" and tokens[first].line == tokens[first - 1].end_line and first:
        first += 1  # skip a comment that begins on the last line of the previous declaration
    return tokens[first].line


def _last_line(tokens: list[Token], index: int) -> int:
    """Return the line of the brace that ends the function's body."""
    opening = next((number for number, token in enumerate(tokens) if number >= index and token.text == "{"), None)
    return tokens[-1 if opening is None else find_closing(tokens, opening)].end_line


# ---- PTX -------------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[\w$]+")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_IS_ENTRY = re.compile(r"(?:\.\w+\s+)?\.entry\b")
_FOR_ALL = re.compile(r"\.(?:version|target|address_size|file|section|pragma)\b")
_DEFINED = re.compile(r"\.(?:entry|func|alias)\s+(?:\([^)]*\)\s*)?([\w$]+)|[.\w]+\s+([\w$]+)\s*[\[;=]")
# What can end a directive. Comments and strings are matched as well, so that nothing inside them is taken for an end.
_BOUNDARY = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"|^\s*\.(?:version|target|address_size|file)\b[^\n]*\n|[{};]",
    re.MULTILINE | re.DOTALL,
)
_SEMICOLON = re.compile(r"\s*;")


def read_ptx(kernel: LoadedKernel, arch: str | None) -> Listing:
    """Return the PTX of a kernel, with the functions and variables that it uses. Without PTX, raise JitLoadError.

    The PTX is in the library if it was built for an architecture such as `compute_90`. The cache entry of a build has
    the PTX of its machine code.
    """
    embedded = read_embedded_ptx(kernel)
    name = machine_arch(canonical_arch(arch)) if isinstance(arch, str) else arch
    if embedded and name not in [*embedded] and not has_machine_code(kernel):
        name = _choose_target(kernel.name, tuple(embedded), name)
    text = embedded.get(name) if isinstance(name, str) else None
    if text is None:
        code = find_code(kernel, name)
        path = find_ptx(code)
        text = path.read_text(encoding="utf-8", errors="replace") if path else embedded.get(code.arch)
        if text is None:
            raise _no_ptx(code)
    return Listing(extract_entry(text, kernel.symbol))


def _choose_target(function: str, targets: Sequence[str], requested: str | None) -> str:
    if requested is None and len(targets) == 1:
        return targets[0]
    archs = [target.replace("sm_", "compute_") for target in targets]
    raise JitLoadError(
        Words(f"{function}() has PTX for {', '.join(archs)}: name one of these, ", Argument("arch", archs[0]))
    )


def _no_ptx(code: KernelCode) -> JitLoadError:
    if read_entry(code.origin) is not None:
        reason = "its cubin was compiled elsewhere, so jitload does not have the PTX"
        advice = "Write the PTX with the compiler that made the cubin"
    else:
        reason = f"{code.origin} has only machine code for {code.arch}; the PTX is in the cache entry of the build"
        advice = "Load the kernel from its source, with load_inline() or load()"
    return JitLoadError(f"{code.function}() has no PTX: {reason}. {advice}; sass() shows the machine code")


def extract_entry(ptx: str, symbol: str) -> str:
    """Return a complete PTX module with one kernel and the functions and variables that the kernel uses."""
    items = list(_split(ptx))
    by_name: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        if (name := _defined_name(item)) is not None:
            by_name.setdefault(name, []).append(number)
    kept = {number for number, item in enumerate(items) if _defined_name(item) is None}
    pending = list(by_name.get(symbol, ()))
    while pending:
        number = pending.pop()
        if number not in kept:
            kept.add(number)
            names = set(_NAME.findall(_COMMENT.sub("", items[number])))
            pending += [other for name in names for other in by_name.get(name, ()) if not _is_entry(items[other])]
    return "".join(items[number] for number in sorted(kept)).strip("\n") + "\n"


def _is_entry(item: str) -> bool:
    return _IS_ENTRY.match(_COMMENT.sub("", item).strip()) is not None


def _defined_name(item: str) -> str | None:
    """Return the name that a directive defines, or None for a directive that every kernel needs, such as `.version`."""
    text = _COMMENT.sub("", item).strip()
    if not text or _FOR_ALL.match(text):
        return None
    match = _DEFINED.search(text)
    return next(filter(None, match.groups())) if match else None


def _split(ptx: str) -> Iterator[str]:
    """Yield the directives at the top level of a PTX text, each with the comments before it."""
    start = depth = 0
    for match in _BOUNDARY.finditer(ptx):
        text = match[0]
        depth += (text == "{") - (text == "}")
        is_line = depth == 0 and text.lstrip().startswith(".")
        is_body = text == "}" and not _SEMICOLON.match(ptx, match.end())  # `= {1, 2};` ends at the semicolon
        if is_line or (depth == 0 and (text == ";" or is_body)):
            yield ptx[start : match.end()]
            start = match.end()
    yield ptx[start:]


# ---- machine code ----------------------------------------------------------------------------------------------------

_LOCATION = re.compile(r'^\s*//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_PIECE = re.compile(r"cuda_sources\[(\d+)\]")
_DIRECTIVE = re.compile(r"\s+\.(?:type|size|other|global|align|section|sectioninfo|sectionflags|weak|local)\b")


def read_sass(kernel: LoadedKernel, arch: str | None, *, source: bool) -> Listing:
    """Return the SASS of a kernel and of the functions that it calls, as nvdisasm prints it.

    With `source`, show each source line above its instructions, or raise JitLoadError if the kernel was built without
    line information.
    """
    code = find_code(kernel, arch)
    lines = disassemble(code.cubin, code.kernel.symbol, with_lines=source)
    if source:
        if not any(_LOCATION.search(line) for line in lines):
            raise JitLoadError(
                Words(
                    f"the source of {code.function}() cannot be shown, because it was built without line information. ",
                    *(
                        "Build it with ",
                        Argument("extra_cuda_cflags", "-lineinfo", python="extra_cuda_cflags=['-lineinfo']"),
                    ),
                    ", which does not change its instructions (for a Triton kernel, set TRITON_DISABLE_LINE_INFO=0).",
                )
            )
        lines = list(_with_source(lines, _source_reader(code)))
    facts = code.kernel
    numbers = f"{facts.registers} registers, {facts.shared_bytes} bytes of static shared memory"
    return Listing(f"// {code.function}, {code.arch}: {numbers}\n" + "\n".join(lines) + "\n")


def disassemble(cubin: bytes, symbol: str, *, with_lines: bool = False) -> list[str]:
    """Return the lines of nvdisasm's listing of one kernel, without the assembler's directives."""
    program = find_nvdisasm(read_settings())
    index = next(number for number, entry in enumerate(ElfFile(cubin).symbols()) if entry.name == symbol)
    with tempfile.TemporaryDirectory(prefix="jitload-") as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(cubin)
        options = ("--print-code", *(("--print-line-info-inline",) if with_lines else ()), f"-fun={index}")
        listing = run_nvdisasm(program, options, path)
    _, _, body = listing.partition(f".text.{symbol}:\n")
    body, _, _ = body.partition("\n//-----")
    lines = [line.expandtabs() for line in body.rstrip().splitlines()]
    return [line for line in lines if not _DIRECTIVE.match(line)]


# ---- lines of the source -----------------------------------------------------------------------------------------


def _with_source(lines: list[str], read: Callable[[str, int], str]) -> Iterator[str]:
    """Yield the lines of a listing. Replace each source location by a comment with the source line.

    `read(file, number)` returns the text of a source line.
    """
    is_inlined = False
    for line in lines:
        match = _LOCATION.search(line)
        if match is None:
            yield line
            is_inlined = False
            continue
        file, number, caller, caller_number = match.groups()
        if caller or not is_inlined:  # after inlined code, nvdisasm repeats the location of the outermost line
            text = read(file, int(number))
            inlined = f", inlined at {Path(caller).name}:{caller_number}" if caller else ""
            yield f"    // {Path(file).name}:{number}{inlined}{'  ' if text else ''}{text}"
        is_inlined = caller is not None


def _source_reader(code: KernelCode) -> Callable[[str, int], str]:
    """Return a function `read(file, number)` that returns a line of the compiled source, or "" if it is unknown."""
    manifest = read_entry(code.origin)

    @lru_cache(maxsize=64)
    def lines_of(file: str) -> list[str]:
        path = manifest and _source_file(code.origin.parent, manifest, file)
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path else []

    def read(file: str, number: int) -> str:
        lines = lines_of(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    return read


def _source_file(entry_dir: Path, manifest: dict[str, Any], file: str) -> Path | None:
    """Return the path of the source that the compiler knew as `file`.

    Return None if the text is gone, or may have changed since the build.
    """
    match = _PIECE.fullmatch(Path(file).name)
    pieces = [name for name in manifest["files"] if re.fullmatch(r"source\d+\.cu", name)]
    number = int(match[1]) if match else 0
    if match or (len(pieces) == 1 and Path(file).name == f"{manifest.get('name')}.cu"):
        path = entry_dir / f"source{number}.cu"
        return path if is_intact(path, manifest) else None
    path = Path(file)
    # One second is added, because `created` is rounded down to whole seconds.
    built = min((entry_dir / MANIFEST).stat().st_mtime, manifest.get("created", 0) + 1)
    return path if path.is_file() and path.stat().st_mtime <= built else None
