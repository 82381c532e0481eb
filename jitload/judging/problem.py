"""What candidates have to compute: inputs that are new at each call, and the right results, both in the judge."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from jitload.errors import JitLoadError, LaunchSpecError, MismatchError
from jitload.judging.child import import_file, operators_of
from jitload.judging.devices import HOST, Host
from jitload.judging.records import GUARD, Rejected, Setup, TensorSpec, bytes_of, kind_of
from jitload.measuring.difference import Tolerance, agrees, check_agrees, find_differences
from jitload.measuring.memory import same_bits
from jitload.request.arguments import read_functions

_PLACES = GUARD, GUARD + GUARD // 2  # where a tensor begins in its slot: few, so that addresses come again
_NOISE = 1 << 16  # bytes of random data, which are repeated
_LOOSE = 0.01  # the relative and the absolute difference that KernelBench allows
_LONGEST_DELAY_MS = 200


class Case(NamedTuple):
    """Inputs and the right results."""

    starts: tuple[int, ...]  # where the tensors among the arguments begin in the shared memory
    sent: Any  # a copy of what was written there
    expected: list[Any]
    reference_us: float


class Source(NamedTuple):
    """A reference as the caller passes it."""

    reference: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    functions: Any = None  # the launches of candidates that are kernels
    model_args: tuple[Any, ...] = ()
    seed: int = 0  # of the weights of a model
    device: str = ""  # where the arguments of a model have to be. A function gets them where they are


class Problem:
    """A reference with its inputs, and `operators`, those of torch that it calls.

    `outputs` are the positions of the arguments that a candidate writes its results to.
    """

    def __init__(self, source: Source, tolerance: Tolerance, limits: tuple[Any, ...]) -> None:
        self.source, self._host_ms = source, 0.0
        self.outputs: tuple[int, ...] = ()
        args, others = self._new_args(), self._new_args()
        tensors = [number for number, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        if not tensors or len(tensors) < sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args)):
            raise JitLoadError("inputs= must return at least one tensor, and none within a list or another object")
        if all(torch.equal(args[number], others[number]) for number in tensors):
            raise JitLoadError(
                "inputs= returned the same values twice, so a candidate could remember its results: let it return "
                "random numbers, without setting a seed"
            )
        before = _clone(args)
        (results, _), self.operators = operators_of(lambda: self._run(args), in_all_threads=False)
        self._changed = tuple(number for number in tensors if not same_bits(args[number], before[number]))
        if not results and not self._changed:
            raise JitLoadError("the reference returns None and changes no argument: let it return the right result")
        self.outputs = tuple(tensors[-len(results) :]) if results else self._changed
        if results and [kind_of(args[n]) for n in self.outputs] != [*map(kind_of, results)]:
            self.outputs = ()
        expected = results or [args[number] for number in self.outputs]
        self._tolerances = [tolerance] * len(expected)
        if not self._computes(before, expected):
            raise JitLoadError(
                "the reference computed two different results from the same inputs, so that no candidate can be right: "
                "let it use no random numbers, and no state that a call changes"
            )
        random = [torch.randint(0, 128, t.shape).to(t) if isinstance(t, torch.Tensor) else t for t in before]
        unread = [n for n in self.outputs if self._computes([*before[:n], random[n], *before[n + 1 :]], expected)]
        if results and len(unread) < len(self.outputs):
            self.outputs, unread = (), []  # they are inputs that only look like the results
        self._poisoned = unread
        if source.device and tolerance == (None, None):
            self._tolerances = [*map(_loose_tolerance, expected, self._run(others)[0])]
        self.setup = Setup(
            *_specs(args, expected), str(args[tensors[0]].device), source.model_args, source.seed, *limits
        )

    def _new_args(self) -> list[Any]:
        """Return arguments as `inputs` makes them, with random numbers that a candidate cannot know."""
        with _seeded(secrets.randbits(63)):
            args = self.source.inputs()
        args, device = args if isinstance(args, tuple | list) else (args,), self.source.device
        return [a.detach().to(device or a.device).contiguous() if isinstance(a, torch.Tensor) else a for a in args]

    def _run(self, args: Sequence[Any], device: Host = HOST) -> tuple[list[Any], float]:
        """Call the reference. Return what it returns, or its outputs, and its time on the device in microseconds."""
        delay_ms = min(1 + 4 * self._host_ms, _LONGEST_DELAY_MS)
        with torch.no_grad():
            returned, us, _ = device.measure(lambda: None, lambda: self.source.reference(*args), delay_ms)
        if device is HOST:
            self._host_ms = us / 1000
        results = [torch.as_tensor(leaf) for leaf in tree_leaves(returned) if leaf is not None]
        return results or [args[number] for number in self.outputs], us

    def _computes(self, args: Sequence[Any], expected: Sequence[Any]) -> bool:
        """Return whether the reference computes these results from copies of arguments."""
        try:
            results, _ = self._run(_clone(args))
        except (RuntimeError, IndexError):  # such as for a wrong index
            return False
        return all(map(agrees, results, expected, self._tolerances))

    def _places(self, starts: tuple[int, ...]) -> Iterator[tuple[int, TensorSpec, slice]]:
        """Yield the positions of the tensors among the arguments, and where they lie in the shared memory."""
        for number, (spec, start) in enumerate(zip(self.setup.arguments, starts, strict=True)):
            if isinstance(spec, TensorSpec):
                yield number, spec, slice(start, start + spec.size)

    def new_case(self, shared: Any, device: Host) -> Case:
        """Compute the right results for new inputs, and only then write these and random bytes to the shared memory."""
        args, specs = self._new_args(), self.setup.arguments
        starts = tuple(s.start + secrets.choice(_PLACES) if isinstance(s, TensorSpec) else 0 for s in specs)
        if _specs(args, ())[0] != specs:
            raise JitLoadError("inputs= must always return the same shapes and numbers")
        noise = torch.frombuffer(bytearray(secrets.token_bytes(_NOISE)), dtype=torch.uint8)
        shared.copy_(noise.repeat(shared.numel() // _NOISE + 1)[: shared.numel()])
        arena = shared[: self.setup.results[0].start]
        sent = arena.clone()
        for number, spec, place in self._places(starts):
            if number not in self._poisoned:
                sent[place].copy_(bytes_of(args[number]))
            elif spec.dtype == "bool":
                sent[place].bitwise_and_(1)
        expected, us = self._run(args, device)
        arena.copy_(sent)  # a process that knew them earlier could be done when its time begins
        return Case(starts, sent, expected, us)

    def check(self, case: Case, shared: Any, name: str, *, has_results: bool) -> None:
        """Compare what the candidate `name` returned, or the outputs that it wrote, with the right results."""
        self._check_unchanged(case, shared)
        results = [(f"result {n}", spec.view(shared, spec.start)) for n, spec in enumerate(self.setup.results)]
        if not has_results:
            if not self.outputs:
                raise Rejected("wrong", "it returns None, and the reference returns its results")
            arguments = self.setup.arguments_in(shared, case.starts)
            results = [(f"argument {number}", arguments[number]) for number in self.outputs]
        try:
            for (label, result), expected, tolerance in zip(results, case.expected, self._tolerances, strict=True):
                check_agrees((name, label, result), ("the reference", expected.cpu()), tolerance, is_sure=True)
        except MismatchError as error:
            raise Rejected("wrong", error.message()) from error

    def _check_unchanged(self, case: Case, shared: Any) -> None:
        """Reject a candidate that changed its inputs, or memory next to tensors."""
        end, written = 0, (*self.outputs, *self._changed)
        for number, spec, place in self._places(case.starts):
            gaps = slice(end, place.start), slice(place.stop, spec.end)
            if not all(torch.equal(shared[gap], case.sent[gap]) for gap in gaps):
                raise Rejected("memory", f"it writes to memory next to argument {number}")
            if number not in written and not torch.equal(shared[place], case.sent[place]):
                raise Rejected("cheat", f"it changes argument {number}, an input")
            end = spec.end


def _specs(args: Sequence[Any], results: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[TensorSpec, ...]]:
    """Return how arguments and results lie in the shared memory, one after another."""
    specs: list[Any] = []
    end = 0
    for value in (*args, *results):
        specs.append(value)
        if isinstance(value, torch.Tensor):
            specs[-1] = TensorSpec(*kind_of(value), value.numel() * value.element_size(), end)
            end = specs[-1].end
    return tuple(specs[: len(args)]), tuple(specs[len(args) :])


def _clone(args: Sequence[Any]) -> list[Any]:
    return [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]


def _loose_tolerance(result: Any, other: Any) -> Tolerance:
    """Return KernelBench's tolerance for a result of a model, or less if results for other inputs hardly differ."""
    if not (result.is_floating_point() or result.is_complex()):
        return Tolerance(None, None)
    spread, size = (find_differences(result, value, 0, 0)[1].mean() for value in (other, torch.zeros_like(result)))
    least = max(1e-4, Tolerance(None, None).of(result.dtype)[0])
    return Tolerance(max(least, min(_LOOSE, _LOOSE * float(spread / size))), min(_LOOSE, _LOOSE * float(spread)))


# ---- reading a reference ---------------------------------------------------------------------------------------------


def read_source(reference: Any, inputs: Any) -> Source:
    """Return the reference for the arguments of `Judge`."""
    functions = None
    if isinstance(reference, Path):
        module: Any = import_file(reference, f"jitload_reference_{reference.stem}")
        if hasattr(module, "Model"):
            device, seed = "cuda" if torch.cuda.is_available() else "cpu", secrets.randbits(32)
            args = tuple(getattr(module, "get_init_inputs", list)())
            with _seeded(seed):
                model = module.Model(*args).to(device)
            return Source(model, module.get_inputs, model_args=args, seed=seed, device=device)
        functions = _read_functions(module, reference)
        reference, inputs = getattr(module, "reference", None), getattr(module, "inputs", None)
    if not callable(reference) or not callable(inputs):
        raise JitLoadError(
            "a Judge needs reference=, a function of the same arguments as the candidates, and inputs=, a function "
            "that returns new arguments; or the path of a file with reference and inputs, or with Model and get_inputs"
        )
    return Source(reference, inputs, functions)


def _read_functions(module: Any, path: Path) -> Any:
    """Return `FUNCTIONS` of a reference's file: launches by names, or keywords of `load_triton` by names."""
    functions = getattr(module, "FUNCTIONS", None)
    try:
        if not isinstance(functions, dict) or not all(isinstance(value, dict) for value in functions.values()):
            read_functions(functions)
    except LaunchSpecError as error:
        raise JitLoadError(f"FUNCTIONS of {path}: {error}") from error
    return functions


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
