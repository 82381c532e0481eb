"""What a candidate's process does: it loads the candidate, and calls it with the tensors that the judge has written.

Nothing here decides anything: the judge has the right results, and its own clock.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import pickle
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile
from torch.utils._pytree import tree_leaves

from jitload import cpp_extension
from jitload.api import load_inline
from jitload.errors import CompileError, JitLoadError
from jitload.judging.devices import open_device
from jitload.judging.records import LONGEST_MESSAGE, Candidate, Rejected, Setup, bytes_of, kind_of
from jitload.request.launch import Launch
from jitload.triton_api import load_triton

_LONGEST_TEXT = 10_000  # characters
_COMPILE_ERRORS = ("CompilationError", "SyntaxError", "IndentationError")  # of Triton and Python
_PYTHON = re.compile(r"^(?:import [\w., ]+$|from [\w.]+ import |def \w+\(|class \w+.*:\s*$)", re.MULTILINE)
_TORCH_HEADER = re.compile(r'^\s*#\s*include\s*[<"](?:torch|ATen|c10)/', re.MULTILINE)
# What a candidate might replace, so that it seems to be right or fast.
_WATCHED = (
    "builtins", "time", "gc", "json", "torch", "torch.cuda", "torch.Tensor", "torch.nn.functional", "torch.nn.Module",
    "torch.cuda.Event", "torch.testing", "torch.autograd.profiler", "numpy", "cuda.bindings.driver",
    "jitload.judging.child", "jitload.judging.devices", "jitload.judging.devices.Gpu", "jitload.judging.records",
)  # fmt: skip
# Operators of torch that compute nothing, or that a kernel needs beside it.
_TRIVIAL = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "new_zeros", "full", "full_like",
     "view", "_unsafe_view", "view_as", "split", "reshape", "_reshape_alias", "flatten", "t", "numpy_T", "transpose",
     "permute", "movedim", "expand", "expand_as", "unsqueeze", "squeeze", "slice", "select", "as_strided", "detach",
     "alias", "clone", "copy", "fill", "zero", "to", "_to_copy", "contiguous", "lift_fresh", "resize", "narrow",
     "unbind", "chunk", "resolve_conj", "resolve_neg")
)  # fmt: skip
# Operators that can replace each other count as one: products, and such as `native_batch_norm` and `group_norm`.
_PRODUCT = re.compile(r"^(?:linear|matmul|einsum|\w*(?:mm|mv|dot))$")
_FAMILY = re.compile(r".*(conv|norm|softmax|pool|attention|lstm|gru|rnn).*")


_profiling = threading.Lock()  # the profiler cannot be started twice


def serve_candidate(connection: socket.socket, memory: int, setup: Setup) -> None:
    """Start, and answer the judge's requests, which are names of methods, until it closes the connection."""
    dumps, process, request = json.dumps, _Process(memory, setup), b"start"
    with suppress(ConnectionError):
        while request:
            try:
                answer = getattr(process, request.decode())()
            except Rejected as rejection:
                answer = rejection.facts
            except BaseException as error:  # noqa: BLE001  also SystemExit, and whatever a candidate raises
                answer = _describe(error)
            connection.send(dumps(answer, ensure_ascii=False).encode(errors="replace"))
            request = connection.recv(LONGEST_MESSAGE)


def _describe(error: BaseException) -> dict[str, Any]:
    kind, message = type(error).__name__, ""
    with suppress(Exception):  # of the candidate's own class
        message = error.message() if isinstance(error, JitLoadError) else str(error)
    text = "".join(traceback.format_exception(error, limit=-8))
    if isinstance(error, CompileError):
        text, message = error.log, next((diagnostic.message for diagnostic in error.diagnostics), message)
    return {
        "stage": "compile" if isinstance(error, CompileError) or kind in _COMPILE_ERRORS else "",
        "reason": f"{kind}: {message.strip()}"[:_LONGEST_TEXT],
        "diagnostics": text[:_LONGEST_TEXT],
    }


class _Process:
    """The answers to the judge's requests, by their names."""

    def __init__(self, memory: int, setup: Setup) -> None:
        self._setup = setup
        self._shared = torch.frombuffer(mmap.mmap(memory, 0), dtype=torch.uint8)

    def start(self) -> dict[str, Any]:
        """Start CUDA, and make memory for calls."""
        self._arguments = self._shared[: self._setup.results[0].region.start]
        self._device = open_device(self._setup.device, ExitStack(), flushes_l2=self._setup.flush_l2)
        self._arenas = [torch.empty_like(self._arguments, device=self._setup.device) for _ in range(2)]
        return {}

    def load(self) -> dict[str, Any]:
        """Compile and load the candidate, which is in a file."""
        candidate: Candidate = pickle.loads(Path("candidate").read_bytes())  # noqa: S301  the judge wrote it
        self._originals = _watched()
        self._function = (_load_python if _PYTHON.search(candidate.source) else _load_cpp)(candidate, self._setup)
        self._check_functions()
        with suppress(Exception):
            return {"registers": int(self._function.kernel.registers)}
        return {}

    def _check_functions(self) -> None:
        now = _watched()
        if replaced := [f"{o}.{n}" for (o, n), value in self._originals.items() if now.get((o, n)) is not value]:
            raise Rejected("cheat", f"it replaces {', '.join(replaced[:5])}")

    def prepare(self) -> dict[str, Any]:
        """Receive the inputs of the next call, in other memory than those of the last one.

        Addresses come again, so that a result that is cached by address is wrong.
        """
        self._arenas.reverse()
        self._args = self._setup.arguments_in(self._arenas[0])
        self._inputs = self._device.receive(self._arguments, self._arenas[0])
        return {}

    def call(self) -> dict[str, Any]:
        """Call the candidate and measure this."""
        arena = self._arenas[0]
        with torch.no_grad():
            self._results, us, busy_us = self._device.measure(
                lambda: self._device.copy(arena, self._inputs), lambda: (self._function(*self._args), arena)
            )
        return {"us": us, "busy_us": busy_us}

    def trace(self) -> dict[str, Any]:
        """Call the candidate, and find out which operators of torch it calls."""
        answer, operators = operators_of(self.call, in_all_threads=True)
        return {**answer, "operators": " ".join(operators)}

    def fetch(self) -> dict[str, Any]:
        """Copy what the candidate has returned, and the arguments, to the shared memory."""
        returned, arguments = self._results
        values, expected = [] if returned is None else tree_leaves(returned), self._setup.results
        if values and len(values) != len(expected):
            raise Rejected("wrong", f"it returns {len(values)} results, and the reference {len(expected)}")
        for number, (value, spec) in enumerate(zip(values, expected, strict=False)):
            if not isinstance(value, torch.Tensor) and not spec.shape:
                value = torch.as_tensor(value, dtype=getattr(torch, spec.dtype))  # noqa: PLW2901  a number
            if (kind := kind_of(value)) != (spec.dtype, spec.shape):
                right = f"that of the reference {spec.dtype} of shape {spec.shape}"
                raise Rejected("wrong", f"result {number} is {kind[0]} of shape {kind[1]}, and {right}")
            self._device.copy(self._shared[spec.region], bytes_of(value))
        self._device.copy(self._arguments, arguments)
        self._check_functions()
        return {"has_results": bool(values)}


# ---- loading a candidate ---------------------------------------------------------------------------------------------


def _load_cpp(candidate: Candidate, setup: Setup) -> Any:
    """Compile C++, and return its function."""
    functions, is_on_cpu = candidate.functions, setup.device == "cpu"
    if not _TORCH_HEADER.search(candidate.source):
        options = {"functions": functions, "arch": "cpu" if is_on_cpu else "native", **candidate.options}
        module: Any = load_inline("candidate", cuda_sources=candidate.source, **options)
        return _chosen(module, candidate, list(module))
    if isinstance(functions, Mapping) and any(isinstance(value, Launch) for value in functions.values()):
        functions = None  # of other candidates, which are kernels
    cpp, cuda = (candidate.source, None) if is_on_cpu else ("", candidate.source)
    module = cpp_extension.load_inline("candidate", cpp, cuda, functions=functions, **candidate.options)
    public = [name for name in dir(module) if not name.startswith("_")]
    return _chosen(module, candidate, list(functions or public))


def _load_python(candidate: Candidate, setup: Setup) -> Any:
    """Import a Python file, and return its Triton kernel, its `ModelNew`, or the named or only public function."""
    path = Path("candidate.py").absolute()  # where tools look for the source of its functions
    path.write_text(candidate.source, encoding="utf-8")
    file = import_file(path, "candidate")
    functions = candidate.functions if isinstance(candidate.functions, Mapping) else {}
    if functions and all(isinstance(keywords, Mapping) for keywords in functions.values()):
        name, keywords = next(iter(functions.items()))
        return getattr(load_triton("candidate", getattr(file, name), **keywords), name)
    if hasattr(file, "ModelNew"):
        torch.manual_seed(setup.seed)
        return file.ModelNew(*setup.model_args).to(setup.device)
    names = [name for name, value in vars(file).items() if isinstance(value, FunctionType) and name[0] != "_"]
    return _chosen(file, candidate, [name for name in names if getattr(file, name).__module__ == file.__name__])


def _chosen(module: Any, candidate: Candidate, names: list[str]) -> Any:
    """Return the function that the candidate names, or else the only one."""
    names = [candidate.functions] if isinstance(candidate.functions, str) else names
    if len(names) != 1:
        raise JitLoadError(f"it has {len(names)} functions ({', '.join(names) or 'none'}): name one, functions='name'")
    return getattr(module, names[0])


def import_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as the module `name`."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102  it is there to be run
    return module


# ---- what a candidate might do ---------------------------------------------------------------------------------------


def _watched() -> dict[tuple[str, str], Any]:
    """Return the public functions and classes that a candidate might replace, by the names of owner and attribute."""
    found: dict[tuple[str, str], Any] = {}
    for name in _WATCHED:
        module, _, attribute = name.rpartition(".")
        owner: Any = sys.modules.get(name) or getattr(sys.modules.get(module), attribute, None)
        owners = reversed(owner.__mro__[:-1]) if isinstance(owner, type) else [owner] if owner else []
        for names in map(vars, owners):
            found.update(((name, a), value) for a, value in names.items() if callable(value) and not a.startswith("__"))
    return found


def operators_of(call: Callable[[], Any], *, in_all_threads: bool) -> tuple[Any, frozenset[str]]:
    """Return the result of a call, and torch's operators that compute something meanwhile.

    Operators on single numbers do not count, such as that which counts the calls of a `BatchNorm2d`.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler would print
    config = _ExperimentalConfig(profile_all_threads=in_all_threads)
    with _profiling, profile(record_shapes=True, experimental_config=config) as record, torch.no_grad():
        result = call()
    large = (e for e in record.function_events if any(math.prod(shape) > 1 for shape in e.input_shapes if shape))
    names = {event.name.removeprefix("aten::").rstrip("_") for event in large} - _TRIVIAL
    return result, frozenset(_FAMILY.sub(r"\1", _PRODUCT.sub("product", name)) for name in names)
