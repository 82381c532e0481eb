"""Reads from the report of ptxas how many bytes each kernel spills because it has too few registers."""

from __future__ import annotations

import re
from collections.abc import Sequence

REPORT = "--ptxas-options=-v"  # changes neither the code nor, measurably, the time; NVRTC and nvJitLink take it
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)\n.* (\d+) bytes spill stores")
# Matches the lines of the report. Notes with a number, such as `ptxas info : (C7510) Potential Performance Loss`, are
# not part of the report: they also appear without the option.
_REPORT_LINE = re.compile(r"^ptxas (?:info    : (?!\(C\d)|        \.).*(?:\n ?|\Z)", re.MULTILINE)
_ASKS_FOR_REPORT = re.compile(r"(?:-Xptxas|--ptxas-options)[= ](?:\S*,)?(?:-v|--verbose)\b")


def read_spills(log: str, *, is_linked: bool = False) -> dict[str, int]:
    """Return the bytes that each kernel spills, by its symbol, or an empty dictionary if they are not known.

    NVRTC compiles called functions separately for each kernel, and lists them below the kernel. A linker compiles
    called functions on their own, and does not tell which kernels call them. If `is_linked` is true, and such a
    function spills, the bytes are not known.
    """
    parts = _ENTRY.split(log)
    kernels = dict(zip(parts[1::2], map(_FUNCTION.findall, parts[2::2]), strict=True))
    if is_linked and any(name not in kernels and int(stores) for name, stores in _FUNCTION.findall(log)):
        return {}
    return {kernel: sum(int(stores) for _, stores in functions) for kernel, functions in kernels.items()}


def without_report(log: str, options: Sequence[str]) -> str:
    """Return the log without the report of ptxas, unless the user's options ask for the report."""
    return log if _ASKS_FOR_REPORT.search(" ".join(options)) else _REPORT_LINE.sub("", log).lstrip("\n")
