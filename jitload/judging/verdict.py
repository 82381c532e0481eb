"""What a judge is asked, `Candidate`, and what it answers, `Verdict`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jitload.errors import JitLoadError

Stage = Literal["compile", "load", "launch", "memory", "wrong", "hang", "cheat", "ok"]
Kind = Literal["cuda", "torch", "triton", "python"]
_PYTHON = re.compile(r"^(?:import [\w., ]+$|from [\w.]+ import |def \w+\(|class \w+.*:\s*$)", re.MULTILINE)
_TORCH_HEADER = re.compile(r'^\s*#\s*include\s*[<"](?:torch|ATen|c10)/', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a candidate is."""

    name: str  #: The candidate's name.
    #: `ok`, or where it failed: `compile`, `load`, `launch` (a call failed), `memory` (it used memory that it may not
    #: use, or too much), `wrong`, `hang` or `cheat`.
    stage: Stage
    reason: str = ""  #: Why it failed, in one line. Empty for `ok`.
    median_us: float | None = None  #: The median time of a call in microseconds, or None if it was not measured.
    reference_us: float | None = None  #: The median time of the reference.
    registers: int | None = None  #: The registers that each thread of the kernel uses, if it is a kernel.
    diagnostics: tuple[str, ...] = ()  #: The compiler's messages, or the whole text of another error.
    output: str = ""  #: The end of what the candidate printed.
    seconds: float = 0.0  #: How long the verdict took.

    @property
    def ok(self) -> bool:
        """Whether the candidate works: its results are right, and nothing suspicious was found."""
        return self.stage == "ok"

    @property
    def speedup(self) -> float | None:
        """How many times faster than the reference the candidate is, or None if it was not measured."""
        return self.reference_us / self.median_us if self.reference_us and self.median_us else None

    def to_json(self) -> str:
        """Return all attributes as JSON on one line."""
        return json.dumps({**asdict(self), "ok": self.ok, "speedup": self.speedup})

    def __str__(self) -> str:
        if not self.ok:
            return f"{self.name}: {self.stage}: {self.reason}"
        times = "" if self.median_us is None else f", {self.median_us:.2f} µs"
        return f"{self.name}: ok{times}" + (f", {self.speedup:.2f}x the reference" if self.speedup else "")


class Rejected(Exception):  # noqa: N818  a verdict, not an error
    """A candidate is not ok. `facts` are attributes of its verdict."""

    def __init__(self, stage: str, reason: str, diagnostics: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.facts = {"stage": stage, "reason": reason, "diagnostics": diagnostics}


class Candidate(NamedTuple):
    """A text to judge."""

    name: str
    source: str
    kind: Kind
    functions: Any  # of `load_inline`, or the keywords of `load_triton` by names
    function: str  # the one to call, or "" for the only one
    options: Mapping[str, Any]  # other arguments of `load_inline`


def make_candidate(
    candidate: Any, functions: Any = None, *, name: str = "", function: str = "", **options: Any
) -> Candidate:
    """Return the candidate for the arguments of `Judge.run`."""
    if not isinstance(candidate, str | Path):
        raise JitLoadError(f"a candidate must be a text, a Path or a mapping, got {type(candidate).__name__}")
    source = str(candidate)
    if isinstance(candidate, Path):
        try:
            source = candidate.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise JitLoadError(f"the candidate {candidate} cannot be read as text: {error}") from error
        name = name or candidate.stem
    return Candidate(name or "candidate", source, _kind(source, functions), functions, function, options)


def _kind(source: str, functions: Any) -> Kind:
    try:
        is_python = bool(ast.parse(source).body)  # C++ can hardly be parsed as Python, except for an empty text
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        is_python = _PYTHON.search(source) is not None  # with a syntax error, which Python reports
    if not is_python:
        return "torch" if _TORCH_HEADER.search(source) else "cuda"
    values = functions.values() if isinstance(functions, Mapping) else ()
    return "triton" if values and all(isinstance(value, Mapping) for value in values) else "python"
