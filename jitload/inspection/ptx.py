"""Returns the PTX of a kernel: the compiler's own, which is kept in the cache entry beside the cubin."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jitload.errors import JitLoadError
from jitload.inspection.code import KernelCode, LoadedKernel, find_beside_cubin, find_code, read_entry
from jitload.inspection.listing import Listing

_NAME = re.compile(r"[\w$]+")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_IS_ENTRY = re.compile(r"(?:\.\w+\s+)?\.entry\b")
_FOR_ALL = re.compile(r"\.(?:version|target|address_size|file|section|pragma)\b")
_DEFINED = re.compile(r"\.(?:entry|func|alias)\s+(?:\([^)]*\)\s*)?([\w$]+)|[.\w]+\s+([\w$]+)\s*[\[;=]")
# What can end a directive; comments and strings are among them so that nothing is found in those.
_BOUNDARY = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"|^\s*\.(?:version|target|address_size|file)\b[^\n]*\n|[{};]",
    re.MULTILINE | re.DOTALL,
)
_SEMICOLON = re.compile(r"\s*;")


def read_ptx(kernel: LoadedKernel, arch: str | None) -> Listing:
    """Return the PTX of a kernel with the functions and variables that it uses.

    Raises:
        JitLoadError: The PTX was not kept, or as for `find_code`.
    """
    code = find_code(kernel, arch)
    path = find_beside_cubin(code, ".ptx")
    if path is None:
        raise _no_ptx(code)
    return Listing(extract_entry(path.read_text(encoding="utf-8", errors="replace"), code.kernel.symbol))


def _no_ptx(code: KernelCode) -> JitLoadError:
    if read_entry(code.origin) is not None:
        reason = "its cubin was not compiled here, so there is no PTX of it"
        advice = "What made the cubin can write the PTX"
    else:
        reason = f"the library {code.origin} holds machine code alone; PTX is kept in the cache entry of a build"
        advice = "Load the kernel from its source, with load_inline() or load()"
    return JitLoadError(f"{code.function}() has no PTX: {reason}. {advice}; sass() shows the machine code")


def extract_entry(ptx: str, symbol: str) -> str:
    """Return the part of a PTX text that one kernel needs, as PTX that is complete in itself."""
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
    """Return the name that a directive defines, or None for one that every kernel needs."""
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
        is_body = text == "}" and not _SEMICOLON.match(ptx, match.end())  # `= {1, 2};` goes on
        if is_line or (depth == 0 and (text == ";" or is_body)):
            yield ptx[start : match.end()]
            start = match.end()
    yield ptx[start:]
