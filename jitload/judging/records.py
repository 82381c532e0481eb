"""The records of a judge: candidates and verdicts, and the memory and messages that it shares with processes.

The judge sends pickled messages. It never unpickles: what a process answers is JSON, because a candidate could have
written it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from jitload.errors import JitLoadError

Stage = Literal["compile", "load", "launch", "memory", "wrong", "hang", "cheat", "ok"]

LONGEST_MESSAGE = 200_000  # bytes
GUARD = 4096  # bytes before and behind each tensor, which no candidate may change
ALIGNMENT = 256


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
    functions: Any  # of `load_inline`, or the keywords of `load_triton` by names, or the name of the one to call
    options: Mapping[str, Any]  # other arguments of `load_inline`


def make_candidate(candidate: Any, functions: Any = None, *, name: str = "", **options: Any) -> Candidate:
    """Return the candidate for the arguments of `Judge.run`."""
    if not isinstance(candidate, str | Path):
        raise JitLoadError(f"a candidate must be a text, a Path or a mapping, got {type(candidate).__name__}")
    if isinstance(candidate, Path):
        name, candidate = name or candidate.stem, candidate.read_text(encoding="utf-8", errors="replace")
    return Candidate(name or "candidate", candidate, functions, options)


# ---- what a judge shares with a process ------------------------------------------------------------------------------


class TensorSpec(NamedTuple):
    """A tensor in the memory that the judge shares with a process. It begins at least `GUARD` bytes after its slot."""

    dtype: str
    shape: tuple[int, ...]
    size: int  # in bytes
    start: int  # of its slot

    @property
    def end(self) -> int:
        """Where its slot ends."""
        return self.start + -(-self.size // ALIGNMENT) * ALIGNMENT + 3 * GUARD

    def view(self, memory: Any, start: int) -> Any:
        """Return the tensor that lies in `memory`, a tensor of bytes, at `start`."""
        return memory[start : start + self.size].view(getattr(torch, self.dtype)).view(self.shape)


class Setup(NamedTuple):
    """What a candidate's process needs beforehand, and from `memory` on, how it is judged, as for `Judge`.

    In the shared memory, the arguments come before the results that a candidate returns.
    """

    arguments: tuple[Any, ...]  # a `TensorSpec` for each tensor, or another value
    results: tuple[TensorSpec, ...]
    device: str
    model_args: tuple[Any, ...]
    seed: int  # of a model's weights
    memory: int  # in bytes
    timeout: float
    seconds: float
    flush_l2: bool
    allow_torch: bool

    def arguments_in(self, memory: Any, starts: tuple[int, ...]) -> list[Any]:
        """Return the arguments, with tensors that lie in `memory` at `starts`."""
        pairs = zip(self.arguments, starts, strict=True)
        return [spec.view(memory, start) if isinstance(spec, TensorSpec) else spec for spec, start in pairs]


class Answer(NamedTuple):
    """What a process answers to a request. Nothing of it need be true."""

    stage: str = ""  # of a candidate that is rejected, or "" for the current one
    reason: str = ""  # why it is rejected
    diagnostics: tuple[str, ...] = ()
    registers: int = 0
    operators: tuple[str, ...] = ()
    us: float = 0.0
    is_ordered: bool = False
    has_results: bool = False  # whether the candidate has returned something


def read_answer(data: bytes) -> Answer:
    """Return the answer that a process has sent. Reject a candidate that has sent something else."""
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(data).items()}
        answer = Answer(**fields)
        has_types = all(type(value) is type(default) for value, default in zip(answer, Answer(), strict=True))
        has_texts = has_types and all(isinstance(text, str) for text in (*answer.diagnostics, *answer.operators))
        if has_texts and answer.stage in ("", "compile", "wrong", "cheat") and 0 <= answer.us < math.inf:
            return answer
    raise Rejected("cheat", "its process wrote to the judge's connection")


def kind_of(tensor: Any) -> tuple[str, tuple[int, ...]]:
    """Return the name of a tensor's dtype, or of its layout if its elements are not in its memory, and its shape."""
    kind = "meta" if tensor.is_meta else tensor.dtype if tensor.layout == torch.strided else tensor.layout
    return str(kind).removeprefix("torch."), tuple(tensor.shape)


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor as a tensor of bytes."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
