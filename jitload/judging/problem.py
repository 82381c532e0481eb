"""What candidates have to compute: inputs that are new at each call, and the right results, both in the judge."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from jitload.errors import JitLoadError, MismatchError
from jitload.judging.child import import_file, operators_of
from jitload.judging.devices import DELAYS_MS, Measure, measure_on_host
from jitload.judging.processes import CandidateProcess
from jitload.judging.records import Answer, Rejected, Setup, TensorSpec, bytes_of, kind_of
from jitload.measuring.difference import Tolerance, agrees, check_agrees, find_differences
from jitload.measuring.memory import same_bits

_GUARD = 4096  # bytes before and behind each tensor, which no candidate may change
_ALIGNMENT = 256
_NOISE = 1 << 16  # bytes of random data, which are repeated
_LOOSE = 0.01  # the relative and the absolute difference that KernelBench allows
_HIDDEN_US, _HIDDEN_FACTOR = 5000.0, 3.0  # how much longer than its own time a call may take by the judge's clock
_BYTES_PER_US = 500  # how fast inputs are written before a call, at least


class Problem:
    """A reference with its inputs.

    Attributes:
        functions: The default launches of candidates that are kernels.
        operators: The operators of torch that the reference calls.
        setup: What a candidate's process needs beforehand.
    """

    def __init__(self, reference: Any, inputs: Any, tolerance: Tolerance, **limits: Any) -> None:
        self._read(reference, inputs)
        self.outputs: tuple[int, ...] = ()
        args, others = self._new_args(), self._new_args()
        tensors = [number for number, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        if not tensors or len(tensors) < sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args)):
            raise JitLoadError("inputs= must return at least one tensor, and none within a list or another object")
        if all(torch.equal(args[number], others[number]) for number in tensors):
            raise JitLoadError(
                "inputs= returned the same values twice: let it return random ones, without setting a seed"
            )
        before = _map(torch.clone, args)
        (results, _), self.operators = operators_of(lambda: self._run(args), in_all_threads=False)
        changed = tuple(number for number in tensors if not same_bits(args[number], before[number]))
        self.outputs = tuple(tensors[-len(results) :]) if results else changed
        if not self.outputs:
            raise JitLoadError("the reference returns None and changes no argument: let it return the right result")
        expected = results or [args[number] for number in self.outputs]
        self._tolerances = [tolerance] * len(expected)
        if not self._computes(before, expected):
            raise JitLoadError(
                "the reference computed two different results from the same inputs: let it use no random numbers, and "
                "no state that a call changes"
            )
        random = [torch.randint(0, 128, a.shape).to(a) if n in self.outputs else a for n, a in enumerate(before)]
        are_alike = [kind_of(args[number]) for number in self.outputs] == [*map(kind_of, expected)]
        self._unread = self.outputs if are_alike and self._computes(random, expected) else ()
        if results:
            self.outputs = self._unread
        self._written = {*self.outputs, *changed}
        if self._is_model and tolerance == (None, None):
            self._tolerances = [*map(_loose_tolerance, expected, self._run(others)[0])]
        specs = _lay_out((*args, *expected))
        self._tensors = {number: specs[number] for number in tensors}
        parts = tuple(specs[: len(args)]), tuple(specs[len(args) :]), self.outputs
        self.setup = Setup(*parts, str(args[tensors[0]].device), self._model_args, self._seed, **limits)

    def _read(self, reference: Any, inputs: Any) -> None:
        """Read the arguments of `Judge`."""
        self._seed, self._model_args, self._is_model, self.functions = secrets.randbits(32), (), False, None
        if isinstance(reference, Path):
            module: Any = import_file(reference, f"jitload_reference_{reference.stem}")
            self._is_model = hasattr(module, "Model")
            if self._is_model:
                self._model_args = tuple(getattr(module, "get_init_inputs", list)())
                with _seeded(self._seed):
                    model = module.Model(*self._model_args)
                reference, inputs = model.cuda() if torch.cuda.is_available() else model, module.get_inputs
            else:
                self.functions = getattr(module, "FUNCTIONS", None)
                reference, inputs = getattr(module, "reference", None), getattr(module, "inputs", None)
        if not callable(reference) or not callable(inputs):
            raise JitLoadError(
                "a Judge needs the functions reference= and inputs=, or the path of a file that defines reference and "
                "inputs, or Model and get_inputs"
            )
        self._reference, self._inputs = reference, inputs

    def _new_args(self) -> list[Any]:
        """Return arguments as `inputs` makes them, with random numbers that a candidate cannot know."""
        with _seeded(secrets.randbits(63)):
            args = self._inputs()
        to_gpu = self._is_model and torch.cuda.is_available()
        return _map(lambda t: (t.cuda() if to_gpu else t).detach().contiguous(), args)

    def _run(self, args: Sequence[Any], measure: Measure = measure_on_host) -> tuple[list[Any], float]:
        """Call the reference. Return what it returns, or its outputs, and its time on the device in microseconds."""
        with torch.no_grad():
            returned, us, _ = measure(lambda: self._reference(*args))
        results = [torch.as_tensor(leaf) for leaf in tree_leaves(returned) if leaf is not None]
        return results or [args[number] for number in self.outputs], us

    def _computes(self, args: Sequence[Any], expected: Sequence[Any]) -> bool:
        """Return whether the reference computes these results from copies of arguments."""
        try:
            results, _ = self._run(_map(torch.clone, args))
        except (RuntimeError, IndexError):  # such as for a wrong index
            return False
        return all(map(agrees, results, expected, self._tolerances))

    def call(
        self, process: CandidateProcess, name: str, request: str, measure: Measure = measure_on_host
    ) -> tuple[Answer, float, float]:
        """Call the candidate `name` with new inputs, and check all that it did. `measure` runs the reference.

        Return the answer, the time of the reference, and how much longer than allowed the call took, in microseconds.
        """
        args, shared = self._new_args(), process.shared
        if tuple(_lay_out(args)) != self.setup.arguments:
            raise JitLoadError("inputs= must always return the same shapes and numbers")
        noise = torch.frombuffer(bytearray(secrets.token_bytes(_NOISE)), dtype=torch.uint8)
        shared.copy_(noise.repeat(len(shared) // _NOISE + 1)[: len(shared)])
        sent = shared[: self.setup.results[0].region.start].clone()
        for number, spec in self._tensors.items():
            if number not in self._unread:
                sent[spec.region].copy_(bytes_of(args[number]))
            elif spec.dtype == "bool":
                sent[spec.region].bitwise_and_(1)
        expected, reference_us = self._run(args, measure)
        shared[: len(sent)] = sent  # a process that knew them earlier could be done when its time begins
        began = time.perf_counter()
        answer = process.ask(request)
        seen_us = (time.perf_counter() - began) * 1e6
        process.ask("fetch")
        self._check(sent, expected, shared.clone(), name)  # no process can change the clone while it is compared
        allowed_us = _HIDDEN_FACTOR * answer.us + _HIDDEN_US + len(shared) / _BYTES_PER_US
        return answer, reference_us, seen_us - min(answer.busy_us, DELAYS_MS[-1] * 1000) - allowed_us

    def _check(self, sent: Any, expected: Sequence[Any], received: Any, name: str) -> None:
        """Compare inputs, the bytes before and behind tensors, and results."""
        for number, spec in self._tensors.items():
            if number in self._written:
                sent[spec.region] = received[spec.region]
            elif not torch.equal(received[spec.region], sent[spec.region]):
                raise Rejected("cheat", f"it changes argument {number}, an input")
        if not torch.equal(received[: len(sent)], sent):
            raise Rejected("memory", "it writes to memory next to an argument")
        try:
            for number, (spec, right) in enumerate(zip(self.setup.results, expected, strict=True)):
                result = name, f"result {number}", spec.view(received)
                check_agrees(result, ("the reference", right.cpu()), self._tolerances[number], is_sure=True)
        except MismatchError as error:
            raise Rejected("wrong", error.message()) from error


def _lay_out(values: Iterable[Any]) -> list[Any]:
    """Return values, with specs of tensors that lie in memory one after another."""
    specs: list[Any] = []
    end = 0
    for value in values:
        specs.append(value)
        if isinstance(value, torch.Tensor):
            start = -(-end // _ALIGNMENT) * _ALIGNMENT + _GUARD
            end = start + value.numel() * value.element_size()
            specs[-1] = TensorSpec(*kind_of(value), slice(start, end))
            end += _GUARD
    return specs


def _map(change: Any, args: Any) -> list[Any]:
    """Return arguments with changed tensors."""
    args = args if isinstance(args, tuple | list) else (args,)
    return [change(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]


def _loose_tolerance(result: Any, other: Any) -> Tolerance:
    """Return KernelBench's tolerance for a result of a model, or less if results for other inputs hardly differ."""
    if not (result.is_floating_point() or result.is_complex()):
        return Tolerance(None, None)
    spread, size = (find_differences(result, value, 0, 0)[1].mean() for value in (other, torch.zeros_like(result)))
    least = max(1e-4, Tolerance(None, None).of(result.dtype)[0])
    return Tolerance(max(least, min(_LOOSE, _LOOSE * float(spread / size))), min(_LOOSE, _LOOSE * float(spread)))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
