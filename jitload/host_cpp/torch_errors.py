"""Explains compilers' errors about PyTorch extension sources, such as names of torch's that the light headers lack."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jitload.cpptext.lexer import strip_comments
from jitload.request.torch_operators import COPIED, is_declared, read_header
from jitload.request.torch_text import LIGHT_HEADER_DIR

_UNKNOWN = re.compile(
    r"is not a member of|has no (?:actual )?member|has not been declared|No such file|cannot open source file"
    r"|no matching function|no instance of|does not name a|was not declared|is undefined|no operator|no match for"
    r"|could not convert|cannot convert|no suitable|not a class or|incomplete|no match found|ambiguous|namespace-n"
    r"|more than one|headers for torch lack|range-based|deleted function|(?:conver|initial|cast).*pybind11::"
)
# Errors of the text itself, which torch would report, too.
_OF_AUTHOR = re.compile(
    r"__int128|annot convert [‘\"](?:torch|at)::Tensor|could not convert .* from [‘\"](?:torch|at)::Tensor"
    r"|no suitable .* from [‘\"](?:torch|at)::Tensor[’\"] to [‘\"](?:float|double|bool|u?int\w*|(?:unsigned )?long)\b"
    r"|operator(?:!|&&|\|\||\+\+|--)[’\"].*Tensor"  # torch's tensors do not have these either
)
_OF_TORCH = re.compile(
    r"\b(?:torch|at|c10|ATen|pybind11|py|caffe2|jitload_torch)(?:::|/)"
    r"|[\"‘](?:torch|at|c10|pybind11|py|std|caffe2|begin|end|Py(?:[A-Z][A-Za-z]*)?_\w+|PyObject)[\"’]"
    r"|[\"‘](?:D?CHECK(?:_(?:[NEGL][EQT]|NOTNULL))?|[VD]?LOG(?:_IF)?|INFO|WARNING|ERROR|FATAL)[\"’]"  # Logging.h
    r"|operator<<[’\"].* ‘(?:const )?std::(?:vector|map|set|pair)<"  # declared there, too
)
_CONVERTED_TYPE = re.compile(r"jitload_torch::(?:Caster|Code)<(.+?) ?>$")
_MACRO_OF_TORCH = re.compile(r"\b(?:AT|TORCH|C10|PYBIND11|CUDA)_[A-Z]\w*|\bgpuAtomic\w+|\bWARP_[A-Z]\w*")
_NESTED_NAME = re.compile(r"\b(?:torch|at|c10)(?:::\w+){2,}|(?<!:)\b(?:autograd|nn|jit|optim)::\w+")
_USING_TORCH = re.compile(r"\bnamespace\s+(?:\w+\s*=\s*)?(?:torch|at|c10)\b(?!\s*\{)")
_UNDECLARED = re.compile(r"[‘\"](\w+)[’\"] (?:(?:was|has|does) not|is undefined|is not a namespace-name)")
_CAUGHT_NAME = re.compile(r"\bcatch\s*\(\s*(?:const\s+)?((?:torch|at|c10|py|pybind11)::(?!Error\b)\w+)")
_MACRO_CALL = re.compile(r"\b(?:AT|TORCH|C10|PYBIND11)_[A-Z]\w*(?=\s*\()")
_MACRO_DEFINITION = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_NO_MEMBER = re.compile(
    r"[‘\"](?:class |struct )?([^‘’\"]+)[’\"]\}? has no (?:actual )?member (?:named )?[‘\"]([^’\"]+)"
)
_SECOND_MODULE = re.compile(
    r"(?:redefinition|multiple definition) of .*_jitload_torch_module|_jitload_torch_module.* has already been defined"
)
_UNDECLARED_FUNCTION = re.compile(
    r"^functions\['([\w:]+)'\]:1:.*error: .*(?:not declared|not been declared|is not a member of|undeclared|no member)",
    re.MULTILINE,
)
LACKING = (
    "These are names of torch's that jitload's headers do not have: load the source with "
    "jitload.cpp_extension.load_inline, which then builds it with torch's own headers (docs/torch.md)."
)
_QUOTED = re.compile(r"[‘\"]([^‘’\"]+)[’\"]")
_BRACED_VALUE = re.compile(r"‘\{.*\}’")  # may contain other quotation marks
_HEADER = re.compile(r"[\w/]+\.(?:cu)?h(?:pp)?\b")


def missing_names(log: str, texts: Iterable[str] = ()) -> list[str]:
    """Return the names of torch, pybind11 or the C++ library in a compiler's errors.

    If no error contains a name, return candidates from the texts: names in nested namespaces, or undefined macros.
    """
    names: dict[str, None] = {}
    if "required to use PyTorch" in log:  # an option such as -std=c++14
        return []
    is_using_torch = any(map(_USING_TORCH.search, texts))  # if not, what a source has before a header may still be
    for line in log.splitlines():
        location, _, message = line.partition("error")
        message = _BRACED_VALUE.sub("", message.partition("did you mean")[0])  # a suggestion may be any name of torch's
        macro = _MACRO_OF_TORCH.search(message)
        header = _HEADER.search(message) if "No such file" in message or "cannot open" in message else None
        bare = _UNDECLARED.findall(message) if is_using_torch or _HEADER.search(location) else []
        is_of_torch = bool(macro or _OF_TORCH.search(message) or (header and read_header(header[0])))
        is_of_torch = is_of_torch or any(map(is_declared, bare))
        if not _UNKNOWN.search(message) or _OF_AUTHOR.search(message) or not is_of_torch:
            continue
        quoted = [name for name in _QUOTED.findall(message) if name[0] not in "<{" and name != "for"]
        name, *owners = [found[0]] if (found := macro or header) else [*quoted, "?"]
        if owners and ("is not a member of" in message or "in namespace" in message):
            name = f"{owners[0]}::{name}"
        elif owners and name.startswith("operator"):
            name = f"{name} of {owners[0]}"
        elif member := _NO_MEMBER.search(message):
            name = f"{member[1]}::{member[2]}"
        names[_CONVERTED_TYPE.sub(r"\1", name)] = None
    if names:
        return list(names)
    if match := re.search("((?:be|not) a class or (?!enum))|expected unqualified-id before ‘[&)]’", log):
        pattern = _NESTED_NAME if match[1] else _CAUGHT_NAME
        names = dict.fromkeys(name for text in texts for name in pattern.findall(text))
    return sorted(names) or _undefined_macros(texts)


def _undefined_macros(texts: Iterable[str]) -> list[str]:
    """Return macros such as `TORCH_…` that the texts use. Omit macros that the texts or the light headers define."""
    text = "\n".join(map(strip_comments, texts))
    macros = {*_MACRO_CALL.findall(text)} - {*_MACRO_DEFINITION.findall(text)}
    return sorted(macros - light_macros(*COPIED.split())) if macros else []


def light_macros(*copied: str) -> set[str]:
    """Return the macros that the light headers define, and those of copied headers."""
    light = (path.read_text(encoding="utf-8") for path in (LIGHT_HEADER_DIR / "jitload_torch").glob("*.h"))
    return {name for header in (*light, *map(read_header, copied)) for name in _MACRO_DEFINITION.findall(header)}


def torch_hint(log: str, texts: Iterable[str]) -> str:
    """Return advice on a compiler's messages about a PyTorch extension source, or "" if there is none."""
    if _SECOND_MODULE.search(log):
        return "The source has a PYBIND11_MODULE of its own: leave functions= out, and add the functions there."
    if match := _UNDECLARED_FUNCTION.search(log):
        return (
            f"functions= names {match[1]!r}, which the C++ does not declare. Correct the name, or declare the function "
            "in cpp_sources if cuda_sources defines it."
        )
    return LACKING if missing_names(log, texts) else ""
