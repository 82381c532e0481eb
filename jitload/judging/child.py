"""What a candidate's process does: it loads the candidate, and calls it with the tensors that the judge has written.

Nothing here decides anything: the judge has the right results, and its own clock. The functions that measure are kept
in local variables, because a candidate may replace those of modules.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from jitload.errors import CompileError, JitLoadError
from jitload.judging.connection import Connection, Layout, TensorSpec, bytes_of, view_of
from jitload.judging.verdict import Candidate
from jitload.measuring.clocks import CudaClock

_LONGEST_MESSAGE = 20_000  # characters
# What a candidate might replace, so that it seems to be right or fast.
_WATCHED = (
    "builtins", "time", "gc", "json", "torch", "torch.cuda", "torch.Tensor", "torch.nn.functional", "torch.nn.Module",
    "torch.cuda.Event", "torch.testing", "numpy", "cuda.bindings.driver", "jitload.measuring.clocks",
    "jitload.judging.child", "jitload.judging.connection",
)  # fmt: skip
# Operators that compute nothing, or that a kernel needs beside it.
_TRIVIAL = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "new_zeros", "full", "full_like",
     "view", "_unsafe_view", "split", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice",
     "select", "as_strided", "detach", "alias", "clone", "copy", "fill", "zero", "_to_copy", "contiguous", "lift_fresh",
     "resize", "narrow", "unbind", "chunk")
)  # fmt: skip
# Operators that can replace each other, and count as `mm`.
_PRODUCTS = frozenset(("matmul", "linear", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"))


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

    Attributes:
        starts: Where the tensors among the arguments begin.
        arena: The number of the memory in which they lie.
        is_check: Whether to find out which functions were replaced.
        counts_operators: Whether to find out which operators of torch are called.
        is_rehearsal: Whether to call a function that does nothing.
    """

    starts: tuple[int, ...]
    arena: int = 0
    is_check: bool = False
    counts_operators: bool = False
    is_rehearsal: bool = False


def serve_candidate(end: Any, *, memory: int) -> None:
    """Answer the judge's requests until it closes the connection."""
    connection = Connection(end)
    with suppress(EOFError, ConnectionError):
        setup = connection.receive_object()
        process = _Process(setup, connection, memory)
        connection.send_answer({"ready": os.getpid()})
        while True:
            request = connection.receive_object()
            connection.send_answer(_guarded(process.load if isinstance(request, Load) else process.call, request))


def _guarded(work: Callable[[Any], dict[str, Any]], request: Any) -> dict[str, Any]:
    """Do the work. If it raises an error, describe it."""
    try:
        return work(request)
    except BaseException as error:  # noqa: BLE001  also SystemExit, and whatever a candidate raises
        return _describe(error)


def _describe(error: BaseException) -> dict[str, Any]:
    kind = type(error).__name__
    try:
        message = error.message() if isinstance(error, JitLoadError) else str(error)
    except Exception:  # noqa: BLE001  the candidate's own class
        message = ""
    diagnostics = [d.message for d in error.diagnostics] if isinstance(error, CompileError) else []
    log = error.log if isinstance(error, CompileError) else "".join(traceback.format_exception(error, limit=-8))
    return {
        "failed": kind,
        "is_compile": isinstance(error, CompileError)
        or kind in ("CompilationError", "SyntaxError", "IndentationError"),
        "message": message[:_LONGEST_MESSAGE],
        "diagnostics": [text[:_LONGEST_MESSAGE] for text in (*diagnostics[:20], log)],
    }


class _Process:
    def __init__(self, setup: Setup, connection: Connection, memory: int) -> None:
        import torch

        self._setup, self._connection = setup, connection
        layout = setup.layout
        self._shared = torch.frombuffer(mmap.mmap(memory, layout.size), dtype=torch.uint8)
        self._arenas: dict[int, Any] = {}
        self._function: Callable[..., Any] = _do_nothing
        self._originals: dict[tuple[str, str], Any] = {}
        if setup.device == "cpu":
            self._time, self._synchronize = _host_timer(), _do_nothing
        else:
            self._time, self._synchronize = _device_timer(setup)

    # ---- loading ---------------------------------------------------------------------------------------------------

    def load(self, request: Load) -> dict[str, Any]:
        """Compile and load the candidate."""
        _limit_memory(self._setup.memory)
        self._originals = _snapshot()
        candidate = request.candidate
        load = {"cuda": _load_cuda, "torch": _load_torch, "triton": _load_triton, "python": _load_python}
        self._function = load[candidate.kind](request, self._enter, self._setup.device)
        registers = None
        with suppress(Exception):
            registers = int(self._function.kernel.registers)  # type: ignore[attr-defined]
        return {"loaded": True, "registers": registers, "replaced": self._replaced()}

    def _enter(self, stage: str) -> None:
        self._connection.send_answer({"stage": stage})

    def _replaced(self) -> list[str]:
        now = _snapshot()
        return [f"{o}.{n}" for (o, n), value in self._originals.items() if now.get((o, n)) is not value][:5]

    # ---- calling ---------------------------------------------------------------------------------------------------

    def call(self, request: Call) -> dict[str, Any]:
        """Call the candidate once, and copy the arguments and its results to the shared memory."""
        import torch
        from torch.utils._pytree import tree_leaves

        layout, device = self._setup.layout, self._setup.device
        shared = self._shared[: layout.arena]
        staging = shared if device == "cpu" else shared.to(device)
        if request.arena not in self._arenas:
            self._arenas[request.arena] = torch.empty(layout.arena, dtype=torch.uint8, device=device)
        arena = self._arenas[request.arena]
        if device != "cpu":
            arena.zero_()  # what a call reads that does not wait for the copy
        arguments = _arguments(arena, request.starts, layout)
        function = _do_nothing if request.is_rehearsal else self._function

        def refresh() -> None:
            _copy(arena, staging)
            self._enter("launch")  # the judge reads its own clock now, and after the call

        if request.counts_operators:
            _copy(arena, staging)
            self._synchronize()
            results: list[Any] = []
            operators = sorted(operators_of(lambda: results.append(function(*arguments))))
            self._synchronize()
            elapsed, late, returned = 0.0, 0.0, results[0]
        else:
            with torch.no_grad():
                elapsed, late, returned = self._time(refresh, lambda: function(*arguments))
                self._enter("launch")
            operators = []
        values = [] if returned is None else tree_leaves(returned)
        problem = self._copy_results(values) if values else ""
        _copy(shared, arena)
        facts = {"us": elapsed, "late_us": late, "operators": operators, "returned": len(values), "problem": problem}
        return {**facts, "replaced": self._replaced() if request.is_check else []}

    def _copy_results(self, values: list[Any]) -> str:
        """Copy the results to the shared memory. Return what is wrong with them."""
        import torch

        expected = self._setup.layout.results
        if len(values) != len(expected):
            return f"it returns {len(values)} results, and the reference {len(expected)}"
        for number, (value, spec) in enumerate(zip(values, expected, strict=True)):
            if not isinstance(value, torch.Tensor) and not spec.shape:
                value = torch.as_tensor(value, dtype=getattr(torch, spec.dtype))  # noqa: PLW2901  a number
            if type(value) not in (torch.Tensor, torch.nn.Parameter):  # a class of its own could compute later
                return f"result {number} is no torch.Tensor, but of type {type(value).__name__}"
            found = str(value.dtype).removeprefix("torch."), tuple(value.shape)
            if found != (spec.dtype, spec.shape):
                right = f"{spec.dtype} of shape {spec.shape}"
                return f"result {number} is {found[0]} of shape {found[1]}, and that of the reference {right}"
            _copy(self._shared[spec.start : spec.start + spec.size], bytes_of(value))
        return ""


def _copy(target: Any, source: Any) -> None:
    """Copy bytes. On the host, use one thread, because torch's threads would take time from the candidate's."""
    if target.is_cuda or source.is_cuda:
        target.copy_(source)
    else:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())


def _do_nothing(*_: Any) -> None:
    """Do nothing, in place of a candidate."""


def _arguments(arena: Any, starts: tuple[int, ...], layout: Layout) -> list[Any]:
    places = iter(starts)
    return [
        view_of(arena, next(places), value) if isinstance(value, TensorSpec) else value for value in layout.arguments
    ]


def _limit_memory(size: int) -> None:
    """Limit the memory that this process may still allocate. What CUDA only reserves does not count."""
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + size, data + size))


# ---- clocks ----------------------------------------------------------------------------------------------------------


def _host_timer() -> Callable[..., tuple[float, float, Any]]:
    now = time.perf_counter_ns

    def measure(refresh: Callable[[], Any], call: Callable[[], Any]) -> tuple[float, float, Any]:
        refresh()
        start = now()
        result = call()
        return (now() - start) / 1000, 0.0, result

    return measure


def _device_timer(setup: Setup) -> tuple[Callable[..., tuple[float, float, Any]], Callable[[], None]]:
    """Return a function that measures with events of the driver's, and one that waits for the device."""
    import torch

    from jitload.cuda.bindings import import_bindings

    torch.zeros(1, device=setup.device)
    driver = SimpleNamespace(**vars(import_bindings("driver")))  # a copy, which survives a candidate's changes
    number = torch.device(setup.device).index or 0
    clock = CudaClock(driver, number, 0, flushes_l2=setup.flushes_l2, resources=ExitStack())
    now, reset = time.perf_counter_ns, driver.cuCtxResetPersistingL2Cache

    def measure(refresh: Callable[[], Any], call: Callable[[], Any]) -> tuple[float, float, Any]:
        results: list[Any] = []
        clock.wait()
        reset()
        elapsed = clock.time_once(refresh, lambda: results.append(call()))
        start = now()
        clock.wait()  # work in other streams may go on
        return elapsed, (now() - start) / 1000, results[0]

    return measure, clock.wait


# ---- kinds of candidates ---------------------------------------------------------------------------------------------

_Enter = Callable[[str], None]


def _load_cuda(request: Load, enter: _Enter, _device: str) -> Any:
    from jitload.api import load_inline

    candidate = request.candidate
    enter("compile")
    options = {"functions": candidate.functions, "arch": request.arch, **candidate.options}
    module = load_inline("candidate", cuda_sources=candidate.source, **options)
    return _chosen(module, candidate, list(module))


def _load_torch(request: Load, enter: _Enter, device: str) -> Any:
    from jitload.cpp_extension import load_inline

    candidate = request.candidate
    enter("compile")
    names = candidate.functions
    cpp, cuda = (candidate.source, None) if device == "cpu" else ("", candidate.source)
    module = load_inline("candidate", cpp, cuda, functions=names, **candidate.options)
    public = [name for name in dir(module) if not name.startswith("_")]
    return _chosen(module, candidate, [names] if isinstance(names, str) else list(names or public))


def _load_triton(request: Load, enter: _Enter, _device: str) -> Any:
    from jitload.api import load_triton

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
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
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
    """Return the names of torch's operators that compute something in a call, which is made without gradients."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    names = set[str]()

    class Collector(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(operator.overloadpacket).rpartition(".")[2].rstrip("_")
            names.add("mm" if name in _PRODUCTS else name)
            return operator(*args, **(kwargs or {}))

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # or torch would import its compiler

    with torch.no_grad(), Collector():  # type: ignore[no-untyped-call]
        call()
    return frozenset(names - _TRIVIAL)
