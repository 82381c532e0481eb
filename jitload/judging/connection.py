"""Messages and memory between a judge and a candidate's process.

The judge sends pickled messages. It never unpickles: what the process answers is JSON, because a candidate could have
written it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_LONGEST = 1 << 20  # bytes of an answer
GUARD = 4096  # bytes before and behind each tensor, which no candidate may change
ALIGNMENT = 256


class TensorSpec(NamedTuple):
    """A tensor in the memory that the judge shares with a process.

    Attributes:
        dtype: The name of the dtype in torch, such as `float32`.
        shape: The shape.
        size: The number of bytes.
        start: Where its slot begins. The tensor begins at least `GUARD` bytes later.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int
    start: int

    @property
    def end(self) -> int:
        """Where its slot ends."""
        return self.start + -(-self.size // ALIGNMENT) * ALIGNMENT + 3 * GUARD


class Layout(NamedTuple):
    """The shared memory: first the arguments, then the results that a candidate returns.

    Attributes:
        arguments: A `TensorSpec` for each tensor, or another value.
        results: The results of the reference.
        arena: The number of bytes of all arguments.
        size: The number of bytes in all.
    """

    arguments: tuple[Any, ...]
    results: tuple[TensorSpec, ...]
    arena: int
    size: int


class ProtocolError(Exception):
    """A process has sent something that is not an answer."""


def answer_from(connection: Connection) -> dict[str, Any]:
    """Receive an answer from a process.

    Raises:
        EOFError, ConnectionError: The process has closed the connection.
        ProtocolError: It is no answer, or the process stopped in the middle of it.
    """
    try:
        answer = json.loads(connection.recv_bytes(_LONGEST))
    except ConnectionError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ProtocolError from error
    if not isinstance(answer, dict):
        raise ProtocolError
    return answer


def number_in(answer: dict[str, Any], key: str) -> float:
    """Return a number in an answer that is finite and not negative.

    Raises:
        ProtocolError: There is none.
    """
    value = answer.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf):
        raise ProtocolError
    return float(value)


def text_in(answer: dict[str, Any], key: str) -> str:
    """Return a text in an answer, or "" if there is none."""
    value = answer.get(key)
    return value if isinstance(value, str) else ""


def view_of(arena: Any, start: int, spec: TensorSpec) -> Any:
    """Return the tensor that lies in `arena`, a tensor of bytes, at `start`."""
    import torch

    return arena[start : start + spec.size].view(getattr(torch, spec.dtype)).view(spec.shape)


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor as a tensor of bytes on the host."""
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
