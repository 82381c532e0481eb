"""What runs under compute-sanitizer: it makes the arguments of a call on the GPU, and calls the function."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

from jitload.pipeline import load_request
from jitload.request.request import Request


class Memory(NamedTuple):
    """The bytes of an allocation, which begin `start` bytes after an address that is aligned for all types."""

    data: bytes
    start: int


class Place(NamedTuple):
    """A tensor in an allocation, `offset` bytes after its first byte. An empty tensor has no allocation."""

    memory: int | None
    offset: int
    size: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Call(NamedTuple):
    """A call of a function, with the configuration of its launch and with `Place` for each tensor."""

    request: Request
    name: str
    config: tuple[Any, ...]
    device: str
    memories: tuple[Memory, ...]
    arguments: tuple[Any, ...]


def run_call(directory: str) -> None:
    """Run the call in the file `call`. Write the addresses of its memories, and then its error or None, to files."""
    error = None
    try:
        _run(pickle.loads(Path(directory, "call").read_bytes()), Path(directory, "addresses"))  # noqa: S301  our parent's
    except Exception as raised:  # noqa: BLE001  the parent raises it
        error = raised if type(raised).__module__ == "builtins" else RuntimeError(f"{type(raised).__name__}: {raised}")
        error = error.with_traceback(None)
    Path(directory, "outcome").write_bytes(pickle.dumps(error))


def _run(call: Call, addresses: Path) -> None:
    import torch

    memories = []
    for data, start in call.memories:
        memory = torch.empty(start + len(data), dtype=torch.uint8, device=call.device)
        memory[start:].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        memories.append((memory, start))
    addresses.write_bytes(pickle.dumps([memory.data_ptr() + start for memory, start in memories]))
    module = load_request(call.request, None, keep_module_alive=True, verbose=False)
    function = module[call.name]
    arguments = [_tensor(a, memories, call.device) if isinstance(a, Place) else a for a in call.arguments]
    function._jitload_with((function._jitload_facts["index"], *call.config, None))(*arguments)
    if call.device != "cpu":
        torch.cuda.synchronize(call.device)


def _tensor(place: Place, memories: list[tuple[Any, int]], device: str) -> Any:
    import torch

    if place.memory is None:
        return torch.empty_strided(place.shape, place.strides, dtype=place.dtype, device=device)
    memory, start = memories[place.memory]
    view = torch.empty(0, dtype=place.dtype, device=device)
    offset = (start + place.offset) // place.dtype.itemsize
    return view.set_(memory.untyped_storage(), offset, place.shape, place.strides)
