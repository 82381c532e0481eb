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
            except BaseException as error:  # noqa: BLE001  also SystemExit, and whatever a candidate raises
                answer = error.facts if isinstance(error, Rejected) else _describe(error)
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
        self._memory, self._setup = memory, setup

    def start(self) -> dict[str, Any]:
        """Start CUDA, and make memory for calls."""
        self._shared = torch.frombuffer(mmap.mmap(self._memory, 0), dtype=torch.uint8)
        self._arguments = self._shared[: self._setup.results[0].region.start]
        self._measure = open_device(self._setup.device, ExitStack(), flushes_l2=self._setup.flush_l2)
        self._arenas = [torch.empty_like(self._arguments, device=self._setup.device) for _ in range(2)]
        return {}

    def load(self) -> dict[str, Any]:
        """Compile and load the candidate, which is in a file."""
        candidate: Candidate = pickle.loads(Path("candidate").read_bytes())  # noqa: S301  the judge wrote it
        self._originals = _watched()
        self._function = _load(candidate, self._setup)
        with suppress(Exception):
            return {"registers": int(self._function.kernel.registers)}
        return {}

    def call(self) -> dict[str, Any]:
        """Call the candidate with new inputs, in other memory than those of the last call, and measure this.

        Addresses come again, so that a result that is cached by address is wrong.
        """
        self._arenas.reverse()
        arena, args = self._arenas[0], self._setup.arguments_in(self._arenas[0])
        with torch.no_grad():
            measured = self._measure(lambda: (self._function(*args), arena), arena, self._arguments)
        self._results, us, busy_us = measured
        return {"us": us, "busy_us": busy_us}

    def trace(self) -> dict[str, Any]:
        """Call the candidate, and find out which operators of torch it calls."""
        answer, operators = operators_of(self.call, in_all_threads=True)
        return {**answer, "operators": " ".join(operators)}

    def fetch(self) -> dict[str, Any]:
        """Copy the results, which are returned or written to the outputs, and the arguments to the shared memory."""
        now = _watched()
        if replaced := [name for name, value in self._originals.items() if now.get(name) is not value]:
            raise Rejected("cheat", f"it replaces {', '.join(replaced[:5])}")
        returned, arena = self._results
        args, expected = self._setup.arguments_in(arena), self._setup.results
        values = [args[n] for n in self._setup.outputs] if returned is None else tree_leaves(returned)
        if len(values) != len(expected):
            raise Rejected("wrong", f"it returns {len(values)} results, and the reference {len(expected)}")
        for number, (value, spec) in enumerate(zip(values, expected, strict=True)):
            if not isinstance(value, torch.Tensor) and not spec.shape:
                value = torch.as_tensor(value, dtype=getattr(torch, spec.dtype))  # noqa: PLW2901  a number
            if (kind := kind_of(value)) != (spec.dtype, spec.shape):
                right = f"that of the reference {spec.dtype} of shape {spec.shape}"
                raise Rejected("wrong", f"result {number} is {kind[0]} of shape {kind[1]}, and {right}")
            self._shared[spec.region].copy_(bytes_of(value))
        self._arguments.copy_(arena)
        return {}


# ---- loading a candidate ---------------------------------------------------------------------------------------------


def _load(candidate: Candidate, setup: Setup) -> Any:
    """Compile or import a candidate, and return the function that it names, or else its only one."""
    text, functions, is_on_cpu = candidate.source, candidate.functions, setup.device == "cpu"
    keywords = [*functions.values()] if isinstance(functions, Mapping) else []
    if _PYTHON.search(text):
        path = Path("candidate.py").absolute()  # where tools look for the source of its functions
        path.write_text(text, encoding="utf-8")
        module: Any = import_file(path, "candidate")
        if keywords and isinstance(keywords[0], Mapping):
            name = next(iter(functions))
            return getattr(load_triton("candidate", getattr(module, name), **keywords[0]), name)
        if hasattr(module, "ModelNew"):
            torch.manual_seed(setup.seed)
            return module.ModelNew(*setup.model_args).to(setup.device)
        names = [n for n, f in vars(module).items() if isinstance(f, FunctionType) and f.__module__ == "candidate"]
        names = [name for name in names if not name.startswith("_")]
    elif _TORCH_HEADER.search(text):
        cpp, cuda = (text, None) if is_on_cpu else ("", text)
        if any(isinstance(launch, Launch) for launch in keywords):
            functions = None  # of other candidates, which are kernels
        module = cpp_extension.load_inline("candidate", cpp, cuda, functions=functions, **candidate.options)
        names = list(functions or [name for name in dir(module) if not name.startswith("_")])
    else:
        options = {"functions": functions, "arch": "cpu" if is_on_cpu else "native", **candidate.options}
        module = load_inline("candidate", cuda_sources=text, **options)
        names = list(module)
    names = [functions] if isinstance(functions, str) else names
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


def _watched() -> dict[str, Any]:
    """Return the public functions and classes that a candidate might replace, by their names."""
    functions: dict[str, Any] = {}
    for name in _WATCHED:
        module, _, attribute = name.rpartition(".")
        owner: Any = sys.modules.get(name) or getattr(sys.modules.get(module), attribute, None)
        owners = reversed(owner.__mro__[:-1]) if isinstance(owner, type) else [owner] if owner else []
        for names in map(vars, owners):
            functions.update((f"{name}.{a}", f) for a, f in names.items() if callable(f) and not a.startswith("__"))
    return functions


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
