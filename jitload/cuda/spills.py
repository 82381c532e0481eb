"""Reads how many bytes of registers the kernels spill from what ptxas reports about them."""

from __future__ import annotations

import re
from collections.abc import Sequence

REPORT = "--ptxas-options=-v"  # changes neither the code nor, measurably, the time; NVRTC and nvJitLink take it
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)\n.* (\d+) bytes spill stores")
# Notes with a number, such as `ptxas info : (C7510) Potential Performance Loss`, appear without the option, too.
_REPORT_LINE = re.compile(r"^ptxas (?:info    : (?!\(C\d)|        \.).*(?:\n ?|\Z)", re.MULTILINE)
_ASKS_FOR_REPORT = re.compile(r"(?:-Xptxas|--ptxas-options)[= ](?:\S*,)?(?:-v|--verbose)\b")


def read_spills(log: str, *, is_linked: bool = False) -> dict[str, int]:
    """Return the bytes that each kernel stores because it has too few registers, or nothing if that is not known.

    NVRTC compiles the functions that a kernel calls for this kernel alone, and lists them below it. A linker compiles
    them on their own, and does not tell which kernels call them.
    """
    parts = _ENTRY.split(log)
    kernels = dict(zip(parts[1::2], map(_FUNCTION.findall, parts[2::2]), strict=True))
    if is_linked and any(name not in kernels and int(stores) for name, stores in _FUNCTION.findall(log)):
        return {}
    return {kernel: sum(int(stores) for _, stores in functions) for kernel, functions in kernels.items()}


def without_report(log: str, options: Sequence[str]) -> str:
    """Return the messages without the report, unless the user's options ask for it."""
    return log if _ASKS_FOR_REPORT.search(" ".join(options)) else _REPORT_LINE.sub("", log).lstrip("\n")
