"""Messages and memory between a judge and a candidate's process.

The judge sends pickled messages. It never unpickles: what the process answers is JSON, because a candidate could have
written it.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal, NamedTuple

import torch

from jitload.judging.verdict import Rejected

_HEADER, _LONGEST = 4, 1 << 20  # bytes of the size before an answer, as `Connection.send_bytes` writes it; of an answer
GUARD = 4096  # bytes before and behind each tensor, which no candidate may change
ALIGNMENT = 256


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


class Layout(NamedTuple):
    """The shared memory: first the arguments, then the results that a candidate returns."""

    arguments: tuple[Any, ...]  # a `TensorSpec` for each tensor, or another value
    results: tuple[TensorSpec, ...]
    arena: int  # bytes of all arguments
    size: int

    def arguments_in(self, memory: Any, starts: tuple[int, ...]) -> list[Any]:
        """Return the arguments, with tensors that lie in `memory` at `starts`."""
        pairs = zip(self.arguments, starts, strict=True)
        return [spec.view(memory, start) if isinstance(spec, TensorSpec) else spec for spec, start in pairs]


class Setup(NamedTuple):
    """What a process needs before it gets a candidate."""

    layout: Layout
    device: str
    memory: int
    flushes_l2: bool
    model_args: tuple[Any, ...]
    seed: int  # of a model's weights


class Call(NamedTuple):
    """A request to call the candidate.

    `measure` measures the call, and `rehearse` that of a function that computes nothing. `trace` finds out which
    operators of torch are called, and `fake` which of them are called without any data. `delay` writes the inputs only
    after the candidate has launched its work, or after `delay_ms` milliseconds.
    """

    starts: tuple[int, ...]  # where the tensors among the arguments begin
    arena: int = 0  # the number of the memory in which they lie
    kind: Literal["measure", "rehearse", "trace", "delay", "fake"] = "measure"
    delay_ms: int = 0


class Answer(NamedTuple):
    """What a process answers to a request. Nothing of it need be true, except for `seen_us`."""

    error: str = ""
    is_compile: bool = False
    diagnostics: tuple[str, ...] = ()
    registers: int = 0
    replaced: tuple[str, ...] = ()  # functions that the candidate has replaced
    operators: tuple[str, ...] = ()
    everywhere: tuple[str, ...] = ()  # operators of all threads
    is_ordered: bool = False
    us: float = 0.0
    late_us: float = 0.0  # how long other streams worked on after the call
    returned: int = -1  # the number of results
    problem: str = ""  # what is wrong with them
    seen_us: float = 0.0  # how long the answer took by the judge's clock


def take_answer(received: bytearray) -> Answer | None:
    """Remove the first answer from what a process has sent, and return it, or None if it is not complete."""
    size = int.from_bytes(received[:_HEADER], "big")
    if len(received) >= _HEADER and size > _LONGEST:
        raise not_an_answer()
    if len(received) < _HEADER + size:
        return None
    try:
        fields = json.loads(received[_HEADER : _HEADER + size])
        answer = Answer(**{name: _as_field(value, Answer._field_defaults[name]) for name, value in fields.items()})
    except (ValueError, RecursionError, AttributeError, KeyError, OverflowError) as error:
        raise not_an_answer() from error
    del received[: _HEADER + size]
    return answer


def _as_field(value: Any, default: Any) -> Any:
    """Return a value of JSON as that of a field, if it has the right type. Numbers must be finite and not negative."""
    if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(value)
    is_of_type = type(value) is type(default) or (isinstance(default, float) and type(value) is int)
    if not is_of_type or not (isinstance(value, str) or 0 <= value < math.inf):
        raise ValueError(value)
    return type(default)(value)


def not_an_answer() -> Rejected:
    """Return the verdict on a process that has sent something that is not an answer."""
    return Rejected("cheat", "its process wrote to the judge's connection")


def kind_of(tensor: Any) -> tuple[str, tuple[int, ...]]:
    """Return the name of a tensor's dtype, and its shape."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def problem_of(tensor: Any) -> str:
    """Return why the numbers in a tensor cannot be copied one by one, or ""."""
    kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
    return "" if kind == "strided" else f"is a {kind} tensor, not a dense one"


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor as a tensor of bytes on the host."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).cpu()
