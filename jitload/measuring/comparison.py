"""Compares functions that compute the same thing: first their results, then their times, as a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Number
from typing import Any, NamedTuple

from jitload.errors import JitLoadError, MismatchError
from jitload.measuring.benchmark import Arguments, Benchmark, Options, Subject, open_clock, restore_alike, take_turns
from jitload.measuring.difference import Tolerance, agrees, as_array, check_agrees
from jitload.measuring.memory import copy_tensor, extent_of, same_bits, tensors_in, written_arguments
from jitload.measuring.poison import POISONS, PoisonedRun, check_writes, is_floating, poison
from jitload.tables import RATE_COLUMNS, TIME_COLUMNS, four_digits, html_grid, measured_grid, text_grid
from jitload.tracebacks import ends_at_caller

_log = logging.getLogger(__name__)


class Comparison(dict[str, Benchmark]):
    """The measurements of functions that have the same results: a mapping from names of functions to benchmarks."""

    def rows(self) -> list[list[str]]:
        """Return the rows of the table: the column titles, then one row for each function."""
        fastest = min(benchmark.median_us for benchmark in self.values())
        return measured_grid(self, _COLUMNS, fastest if len(self) > 1 else None)

    def __str__(self) -> str:
        return f"{next(iter(self.values())).device}\n{text_grid(self.rows())}"

    def _repr_html_(self) -> str:
        return html_grid(self.rows(), next(iter(self.values())).device)


# The columns of the table, each with a function that returns the text of a cell.
_COLUMNS: dict[str, Callable[[Benchmark], str]] = {
    **TIME_COLUMNS,
    "host µs": lambda b: four_digits(b.host_us),
    **RATE_COLUMNS,
}


@ends_at_caller
def compare(  # noqa: PLR0913  the parts of a launch, and how to measure
    functions: Mapping[str, Any],
    *args: Any,
    reference: Callable[..., Any] | None = None,
    outputs: Sequence[str | int] | str | int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    flush_l2: bool = False,
    bytes: int | None = None,  # noqa: A002  the best name, although it hides a builtin
    flop: float | None = None,
    restore: bool = False,
    seconds: float = 0.25,
) -> Comparison:
    """Check that functions have the same results, and measure them in turns.

    Each function starts with the current values of the arguments, and `compare` restores these values at the end. The
    results of a function are the tensors and numbers that it returns. If a function returns None, its results are the
    tensors that it may write to. For a kernel, these are the arguments whose parameters are not `const`.

    Args:
        functions: A mapping from names, which the table shows, to kernels or other callables.
        *args: The arguments of each call.
        reference: A function that is known to be right and is not measured, such as a function of torch. Without a
            reference, the results are compared with those of the first function.
        outputs: The arguments to compare, by name or position. By default, all arguments that a function may write to.
        rtol: The allowed difference relative to the right result. The default depends on the dtype, as in
            `torch.testing.assert_close`: 1.3e-6 for float32, 1e-3 for float16, and 0 for integers.
        atol: The allowed absolute difference, in addition to `rtol`. The default is 1e-5 for float32 and float16.
        flush_l2: Whether the L2 cache of a GPU is emptied before each launch that is measured.
        bytes: The bytes that a call moves; estimated by default.
        flop: The number of floating-point operations of a call.
        restore: Whether to always restore the original values of the arguments before each call. By default, they are
            not restored for a short function whose results and time stay the same when it is repeated. With
            `restore=True`, outputs are not overwritten before the checks, either.
        seconds: Roughly how long to measure each function.

    Returns:
        A `Comparison`, which prints as a table.

    Raises:
        MismatchError: A function has different results.

    Example:
        `print(jitload.compare({"v1": mod1.add, "v2": mod2.add}, x, y, reference=lambda x, y: x + 1))`
    """
    items = functions.items() if isinstance(functions, Mapping) else ()
    if not items or not all(isinstance(name, str) and callable(function) for name, function in items):
        problem = "must be a dict of functions by name, {'v1': mod1.f, 'v2': mod2.f}"
        raise TypeError(f"the first argument of compare() {problem}")
    options = Options(
        flush_l2=flush_l2, bytes=bytes, flop=flop, restore=restore, seconds=seconds, reference=reference,
        outputs=outputs, rtol=rtol, atol=atol,
    )  # fmt: skip
    with open_check([*functions.values()], args, options) as check:
        subjects = [Subject(function, check.arguments, name) for name, function in functions.items()]
        check.run(subjects)
        for subject in subjects:
            subject.prepare(options)
        restore_alike(subjects, options)
        for _ in range(min(subject.sample_count for subject in subjects)):
            take_turns(subjects)
        check.run(subjects)
        return Comparison({subject.name: subject.result(options) for subject in subjects})


@contextmanager
def open_check(functions: Sequence[Any], args: Sequence[Any], options: Options) -> Iterator[Check]:
    """Yield what checks the results of functions. Afterwards, restore the values of the tensors."""
    callables = [*functions, *([options.reference] if options.reference else [])]
    with open_clock(functions, args, options) as clock:
        arguments = Arguments(args, written_by_any(callables, args), clock)
        with arguments:
            reference = Subject(options.reference, arguments, "the reference") if options.reference else None
            yield Check(arguments, output_positions(functions, args, options.outputs), options, reference)


def written_by_any(functions: Sequence[Any], args: Sequence[Any]) -> list[bool]:
    """Return for each argument whether any of the functions may write to it."""
    return [any(written) for written in zip(*(written_arguments(f, args) for f in functions), strict=True)]


class _Output(NamedTuple):
    """An argument that is a result.

    Attributes:
        position: Its position among the arguments.
        name: Its name for messages.
        is_parameter: Whether `name` is the name of a kernel's parameter.
        is_sure: Whether it is known to be a result. If none of the functions is a kernel, it may be an input.
    """

    position: int
    name: str
    is_parameter: bool
    is_sure: bool


def output_positions(
    functions: Sequence[Any], args: Sequence[Any], outputs: Sequence[str | int] | str | int | None
) -> list[_Output]:
    """Return the arguments that are results: by default, the tensors that one of the kernels may write to.

    If none of the functions is a kernel, the default is all arguments that contain tensors.
    """
    import inspect

    kernels = [function for function in functions if hasattr(function, "kernel")]
    names = list(inspect.signature(kernels[0]).parameters) if kernels else []
    are_parameters = len(names) == len(args)
    names = names if are_parameters else [f"argument {number}" for number in range(len(args))]
    is_sure = bool(kernels) or outputs is not None
    if outputs is None:
        written = written_by_any(kernels, args) if kernels else [True] * len(args)
        positions = [number for number, is_written in enumerate(written) if is_written]
    else:
        positions = [_position(output, names) for output in ([outputs] if isinstance(outputs, str | int) else outputs)]
        if without := next((names[number] for number in positions if not _has_tensor(args[number])), None):
            raise ValueError(f"outputs={outputs!r}: {without!r} is not a tensor")
        if not positions:
            raise ValueError(f"outputs={outputs!r}: name an argument, or leave outputs= out")
    return [
        _Output(number, names[number], are_parameters, is_sure) for number in positions if _has_tensor(args[number])
    ]


def _position(output: str | int, names: Sequence[str]) -> int:
    if output in names:
        return names.index(str(output))
    if isinstance(output, int) and -len(names) <= output < len(names):
        return output % len(names)
    raise ValueError(f"outputs={output!r}: there is no such argument; the arguments are {', '.join(names) or 'none'}")


class Expected(NamedTuple):
    """The right results of a check.

    Attributes:
        name: The name of the function that is right.
        values: A (name, value) pair for each result.
        tensors: The output tensors to poison, by the number of their result.
        runs: The runs with these tensors poisoned.
        is_sure: Whether the function is known to be right.
        is_exact: Whether results must be equal bit for bit.
    """

    name: str
    values: list[tuple[str, Any]]
    tensors: dict[int, Any]
    runs: dict[int, list[PoisonedRun]]
    is_sure: bool
    is_exact: bool


class Check(NamedTuple):
    """Compares the values that functions return. For functions that return None, compares `outputs`."""

    arguments: Arguments
    outputs: list[_Output]
    options: Options
    reference: Subject | None

    @property
    def tolerance(self) -> Tolerance:
        """The differences that are allowed."""
        return Tolerance(self.options.rtol, self.options.atol)

    @property
    def targets(self) -> list[tuple[_Output, Any]]:
        """The tensors in the arguments that are results, each with its argument."""
        return [(o, tensor) for o in self.outputs for tensor in tensors_in(self.arguments.values[o.position])]

    def run(self, subjects: Sequence[Subject]) -> None:
        """Run each function, and compare its results with those of the reference or the first function."""
        right, *others = [self.reference, *subjects] if self.reference else subjects
        expected = self.expect(right)
        if others and not expected.values:
            raise JitLoadError(f"{right.name} has no results to compare: it returns None and writes to no tensor")
        for subject in others:
            self.check(subject, expected)
        runs = [run for each in expected.runs.values() for run in each]
        if not self.reference and runs and all(run.is_unchanged() for run in runs):
            _log.warning("compare() compared nothing: %s does not change its outputs", right.name)

    def expect(self, right: Subject) -> Expected:
        """Run the function that is right, the reference or another one, which others may have to equal bit for bit.

        An output may have some of the right values before the call. A function that does not write them would then seem
        right. Unless `options.restore` is set, poison the outputs, run the function again, and do all this twice.
        """
        values = self._results(right)
        tensors = {} if self.options.restore else self._tensors_to_poison([value for _, value in values])
        runs = self._poisoned_runs(right, self._poisonable(right, tensors)) if tensors else {}
        is_sure = right is self.reference
        return Expected(right.name, values, tensors, runs, is_sure, is_exact=self.options.exact and not is_sure)

    def check(self, subject: Subject, expected: Expected) -> None:
        """Run a function. Raise MismatchError if its results are not the expected ones."""
        results, is_sure = self._results(subject), expected.is_sure
        if len(results) != len(expected.values):
            listed = ", ".join(name for name, _ in results) or "none"
            raise JitLoadError(
                f"{subject.name!r} has {len(results)} results ({listed}), but {expected.name} has "
                f"{len(expected.values)}: name the arguments to compare, outputs=['y']"
            )
        for (name, result), (_, value) in zip(results, expected.values, strict=True):
            check_agrees((subject.name, name, result), (expected.name, value), self.tolerance, is_sure=is_sure)
            if expected.is_exact and not (same_bits(result, value) if _has_tensor(value) else result == value):
                problem = f"{subject.name!r} is not exact: bits of its {name!r} differ from those of {expected.name}"
                raise MismatchError(problem, function=subject.name, output=name)
        if not expected.tensors:
            return
        names = [output.name for output, _ in self.targets]
        runs = self._poisoned_runs(subject, self._poisonable(subject, expected.tensors))
        pair = (subject.name, runs), (expected.name, expected.runs)
        for (first, own), (second, others) in (pair,) if is_sure else (pair, pair[::-1]):
            for number in own:
                value = expected.values[number][1]
                known = others.get(number) or [run._replace(after=value) for run in own[number]]
                result = (first, names[number], own[number])
                check_writes(result, (second, known, value), self.tolerance, is_sure=is_sure)

    def _tensors_to_poison(self, expected: Sequence[Any]) -> dict[int, Any]:
        """Return the output tensors to poison, by the number of their result. They match the results one to one."""
        self.arguments.restore()
        self.arguments.clock.wait()
        if len(self.targets) != len(expected):
            return {}
        return {
            number: tensor
            for number, ((output, tensor), value) in enumerate(zip(self.targets, expected, strict=True))
            if extent_of(tensor).span
            and tuple(as_array(tensor).shape) == tuple(as_array(value).shape)
            and (output.is_sure or not agrees(tensor, value, self.tolerance))
        }

    def _poisonable(self, subject: Subject, tensors: Mapping[int, Any]) -> dict[int, Any]:
        """Return the tensors that may be poisoned before a call of a function.

        Integers may be indices, locks or counters, and a wrong one may make a function write anywhere or wait for ever.
        So tensors of integers are poisoned only for kernels that do not read them.
        """

        def is_unread(number: int, tensor: Any) -> bool:
            has_own_memory = sum(extent.overlaps(extent_of(tensor)) for extent in self.arguments.extents) == 1
            return has_own_memory and not may_read(subject.function, self.targets[number][0].position)

        return {number: t for number, t in tensors.items() if is_floating(t) or is_unread(number, t)}

    def _poisoned_runs(self, subject: Subject, tensors: Mapping[int, Any]) -> dict[int, list[PoisonedRun]]:
        """Run a function once with each poison. Return the runs of each poisoned tensor."""
        runs: dict[int, list[PoisonedRun]] = {number: [] for number in tensors}
        for byte in POISONS:
            before: dict[int, Any] = {}

            def overwrite(byte: int = byte, before: dict[int, Any] = before) -> None:
                self.arguments.clock.wait()
                for tensor in tensors.values():
                    poison(tensor, byte)
                before.update((number, copy_tensor(tensor)) for number, tensor in tensors.items())
                self.arguments.clock.wait()  # torch may have overwritten them in another stream

            results = self._results(subject, overwrite)
            for number in tensors:
                runs[number].append(PoisonedRun(before[number], results[number][1]))
        return runs

    def _results(self, subject: Subject, overwrite: Callable[[], None] = lambda: None) -> list[tuple[str, Any]]:
        """Run a function once, and return a (name, copy) pair for each of its results."""
        try:
            returned = subject.run(overwrite)
        except (TypeError, ValueError, RuntimeError) as error:
            if type(error) not in (TypeError, ValueError, RuntimeError):
                raise
            raise type(error)(f"{subject.name!r}: {error}") from error
        if returned is None:
            results = [(output.name, tensor) for output, tensor in self.targets]
        else:
            results = self._named(returned if isinstance(returned, tuple | list) else (returned,))
            for _, value in results:
                if not hasattr(value, "__dlpack__") and not isinstance(value, Number):
                    kind = type(value).__name__
                    raise TypeError(f"{subject.name!r} returned {kind}: results must be tensors or numbers")
        clock = self.arguments.clock
        tensors = [value for _, value in results if _has_tensor(value)]
        if clock.is_host and any(extent_of(tensor).device is not None for tensor in tensors):
            raise JitLoadError(
                f"{subject.name!r} runs on a GPU, but no argument is a tensor there: pass one, to measure it"
            )
        copies = [(name, copy_tensor(value) if _has_tensor(value) else value) for name, value in results]
        clock.wait()  # the copies may be made in another stream
        return copies

    def _named(self, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return a (name, value) pair for each value that a function returned.

        Use the names of the output parameters if there are as many as values, otherwise `result 0`, `result 1`, ….
        """
        names = [output.name for output in self.outputs if output.is_parameter]
        names = names if len(names) == len(values) else [f"result {number}" for number in range(len(values))]
        return list(zip(names, values, strict=True))


def may_read(function: Any, position: int) -> bool:
    """Return whether a function may read the memory of an argument, because its PTX does not show that it does not."""
    with suppress(AttributeError, JitLoadError, StopIteration):  # it has no kernel, several, or none with a source
        extent = function.extents.get([*function.__signature__.parameters][position])
        return extent is None or extent.is_read
    return True


def _has_tensor(value: Any) -> bool:
    return next(tensors_in(value), None) is not None
