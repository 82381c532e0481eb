"""What candidates have to compute: inputs that are new at each call, and the right results, both in the judge."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from jitload.errors import JitLoadError, MismatchError
from jitload.judging.child import import_file, operators_of
from jitload.judging.records import (
    ALIGNMENT,
    GUARD,
    Answer,
    Rejected,
    Setup,
    TensorSpec,
    bytes_of,
    kind_of,
    problem_of,
)
from jitload.measuring.benchmark import Options, open_clock
from jitload.measuring.clocks import HOST_CLOCK, Clock
from jitload.measuring.difference import Tolerance, agrees, check_agrees, find_differences
from jitload.measuring.memory import same_bits

_NOISE = 1 << 16  # bytes of random data, which are repeated
_LOOSE = 0.01  # the relative and the absolute difference that KernelBench allows


class Case(NamedTuple):
    """Inputs and the right results."""

    starts: tuple[int, ...]  # where the tensors among the arguments begin in the shared memory
    sent: Any  # a copy of what was written there
    expected: list[Any]
    reference_us: float


class Source(NamedTuple):
    """A reference as the caller passes it. `is_model` says whether it is a problem in the form of KernelBench."""

    reference: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    functions: Any = None  # the launches of candidates that are kernels
    model_args: tuple[Any, ...] = ()
    seed: int = 0  # of the model's weights
    device: str = ""  # where the arguments have to be, or "" for where they are
    is_model: bool = False


class Problem:
    """A reference with its inputs, and `operators`, those of torch that it calls.

    `outputs` are the positions of the arguments that a candidate writes its results to.
    """

    def __init__(
        self, source: Source, outputs: Sequence[str | int] | None, tolerance: Tolerance, limits: Mapping[str, Any]
    ) -> None:
        self.source, is_chosen = source, tolerance != (None, None)
        self._tolerance = Tolerance(*(_LOOSE if v is None else v for v in tolerance)) if source.is_model else tolerance
        args, before = self._first_args()
        device = next(str(arg.device) for arg in args if isinstance(arg, torch.Tensor))
        self._names = _argument_names(source.reference, len(args))
        self.outputs: tuple[int, ...] = ()
        (results, _), self.operators = operators_of(lambda: self._run(args))
        pairs = enumerate(zip(args, before, strict=True))
        self._changed = tuple(n for n, (arg, old) in pairs if isinstance(arg, torch.Tensor) and not same_bits(arg, old))
        self.outputs = self._find_outputs(args, results, outputs)
        expected = results or [args[number] for number in self.outputs]
        if not self._agree(self._run(_clone(before))[0], expected):
            raise JitLoadError(
                "the reference computed two different results from the same inputs, so that no candidate can be right: "
                "let it use no random numbers, and no state that a call changes"
            )
        self._poisoned = [n for n in self.outputs if not self._reads(before, n, expected)]
        if results and outputs is None and len(self._poisoned) < len(self.outputs):
            self.outputs, self._poisoned = (), []  # they are inputs that only look like the results
        if source.is_model and not is_chosen:
            self._tolerance = self._find_tolerance(results)
        self.setup = Setup(*_specs(args, expected), device, source.model_args, source.seed, **limits)

    def _first_args(self) -> tuple[list[Any], list[Any]]:
        """Return arguments and a copy of them. Check that they are new at each call."""
        args = self._new_args()
        count = sum(isinstance(arg, torch.Tensor) for arg in args)
        if not count or count < sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args)):
            raise JitLoadError("inputs= must return at least one tensor, and none within a list or another object")
        pairs = zip(args, self._new_args(), strict=True)
        if all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor)):
            raise JitLoadError(
                "inputs= returned the same values twice, so a candidate could remember its results: let it return "
                "random numbers, without setting a seed"
            )
        return args, _clone(args)

    def _new_args(self) -> list[Any]:
        """Return arguments as `inputs` makes them, with random numbers that a candidate cannot know."""
        with _seeded(secrets.randbits(63)):
            args = self.source.inputs()
        args = args if isinstance(args, tuple | list) else (args,)
        _check_dense("inputs=", args)
        args = [torch.from_numpy(arg) if type(arg).__module__ == "numpy" and arg.ndim else arg for arg in args]
        device = self.source.device
        return [a.detach().to(device or a.device).contiguous() if isinstance(a, torch.Tensor) else a for a in args]

    def clock(self) -> AbstractContextManager[Clock]:
        """Return a context manager with a clock that measures the reference."""
        return open_clock((), self._new_args(), Options(flush_l2=self.setup.flush_l2))

    def _run(self, args: Sequence[Any], clock: Clock = HOST_CLOCK) -> tuple[list[Any], float]:
        """Call the reference. Return what it returns, or its outputs, and how long it took by the clock."""
        returned: list[Any] = []
        with torch.no_grad():
            elapsed, _ = clock.time_once(lambda: None, lambda: returned.append(self.source.reference(*args)))
        leaves = [] if returned[0] is None else tree_leaves(returned[0])
        _check_dense("the reference", leaves)
        results = [leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf) for leaf in leaves]
        return results or [args[number] for number in self.outputs], elapsed

    def _find_outputs(
        self, args: Sequence[Any], results: Sequence[Any], outputs: Sequence[str | int] | None
    ) -> tuple[int, ...]:
        """Return the positions of outputs: the named ones, those that the reference changes, or the last tensors."""
        tensors = [number for number, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        if outputs is not None:
            names = [outputs] if isinstance(outputs, str | int) else list(outputs)
            if unknown := [name for name in names if name not in self._names and name not in tensors]:
                raise JitLoadError(f"outputs={unknown[0]!r}: the reference has the arguments {', '.join(self._names)}")
            return tuple(name if isinstance(name, int) else self._names.index(name) for name in names)
        if not results:
            if not self._changed:
                raise JitLoadError("the reference returns None and changes no argument: let it return the right result")
            return self._changed
        if self.source.is_model:
            return ()
        last = tuple(tensors[-len(results) :])
        return last if [kind_of(args[n]) for n in last] == [*map(kind_of, results)] else ()

    def _reads(self, args: Sequence[Any], output: int, expected: Sequence[Any]) -> bool:
        """Return whether the results of the reference depend on the values in one of its outputs."""
        values = _clone(args)
        _fill_at_random(values[output])
        try:
            return not self._agree(self._run(values)[0], expected)
        except (RuntimeError, IndexError):  # such as for a wrong index
            return True

    def _agree(self, first: Sequence[Any], second: Sequence[Any]) -> bool:
        pairs = zip(map(_sample, first), map(_sample, second), strict=True)
        return all(agrees(a, b, self._tolerance) for a, b in pairs)

    def _find_tolerance(self, results: Sequence[Any]) -> Tolerance:
        """Return the tolerance for a model: `_LOOSE`, or less if results for other inputs then seem to be equal."""
        least = max([1e-4, *(Tolerance(None, None).of(result.dtype)[0] for result in results)])
        others, _ = self._run(self._new_args())
        for exponent in range(2, 9):
            tolerance = Tolerance(max(10.0**-exponent, least), 10.0**-exponent)
            if all(_are_told_apart(a, b, tolerance) for a, b in zip(results, others, strict=True)):
                return tolerance
        return self._tolerance  # the results hardly depend on the inputs

    def starts(self) -> tuple[int, ...]:
        """Return random places for the tensors among the arguments."""
        places = range(GUARD, 2 * GUARD, ALIGNMENT)
        specs = self.setup.arguments
        return tuple(s.start + secrets.choice(places) if isinstance(s, TensorSpec) else 0 for s in specs)

    def _places(self, starts: tuple[int, ...]) -> Iterator[tuple[int, TensorSpec, slice]]:
        """Yield the positions of the tensors among the arguments, and where they lie in the shared memory."""
        for number, (spec, start) in enumerate(zip(self.setup.arguments, starts, strict=True)):
            if isinstance(spec, TensorSpec):
                yield number, spec, slice(start, start + spec.size)

    def new_case(self, shared: Any, starts: tuple[int, ...], clock: Clock = HOST_CLOCK) -> Case:
        """Compute the right results for new inputs, and only then write these and random bytes to the shared memory."""
        args = self._new_args()
        for name, spec, right in zip(self._names, _specs(args, ())[0], self.setup.arguments, strict=True):
            if spec != right:
                raise JitLoadError(f"inputs= must always return the same shapes and numbers; {name!r} differs")
        noise = torch.frombuffer(bytearray(secrets.token_bytes(_NOISE)), dtype=torch.uint8)
        shared.copy_(noise.repeat(shared.numel() // _NOISE + 1)[: shared.numel()])
        arena = shared[: self.setup.results[0].start]
        sent = arena.clone()
        for number, spec, place in self._places(starts):
            if number not in self._poisoned:
                sent[place].copy_(bytes_of(args[number]))
            elif spec.dtype == "bool":
                sent[place].bitwise_and_(1)
        expected, elapsed = self._run(args, clock)
        arena.copy_(sent)  # a process that knew them earlier could be done when its time begins
        return Case(starts, sent, expected, elapsed)

    def check(self, case: Case, shared: Any, answer: Answer, name: str) -> None:
        """Compare what the candidate `name` returned, or the outputs that it wrote, with the right results."""
        self._check_unchanged(case, shared)
        if answer.problem:
            raise Rejected("wrong", answer.problem)
        if not answer.has_results and not self.outputs:
            raise Rejected("wrong", "it returns None, and the reference returns its results")
        results = [(f"result {n}", spec.view(shared, spec.start)) for n, spec in enumerate(self.setup.results)]
        if not answer.has_results:
            arguments = self.setup.arguments_in(shared, case.starts)
            results = [(self._names[number], arguments[number]) for number in self.outputs]
        try:
            for (label, result), expected in zip(results, case.expected, strict=True):
                check_agrees((name, label, result), ("the reference", expected.cpu()), self._tolerance, is_sure=True)
        except MismatchError as error:
            raise Rejected("wrong", error.message()) from error

    def _check_unchanged(self, case: Case, shared: Any) -> None:
        """Reject a candidate that changed its inputs, or memory next to tensors."""
        end, written = 0, (*self.outputs, *self._changed)
        for number, spec, place in self._places(case.starts):
            gaps = slice(end, place.start), slice(place.stop, spec.end)
            if not all(torch.equal(shared[gap], case.sent[gap]) for gap in gaps):
                raise Rejected("memory", f"it writes to memory next to {self._names[number]!r}")
            if number not in written and not torch.equal(shared[place], case.sent[place]):
                raise Rejected("cheat", f"it changes its input {self._names[number]!r}")
            end = spec.end


def _argument_names(reference: Any, count: int) -> tuple[str, ...]:
    """Return the names of the reference's parameters, or others if these are not its arguments one by one."""
    with suppress(TypeError, ValueError):
        names = inspect.signature(getattr(reference, "forward", reference)).bind(*range(count)).arguments
        if len(names) == count:
            return tuple(names)
    return tuple(f"argument {number}" for number in range(count))


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


def _check_dense(function: str, values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor) and (problem := problem_of(value)):
            raise JitLoadError(f"{function} returned a tensor that {problem}: let it return dense tensors")


def _clone(args: Sequence[Any]) -> list[Any]:
    return [arg.clone() if hasattr(arg, "clone") else arg for arg in args]


def _fill_at_random(tensor: Any) -> None:
    """Fill a tensor with random numbers. Equal ones would not change the result of a softmax, which reads them."""
    has_fractions = tensor.is_floating_point() or tensor.is_complex()
    end = 2 if tensor.dtype == torch.bool else 128
    tensor.copy_(torch.randn(tensor.shape) if has_fractions else torch.randint(0, end, tensor.shape))


def _are_told_apart(first: Any, second: Any, tolerance: Tolerance) -> bool:
    """Return whether half of the elements that differ at all differ by more than four times the tolerance."""
    pair = _sample(first), _sample(second)
    relative, absolute = tolerance.of(first.dtype)
    clearly, _ = find_differences(*pair, 4 * relative, 4 * absolute)
    return bool(clearly.sum() * 2 >= find_differences(*pair, 0, 0)[0].sum())


def _sample(tensor: Any) -> Any:
    """Return a million elements, because a comparison needs many times the memory of what it compares."""
    return tensor.reshape(-1)[:: 1 + (tensor.numel() >> 20)]


# ---- reading a reference ---------------------------------------------------------------------------------------------


def read_source(reference: Any, inputs: Any) -> Source:
    """Return the reference for the arguments of `Judge`."""
    if isinstance(reference, Path):
        return _source_in(reference)
    if not callable(reference) or not callable(inputs):
        raise JitLoadError(
            "a Judge needs reference=, a function of the same arguments as the candidates, and inputs=, a function "
            "that returns new arguments; or reference='file.py'"
        )
    return Source(reference, inputs)


def _source_in(path: Path) -> Source:
    try:
        module: Any = import_file(path, f"jitload_reference_{path.stem}")
    except Exception as error:
        raise JitLoadError(f"the reference {path} cannot be imported: {type(error).__name__}: {error}") from error
    if hasattr(module, "Model"):
        device, seed = "cuda" if torch.cuda.is_available() else "cpu", secrets.randbits(32)
        args = tuple(getattr(module, "get_init_inputs", list)())
        with _seeded(seed):
            model = module.Model(*args).to(device)
        return Source(model, module.get_inputs, model_args=args, seed=seed, device=device, is_model=True)
    if not (callable(getattr(module, "reference", None)) and callable(getattr(module, "inputs", None))):
        raise JitLoadError(
            f"{path} has no functions reference(…) and inputs(), nor Model, get_inputs() and get_init_inputs()"
        )
    return Source(module.reference, module.inputs, functions=getattr(module, "FUNCTIONS", None))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
