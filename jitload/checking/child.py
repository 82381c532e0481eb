"""What runs under compute-sanitizer: it loads the arguments of a call to the GPU, and calls the function."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

from jitload.checking.copies import is_tensor
from jitload.measuring.memory import extent_of
from jitload.pipeline import load_request
from jitload.request.request import Request


class Call(NamedTuple):
    """A call of a function with the configuration of its launch."""

    request: Request
    name: str
    config: tuple[Any, ...]
    arguments: tuple[Any, ...]


def run_call(directory: str, device: str) -> None:
    """Run the call in the file `call`. Write the memory of its arguments, and then its error or None, to files."""
    error = None
    try:
        _run(Path(directory), device)
    except Exception as raised:  # noqa: BLE001  the parent raises it
        error = raised if type(raised).__module__ == "builtins" else RuntimeError(f"{type(raised).__name__}: {raised}")
        error = error.with_traceback(None)
    Path(directory, "outcome").write_bytes(pickle.dumps(error))


def _run(directory: Path, device: str) -> None:
    import torch

    # Tensors that share memory share it on the device, too.
    call: Call = torch.load(directory / "call", map_location=device, weights_only=False)
    extents = [extent_of(argument)[:2] if is_tensor(argument) else None for argument in call.arguments]
    (directory / "extents").write_bytes(pickle.dumps(extents))
    function = load_request(call.request, None, keep_module_alive=True, verbose=False)[call.name]
    function._jitload_with((function._jitload_facts["index"], *call.config, None))(*call.arguments)
    if device != "cpu":
        torch.cuda.synchronize(device)
