"""Messages and memory between a judge and a candidate's process.

The judge sends pickled messages. It never unpickles: what the process answers is JSON, because a candidate could have
written it.
"""

from __future__ import annotations

import json
import math
import pickle
import socket
import struct
from typing import Any, NamedTuple

_LENGTH = struct.Struct("<I")
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


class Connection:
    """One end of a socket pair, for messages of known length."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send_object(self, message: object) -> None:
        """Send a message to the process."""
        data = pickle.dumps(message)
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive_object(self) -> Any:
        """Receive a message from the judge."""
        return pickle.loads(self._receive(_LENGTH.unpack(self._receive(_LENGTH.size))[0]))  # noqa: S301  the judge

    def send_answer(self, answer: dict[str, Any]) -> None:
        """Send an answer to the judge."""
        data = json.dumps(answer).encode()
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive_answer(self) -> dict[str, Any]:
        """Receive an answer from the process.

        Raises:
            EOFError: The process has closed the connection.
            ProtocolError: It is no answer.
        """
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if length > _LONGEST:
            raise ProtocolError
        try:
            answer = json.loads(self._receive(length))
        except (ValueError, RecursionError) as error:
            raise ProtocolError from error
        if not isinstance(answer, dict):
            raise ProtocolError
        return answer

    def _receive(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 16))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


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
