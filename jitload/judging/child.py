"""What a candidate's process does: it loads the candidate, and calls it with the tensors that the judge has written.

Nothing here decides anything: the judge has the right results, and its own clock.
"""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
import os
import resource
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, NamedTuple

from jitload import cpp_extension
from jitload.api import load_inline, load_triton
from jitload.errors import CompileError, JitLoadError
from jitload.judging.connection import Layout, TensorSpec, bytes_of, kind_of, view_of
from jitload.judging.devices import call_behind, gpu, host
from jitload.judging.verdict import Candidate
from jitload.request.launch import Launch

_LONGEST_MESSAGE = 20_000  # characters
# What a candidate might replace, so that it seems to be right or fast.
_WATCHED = (
    "builtins", "time", "gc", "json", "torch", "torch.cuda", "torch.Tensor", "torch.nn.functional", "torch.nn.Module",
    "torch.cuda.Event", "torch.testing", "torch.autograd.profiler", "numpy", "cuda.bindings.driver",
    "jitload.measuring.clocks",
    "jitload.judging.child", "jitload.judging.devices", "jitload.judging.connection", "multiprocessing.connection",
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


class Setup(NamedTuple):
    """What a process needs before it gets a candidate."""

    layout: Layout
    device: str
    memory: int
    flushes_l2: bool


class Load(NamedTuple):
    """A request to load a candidate. A model gets arguments, and a seed for its weights."""

    candidate: Candidate
    arch: str
    model_args: tuple[Any, ...]
    seed: int


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


def serve_candidate(connection: Connection, *, memory: int) -> None:
    """Answer the judge's requests until it closes the connection."""
    with suppress(EOFError, ConnectionError):
        process = _Process(connection.recv(), connection, memory)
        process.answer({"ready": os.getpid()})
        while True:
            request = connection.recv()
            try:
                answer = process.load(request) if isinstance(request, Load) else process.call(request)
            except BaseException as error:  # noqa: BLE001  also SystemExit, and whatever a candidate raises
                answer = _describe(error)
            process.answer(answer)


def _describe(error: BaseException) -> dict[str, Any]:
    kind, is_compile = type(error).__name__, isinstance(error, CompileError)
    try:
        message = error.message() if isinstance(error, JitLoadError) else str(error)
    except Exception:  # noqa: BLE001  the candidate's own class
        message = ""
    diagnostics = [d.message for d in error.diagnostics] if isinstance(error, CompileError) else []
    log = error.log if isinstance(error, CompileError) else "".join(traceback.format_exception(error, limit=-8))
    return {
        "failed": kind,
        "is_compile": is_compile or kind in ("CompilationError", "SyntaxError", "IndentationError"),
        "message": message[:_LONGEST_MESSAGE],
        "diagnostics": [text[:_LONGEST_MESSAGE] for text in (*diagnostics[:20], log)],
    }


class _Process:
    def __init__(self, setup: Setup, connection: Connection, memory: int) -> None:
        import torch

        self._layout, self._setup, self._connection = setup.layout, setup, connection
        self._shared = torch.frombuffer(mmap.mmap(memory, setup.layout.size), dtype=torch.uint8)
        self._arenas: dict[int, Any] = {}
        self._function: Callable[..., Any] = self._rehearse
        self._originals: dict[tuple[str, str], Any] = {}
        self._device = host() if setup.device == "cpu" else gpu(setup.device, flushes_l2=setup.flushes_l2)

    def answer(self, answer: dict[str, Any], dumps: Callable[..., str] = json.dumps) -> None:
        """Send an answer to the judge."""
        self._connection.send_bytes(dumps(answer).encode())

    def load(self, request: Load) -> dict[str, Any]:
        """Compile and load the candidate."""
        data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        data += self._setup.memory  # which it may still allocate; what CUDA only reserves does not count
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        self._originals = _snapshot()
        load = {"cuda": _load_cuda, "torch": _load_torch, "triton": _load_triton, "python": _load_python}
        self._function = load[request.candidate.kind](request, self._enter, self._setup.device)
        registers = None
        with suppress(Exception):
            registers = int(self._function.kernel.registers)  # type: ignore[attr-defined]
        return {"loaded": True, "registers": registers, "replaced": self._replaced()}

    def _enter(self, stage: str) -> None:
        self.answer({"stage": stage})

    def _replaced(self) -> list[str]:
        now = _snapshot()
        return [f"{o}.{n}" for (o, n), value in self._originals.items() if now.get((o, n)) is not value][:5]

    def call(self, request: Call) -> dict[str, Any]:
        """Call the candidate once, and copy the arguments and its results to the shared memory."""
        import torch

        device, kind = self._device, request.kind
        device.use_stream()
        if request.arena not in self._arenas:
            self._arenas[request.arena] = torch.empty(self._layout.arena, dtype=torch.uint8, device=self._setup.device)
        arena = self._arenas[request.arena]
        arguments = self._arguments(arena, request.starts)
        if kind == "fake":
            return {"operators": _operators_without_data(self._function, arguments, device.wait)}
        device.clear(arena)  # a call that does not wait for its inputs sees nothing else
        inputs = device.upload(self._shared[: self._layout.arena])
        function = self._function if kind != "rehearse" else self._rehearse

        def write() -> None:
            device.copy(arena, inputs)

        def call() -> Any:
            return function(*arguments)

        with torch.no_grad():
            if kind == "delay":
                (returned, results), facts = call_behind(device, request.delay_ms, write, lambda: (call(), arena))
            else:
                returned, facts = (self._trace if kind == "trace" else self._measure)(write, call)
                results = arena
            facts |= self._copy_results(returned)
            device.copy(self._shared[: self._layout.arena], results)
        return {**facts, "replaced": self._replaced() if kind in ("trace", "delay") else []}

    def _trace(self, write: Callable[[], None], call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
        results: list[Any] = []
        write()
        self._device.wait()
        operators: list[str] = []

        def run() -> None:
            operators.extend(sorted(operators_of(lambda: results.append(call()))))

        everywhere = _operators_everywhere(run)
        self._device.wait()
        return results[0], {"operators": operators, "everywhere": sorted(everywhere)}

    def _measure(self, write: Callable[[], None], call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
        elapsed, late, returned = self._device.measure(write, call)
        return returned, {"us": elapsed, "late_us": late}

    def _rehearse(self, *_: Any) -> list[Any]:
        """Return memory for results, in place of a candidate."""
        import torch

        types = ((spec.shape, getattr(torch, spec.dtype)) for spec in self._layout.results)
        return [torch.empty(shape, dtype=dtype, device=self._setup.device) for shape, dtype in types]

    def _arguments(self, arena: Any, starts: tuple[int, ...]) -> list[Any]:
        places = iter(starts)
        return [view_of(arena, next(places), v) if isinstance(v, TensorSpec) else v for v in self._layout.arguments]

    def _copy_results(self, returned: Any) -> dict[str, Any]:
        """Copy what the candidate returned to the shared memory. Return their number, and what is wrong with them."""
        import torch
        from torch.utils._pytree import tree_leaves

        values, expected = [] if returned is None else tree_leaves(returned), self._layout.results
        if values and len(values) != len(expected):
            return {"problem": f"it returns {len(values)} results, and the reference {len(expected)}"}
        for number, (value, spec) in enumerate(zip(values, expected, strict=False)):
            if not isinstance(value, torch.Tensor) and not spec.shape:
                value = torch.as_tensor(value, dtype=getattr(torch, spec.dtype))  # noqa: PLW2901  a number
            if type(value) not in (torch.Tensor, torch.nn.Parameter):  # a class of its own could compute later
                return {"problem": f"result {number} is no torch.Tensor, but of type {type(value).__name__}"}
            if (kind := kind_of(value)) != (spec.dtype, spec.shape):
                right = f"that of the reference {spec.dtype} of shape {spec.shape}"
                return {"problem": f"result {number} is {kind[0]} of shape {kind[1]}, and {right}"}
            self._device.copy(self._shared[spec.start : spec.start + spec.size], bytes_of(value))
        return {"returned": len(values)}


# ---- kinds of candidates ---------------------------------------------------------------------------------------------

_Enter = Callable[[str], None]


def _load_cuda(request: Load, enter: _Enter, _device: str) -> Any:
    candidate = request.candidate
    enter("compile")
    options = {"functions": candidate.functions, "arch": request.arch, **candidate.options}
    module = load_inline("candidate", cuda_sources=candidate.source, **options)
    return _chosen(module, candidate, list(module))


def _load_torch(request: Load, enter: _Enter, device: str) -> Any:
    candidate, names = request.candidate, request.candidate.functions
    if isinstance(names, Mapping) and any(isinstance(value, Launch) for value in names.values()):
        names = None  # of other candidates, which are kernels
    enter("compile")
    cpp, cuda = (candidate.source, None) if device == "cpu" else ("", candidate.source)
    module = cpp_extension.load_inline("candidate", cpp, cuda, functions=names, **candidate.options)
    public = [name for name in dir(module) if not name.startswith("_")]
    return _chosen(module, candidate, [names] if isinstance(names, str) else list(names or public))


def _load_triton(request: Load, enter: _Enter, _device: str) -> Any:
    candidate = request.candidate
    file = _import(candidate.source, enter)
    enter("compile")
    name = candidate.function or next(iter(candidate.functions))
    keywords = dict(candidate.functions[name])
    kernel = getattr(file, keywords.pop("kernel", name))
    return getattr(load_triton("candidate", kernel, **keywords), kernel.__name__)


def _load_python(request: Load, enter: _Enter, device: str) -> Any:
    """Import a file, and return a `ModelNew`, the named function, or the only public function."""
    import torch

    candidate = request.candidate
    file = _import(candidate.source, enter)
    if not candidate.function and hasattr(file, "ModelNew"):
        torch.manual_seed(request.seed)
        return file.ModelNew(*request.model_args).to(device)
    functions = [
        name for name, value in vars(file).items()
        if isinstance(value, FunctionType) and value.__module__ == file.__name__ and not name.startswith("_")
    ]  # fmt: skip
    if not functions:
        raise JitLoadError("it has neither a class ModelNew nor a public function")
    return _chosen(file, candidate, functions)


def _chosen(module: Any, candidate: Candidate, names: list[str]) -> Any:
    """Return the function that the candidate names, or else the only one."""
    if candidate.function:
        return getattr(module, candidate.function)
    if len(names) != 1:
        raise JitLoadError(f"it has {len(names)} functions ({', '.join(names) or 'none'}): name one with function=")
    return getattr(module, names[0])


def _import(source: str, enter: _Enter) -> ModuleType:
    """Import a text as a module, from a file, where tools look for the source of its functions."""
    enter("load")
    path = Path("candidate.py").absolute()
    path.write_text(source, encoding="utf-8")
    return import_file(path, "candidate")


def import_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- what a candidate might change -----------------------------------------------------------------------------------


def _snapshot() -> dict[tuple[str, str], Any]:
    """Return the public functions and classes that a candidate might replace, by the names of owner and attribute."""
    found: dict[tuple[str, str], Any] = {}
    for name in _WATCHED:
        owner: Any = sys.modules.get(name)
        if owner is None:
            module, _, attribute = name.rpartition(".")
            owner = getattr(sys.modules.get(module), attribute, None)
        owners = reversed(owner.__mro__[:-1]) if isinstance(owner, type) else [owner] if owner else []
        for names in map(vars, owners):
            found.update(((name, a), value) for a, value in names.items() if callable(value) and not a.startswith("__"))
    return found


def operators_of(call: Callable[[], Any]) -> frozenset[str]:
    """Return the names of torch's operators that compute something in a call, which is made without gradients.

    An operator of another library has the library's name before its own. Operators on single numbers do not count, such
    as that which counts the calls of a `BatchNorm2d`.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    names = set[str]()

    class Collector(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            leaves = tree_leaves((args, kwargs, result))
            is_large = any(isinstance(leaf, torch.Tensor) and leaf.numel() > 1 for leaf in leaves)
            if is_large and operator.namespace != "prim":  # such as `prim.device`, which fake tensors call
                names.add(_family(str(operator.overloadpacket).removeprefix("aten.").rstrip("_")))
            return result

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # or torch would import its compiler

    with torch.no_grad(), Collector():  # type: ignore[no-untyped-call]
        call()
    return frozenset(names - _TRIVIAL)


def _family(name: str) -> str:
    if name in _PRODUCTS:
        return "mm"
    return next((family for family in _FAMILIES if family in name and "." not in name), name)


def _operators_everywhere(call: Callable[[], Any]) -> frozenset[str]:
    """Return the names of torch's operators that compute something during a call, in all threads.

    Among them are those that other operators call, and those that `operators_of` is prevented from seeing.
    """
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd.profiler import profile

    try:
        options = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # with an early release of torch, only the thread that makes the call is seen
        options = _ExperimentalConfig()
    with profile(record_shapes=True, experimental_config=options) as record:
        call()
    large = (e for e in record.function_events if any(math.prod(shape) > 1 for shape in e.input_shapes if shape))
    names = {_family(event.name.removeprefix("aten::").rstrip("_")) for event in large}
    return frozenset(names - _TRIVIAL)


def _operators_without_data(function: Any, arguments: Sequence[Any], wait: Callable[[], object]) -> list[str]:
    """Call a function with tensors that have no memory, which only operators of torch accept. Return their names."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty_like(v) if isinstance(v, torch.Tensor) else v for v in arguments]
        names = sorted(operators_of(lambda: function(*fakes)))
    wait()
    return names
