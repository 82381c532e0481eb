"""Messages and memory between a judge and a candidate's process.

The judge sends pickled messages. It never unpickles: what the process answers is JSON, because a candidate could have
written it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import torch

from jitload.judging.verdict import Rejected

LONGEST_MESSAGE = 200_000  # bytes
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


class Setup(NamedTuple):
    """What a candidate's process needs beforehand, and from `memory` on, how it is judged, as for `Judge`.

    In the shared memory, the arguments come before the results that a candidate returns.
    """

    arguments: tuple[Any, ...]  # a `TensorSpec` for each tensor, or another value
    results: tuple[TensorSpec, ...]
    device: str
    model_args: tuple[Any, ...]
    seed: int  # of a model's weights
    memory: int = 0  # in bytes
    timeout: float = 0.0
    seconds: float = 0.0
    flushes_l2: bool = True
    allow_torch: bool = False
    remember: bool = True

    def arguments_in(self, memory: Any, starts: tuple[int, ...]) -> list[Any]:
        """Return the arguments, with tensors that lie in `memory` at `starts`."""
        pairs = zip(self.arguments, starts, strict=True)
        return [spec.view(memory, start) if isinstance(spec, TensorSpec) else spec for spec, start in pairs]


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


def read_answer(data: bytes) -> Answer:
    """Return the answer that a process has sent. Reject a candidate that has sent something else."""
    try:
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(data).items()}
        answer = Answer(**fields)
    except (ValueError, RecursionError, AttributeError, TypeError):
        raise not_an_answer() from None
    if not all(map(_is_valid, answer, Answer())):
        raise not_an_answer()
    return answer


def _is_valid(value: Any, default: Any) -> bool:
    """Return whether a value has the type of its default. Numbers must be finite, and are not negative."""
    if isinstance(value, tuple):
        return isinstance(default, tuple) and all(isinstance(text, str) for text in value)
    return type(value) is type(default) and (isinstance(value, str) or value == default or 0 <= value < math.inf)


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
