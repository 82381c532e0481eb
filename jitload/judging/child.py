"""What a candidate's process does: it loads the candidate, and calls it with the tensors that the judge has written.

Nothing here decides anything: the judge has the right results, and its own clock.
"""

from __future__ import annotations

import json
import math
import mmap
import pickle
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jitload import cpp_extension
from jitload.api import load_inline
from jitload.errors import CompileError, JitLoadError
from jitload.judging.devices import HOST, Device, call_behind, gpu, measure
from jitload.judging.records import LONGEST_MESSAGE, Candidate, Setup, bytes_of, kind_of, problem_of
from jitload.request.launch import Launch
from jitload.triton_api import load_triton

_LONGEST_TEXT = 20_000  # characters
_COMPILE_ERRORS = ("CompilationError", "SyntaxError", "IndentationError")  # of Triton and Python
# What a candidate might replace, so that it seems to be right or fast.
_WATCHED = (
    "builtins", "time", "gc", "json", "torch", "torch.cuda", "torch.Tensor", "torch.nn.functional", "torch.nn.Module",
    "torch.cuda.Event", "torch.testing", "torch.autograd.profiler", "numpy", "cuda.bindings.driver",
    "jitload.measuring.clocks",
    "jitload.judging.child", "jitload.judging.devices", "jitload.judging.records",
)  # fmt: skip
# Operators that compute nothing, or that a kernel needs beside it.
_TRIVIAL = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "new_zeros", "full", "full_like",
     "view", "_unsafe_view", "split", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice",
     "select", "as_strided", "detach", "alias", "clone", "copy", "fill", "zero", "_to_copy", "contiguous", "lift_fresh",
     "resize", "narrow", "unbind", "chunk")
)  # fmt: skip
# Operators that can replace each other count as one: products, and those whose names have a word in common, such as
# `native_batch_norm`, `cudnn_batch_norm` and `native_group_norm`.
_PRODUCTS = frozenset(("matmul", "linear", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"))
_FAMILIES = ("conv", "norm", "softmax", "pool", "attention", "lstm", "gru", "rnn")


def serve_candidate(connection: socket.socket, memory: int, setup: Setup) -> None:
    """Answer the judge's requests, which are methods and their arguments, until it closes the connection."""
    with suppress(ConnectionError):
        process = _Process(connection, memory, setup)
        process.answer({})
        while request := connection.recv(LONGEST_MESSAGE):
            method, arguments = pickle.loads(request)  # noqa: S301  from the judge
            try:
                answer = getattr(process, method)(*arguments)
            except BaseException as error:  # noqa: BLE001  also SystemExit, and whatever a candidate raises
                answer = _describe(error)
            process.answer(answer)


def _describe(error: BaseException) -> dict[str, Any]:
    kind, message = type(error).__name__, ""
    with suppress(Exception):  # of the candidate's own class
        message = error.message() if isinstance(error, JitLoadError) else str(error)
    texts = ["".join(traceback.format_exception(error, limit=-8))]
    if isinstance(error, CompileError):
        texts = [*(diagnostic.message for diagnostic in error.diagnostics[:20]), error.log]
        message = texts[0] if len(texts) > 1 else message
    return {
        "error": _shorten(f"{kind}: {message.strip()}" if message else kind),
        "is_compile": isinstance(error, CompileError) or kind in _COMPILE_ERRORS,
        "diagnostics": [_shorten(text, _LONGEST_TEXT // len(texts)) for text in texts],
    }


def _shorten(text: str, length: int = _LONGEST_TEXT) -> str:
    """Return the beginning of a text, without the control characters, each of which JSON writes as six bytes."""
    return re.sub(r"[\0-\x08\v\x0e-\x1f]", "?", text[:length])


class _Process:
    def __init__(self, connection: socket.socket, memory: int, setup: Setup) -> None:
        self._setup, self._connection = setup, connection
        self._shared = torch.frombuffer(mmap.mmap(memory, 0), dtype=torch.uint8)
        self._arguments = self._shared[: setup.results[0].start]
        self._function: Callable[..., Any] = self._rehearse
        self._originals: dict[tuple[str, str], Any] = {}
        self._device = HOST if setup.device == "cpu" else gpu(setup.device, flushes_l2=setup.flush_l2)
        self._arenas = torch.empty(2, len(self._arguments), dtype=torch.uint8, device=setup.device)

    def answer(self, answer: dict[str, Any], dumps: Callable[..., str] = json.dumps) -> None:
        """Send an answer to the judge."""
        self._connection.send(dumps(answer, ensure_ascii=False).encode(errors="replace"))

    def load(self) -> dict[str, Any]:
        """Compile and load the candidate, which is in a file."""
        candidate: Candidate = pickle.loads(Path("candidate").read_bytes())  # noqa: S301  the judge wrote it
        self._originals = _watched()
        self._function = (_load_text if candidate.kind in ("cuda", "torch") else _load_file)(candidate, self._setup)
        answer: dict[str, Any] = {"replaced": self._replaced()}
        with suppress(Exception):
            answer["registers"] = int(self._function.kernel.registers)  # type: ignore[attr-defined]
        return answer

    def _replaced(self) -> list[str]:
        now = _watched()
        return [f"{o}.{n}" for (o, n), value in self._originals.items() if now.get((o, n)) is not value][:5]

    def call(self, kind: str, starts: tuple[int, ...], arena_number: int, delay_ms: int) -> dict[str, Any]:
        """Call the candidate once, and copy the arguments and its results to the shared memory.

        `measure` measures the call, and `rehearse` that of a function that computes nothing. `trace` finds out which
        operators of torch are called. `delay` writes the inputs only after the candidate has launched its work, or
        after `delay_ms` milliseconds.
        """
        device, arena = self._device, self._arenas[arena_number]
        function = self._rehearse if kind == "rehearse" else self._function
        run: Any = {"trace": _trace, "delay": partial(call_behind, delay_ms=delay_ms)}.get(kind, measure)
        device.use_stream()
        device.clear(arena)  # a call that does not wait for its inputs sees nothing else
        args, inputs = self._setup.arguments_in(arena, starts), device.upload(self._arguments)
        with torch.no_grad():
            write, call = lambda: device.copy(arena, inputs), lambda: (function(*args), arena)
            (returned, results), answer = run(device, write, call)
            answer |= self._copy_results(returned)
            device.copy(self._arguments, results)
        return {**answer, "replaced": self._replaced() if kind in ("trace", "delay") else []}

    def call_without_data(self, starts: tuple[int, ...]) -> dict[str, Any]:
        """Call the candidate with tensors that have no memory, which only operators of torch accept."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True):
            args = self._setup.arguments_in(self._arenas[0], starts)
            fakes = [torch.empty_like(v) if isinstance(v, torch.Tensor) else v for v in args]
            _, names = operators_of(lambda: self._function(*fakes))
        self._device.clock.wait()
        return {"operators": sorted(names)}

    def _rehearse(self, *_: Any) -> list[Any]:
        """Return memory for results, in place of a candidate."""
        setup = self._setup
        return [torch.empty(s.shape, dtype=getattr(torch, s.dtype), device=setup.device) for s in setup.results]

    def _copy_results(self, returned: Any) -> dict[str, Any]:
        """Copy what the candidate returned to the shared memory. Return whether it did, or what is wrong with it."""
        values, expected = [] if returned is None else tree_leaves(returned), self._setup.results
        if values and len(values) != len(expected):
            return {"problem": f"it returns {len(values)} results, and the reference {len(expected)}"}
        for number, (value, spec) in enumerate(zip(values, expected, strict=False)):
            if not isinstance(value, torch.Tensor) and not spec.shape:
                value = torch.as_tensor(value, dtype=getattr(torch, spec.dtype))  # noqa: PLW2901  a number
            if type(value) not in (torch.Tensor, torch.nn.Parameter):  # a class of its own could compute later
                return {"problem": f"result {number} is no torch.Tensor, but of type {type(value).__name__}"}
            if problem := problem_of(value):
                return {"problem": f"result {number} {problem}"}
            if (kind := kind_of(value)) != (spec.dtype, spec.shape):
                right = f"that of the reference {spec.dtype} of shape {spec.shape}"
                return {"problem": f"result {number} is {kind[0]} of shape {kind[1]}, and {right}"}
            self._device.copy(self._shared[spec.start : spec.start + spec.size], bytes_of(value))
        return {"has_results": bool(values)}


# ---- kinds of candidates ---------------------------------------------------------------------------------------------


def _load_text(candidate: Candidate, setup: Setup) -> Any:
    """Compile C++, and return its function."""
    functions, is_on_cpu = candidate.functions, setup.device == "cpu"
    if candidate.kind == "cuda":
        options = {"functions": functions, "arch": "cpu" if is_on_cpu else "native", **candidate.options}
        module = load_inline("candidate", cuda_sources=candidate.source, **options)
        return _chosen(module, candidate, list(module))
    if isinstance(functions, Mapping) and any(isinstance(value, Launch) for value in functions.values()):
        functions = None  # of other candidates, which are kernels
    cpp, cuda = (candidate.source, None) if is_on_cpu else ("", candidate.source)
    torch_module = cpp_extension.load_inline("candidate", cpp, cuda, functions=functions, **candidate.options)
    public = [name for name in dir(torch_module) if not name.startswith("_")]
    return _chosen(torch_module, candidate, [functions] if isinstance(functions, str) else list(functions or public))


def _load_file(candidate: Candidate, setup: Setup) -> Any:
    """Import a Python file, and return its Triton kernel, its `ModelNew`, or the named or only public function."""
    path = Path("candidate.py").absolute()  # where tools look for the source of its functions
    path.write_text(candidate.source, encoding="utf-8")
    file = import_file(path, "candidate")
    if candidate.kind == "triton":
        name = candidate.function or next(iter(candidate.functions))
        keywords = dict(candidate.functions[name])
        kernel = getattr(file, keywords.pop("kernel", name))
        return getattr(load_triton("candidate", kernel, **keywords), kernel.__name__)
    if not candidate.function and hasattr(file, "ModelNew"):
        torch.manual_seed(setup.seed)
        return file.ModelNew(*setup.model_args).to(setup.device)
    names = [name for name, value in vars(file).items() if isinstance(value, FunctionType) and name[0] != "_"]
    names = [name for name in names if getattr(file, name).__module__ == file.__name__]
    if not names:
        raise JitLoadError("it has neither a class ModelNew nor a public function")
    return _chosen(file, candidate, names)


def _chosen(module: Any, candidate: Candidate, names: list[str]) -> Any:
    """Return the function that the candidate names, or else the only one."""
    if not candidate.function and len(names) != 1:
        raise JitLoadError(f"it has {len(names)} functions ({', '.join(names) or 'none'}): name one with function=")
    return getattr(module, candidate.function or names[0])


def import_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as the module `name`."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102  it is there to be run
    return module


# ---- what a candidate might change -----------------------------------------------------------------------------------


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


def _trace(device: Device, write: Callable[[], object], call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    write()
    device.clock.wait()
    (returned, operators), everywhere = _operators_everywhere(lambda: operators_of(call))
    device.clock.wait()
    return returned, {"operators": sorted(operators), "everywhere": sorted(everywhere)}


def operators_of(call: Callable[[], Any]) -> tuple[Any, frozenset[str]]:
    """Return the result of a call, which is made without gradients, and torch's operators that compute something in it.

    An operator of another library has the library's name before its own. Operators on single numbers do not count, such
    as that which counts the calls of a `BatchNorm2d`.
    """
    names = set[str]()

    class Collector(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            leaves = tree_leaves((args, kwargs, result))
            is_large = any(isinstance(leaf, torch.Tensor) and leaf.numel() > 1 for leaf in leaves)
            if is_large and operator.namespace != "prim":  # such as `prim.device`, which fake tensors call
                names.add(str(operator.overloadpacket).removeprefix("aten."))
            return result

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # or torch would import its compiler

    with torch.no_grad(), Collector():  # type: ignore[no-untyped-call]
        result = call()
    return result, _families(names)


def _families(names: Iterable[str]) -> frozenset[str]:
    """Return one name for operators that can replace each other, and none for those that compute nothing."""
    families = set()
    for name in {name.rstrip("_") for name in names}:
        family = next((family for family in _FAMILIES if family in name and "." not in name), name)
        families.add("mm" if name in _PRODUCTS else family)
    return frozenset(families - _TRIVIAL)


def _operators_everywhere(call: Callable[[], Any]) -> tuple[Any, frozenset[str]]:
    """Return the result of a call, and torch's operators that compute something meanwhile, in all threads.

    Among them are those that other operators call, and those that `operators_of` is prevented from seeing.
    """
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd.profiler import profile

    try:
        options = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # with an early release of torch, only the thread that makes the call is seen
        options = _ExperimentalConfig()
    with profile(record_shapes=True, experimental_config=options) as record:
        result = call()
    large = (e for e in record.function_events if any(math.prod(shape) > 1 for shape in e.input_shapes if shape))
    return result, _families(event.name.removeprefix("aten::") for event in large)
