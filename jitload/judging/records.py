"""The records of a judge: candidates and verdicts, and the memory and messages that it shares with processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch

LONGEST_MESSAGE = 200_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a candidate is."""

    name: str  #: The candidate's name.
    #: `ok`, or where it failed: `compile`, `load`, `launch` (a call failed), `memory` (it used memory that it may not
    #: use, or too much), `wrong`, `hang` or `cheat`.
    stage: Literal["compile", "load", "launch", "memory", "wrong", "hang", "cheat", "ok"]
    reason: str = ""  #: Why it failed, in one line. Empty for `ok`.
    median_us: float | None = None  #: The median time of a call in microseconds, or None if it was not measured.
    reference_us: float | None = None  #: The median time of the reference.
    registers: int | None = None  #: The registers that each thread of the kernel uses, if it is a kernel.
    diagnostics: str = ""  #: The compiler's messages, or the traceback of another error.
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

    def __init__(self, stage: str, reason: str, diagnostics: str = "") -> None:
        super().__init__(reason)
        self.facts = {"stage": stage, "reason": reason, "diagnostics": diagnostics}


class Candidate(NamedTuple):
    """A text to judge."""

    name: str
    source: str
    functions: Any  # of `load_inline`, or the keywords of `load_triton` by names, or the name of the one to call
    options: Mapping[str, Any]  # other arguments of `load_inline`


class TensorSpec(NamedTuple):
    """A tensor in the memory that the judge shares with a process."""

    dtype: str
    shape: tuple[int, ...]
    region: slice  # its bytes

    def view(self, memory: Any) -> Any:
        """Return the tensor that lies in `memory`, a tensor of bytes."""
        return memory[self.region].view(getattr(torch, self.dtype)).view(self.shape)


class Setup(NamedTuple):
    """What a candidate's process needs beforehand. In the shared memory, the arguments come before the results."""

    arguments: tuple[Any, ...]  # a `TensorSpec` for each tensor, or another value
    results: tuple[TensorSpec, ...]
    outputs: tuple[int, ...]  # the positions of the arguments that a candidate may write its results to
    device: str
    model_args: tuple[Any, ...]
    seed: int  # of a model's weights
    flush_l2: bool
    memory: int  # in bytes, that its processes may use

    def arguments_in(self, memory: Any) -> list[Any]:
        """Return the arguments, with tensors that lie in `memory`."""
        return [spec.view(memory) if isinstance(spec, TensorSpec) else spec for spec in self.arguments]


class Answer(NamedTuple):
    """What a process answers to a request, in JSON. Nothing of it need be true: a candidate could have written it."""

    stage: str = ""  # of a candidate that is rejected, or "" for the current one
    reason: str = ""  # why it is rejected
    diagnostics: str = ""
    registers: int = 0
    operators: str = ""  # their names, with spaces between them
    us: float = 0.0
    busy_us: float = 0.0  # how long the device was kept busy before


def read_answer(data: bytes) -> Answer:
    """Return the answer that a process has sent. Reject a candidate that has sent something else."""
    with suppress(ValueError, RecursionError, TypeError):
        answer = Answer(**json.loads(data))
        has_types = [*map(type, answer)] == [*map(type, Answer())]
        if has_types and answer.stage in ("", "compile", "wrong", "cheat") and 0 <= answer.us < float("inf"):
            return answer
    raise Rejected("cheat", "its process wrote to the judge's connection")


def kind_of(value: Any) -> tuple[str, tuple[int, ...]]:
    """Return a tensor's dtype and shape. If its elements are not in its memory, return its layout instead of the dtype.

    Return the type of another value. That of a class derived from `torch.Tensor` could compute its elements later.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"type {type(value).__name__}", tuple(getattr(value, "shape", ()))
    kind = "meta" if value.is_meta else value.dtype if value.layout == torch.strided else value.layout
    return str(kind).removeprefix("torch."), tuple(value.shape)


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor as a tensor of bytes."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
