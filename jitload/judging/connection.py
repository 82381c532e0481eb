"""Messages and memory between a judge and a candidate's process.

The judge sends pickled messages. It never unpickles: what the process answers is JSON, because a candidate could have
written it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

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


class Layout(NamedTuple):
    """The shared memory: first the arguments, then the results that a candidate returns."""

    arguments: tuple[Any, ...]  # a `TensorSpec` for each tensor, or another value
    results: tuple[TensorSpec, ...]
    arena: int  # bytes of all arguments
    size: int


def take_answer(received: bytearray) -> dict[str, Any] | None:
    """Remove the first answer from what a process has sent, and return it, or None if it is not complete."""
    size = int.from_bytes(received[:_HEADER], "big")
    if len(received) >= _HEADER and size > _LONGEST:
        raise not_an_answer()
    if len(received) < _HEADER + size:
        return None
    try:
        answer = json.loads(received[_HEADER : _HEADER + size])
    except (ValueError, RecursionError) as error:
        raise not_an_answer() from error
    if not isinstance(answer, dict):
        raise not_an_answer()
    del received[: _HEADER + size]
    return answer


def not_an_answer() -> Rejected:
    """Return the verdict on a process that has sent something that is not an answer."""
    return Rejected("cheat", "its process wrote to the judge's connection")


def number_in(answer: dict[str, Any], key: str) -> float:
    """Return a number in an answer, which must be finite and not negative."""
    value = answer.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise not_an_answer()
    return float(value)


def text_in(answer: dict[str, Any], key: str) -> str:
    """Return a text in an answer, or "" if there is none."""
    value = answer.get(key)
    return value if isinstance(value, str) else ""


def texts_in(answer: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return the texts in a list in an answer, or nothing if there is none."""
    values = answer.get(key)
    return tuple(map(str, values)) if isinstance(values, list) else ()


def view_of(arena: Any, start: int, spec: TensorSpec) -> Any:
    """Return the tensor that lies in `arena`, a tensor of bytes, at `start`."""
    import torch

    return arena[start : start + spec.size].view(getattr(torch, spec.dtype)).view(spec.shape)


def kind_of(tensor: Any) -> tuple[str, tuple[int, ...]]:
    """Return the name of a tensor's dtype, and its shape."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor as a tensor of bytes on the host."""
    import torch

    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).cpu()
