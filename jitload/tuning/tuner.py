"""The function `jitload.tune`: builds, checks and measures the variants of a function, and chooses one."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitload.errors import JitLoadError, LaunchSpecError, MismatchError
from jitload.loader.function import TypedFunction
from jitload.loader.variants import Chosen
from jitload.measuring.benchmark import Arguments, Options, Subject, check_number, open_clock, restore_alike
from jitload.measuring.clocks import Clock
from jitload.measuring.comparison import Check, check_reference, output_positions, written_by_any
from jitload.measuring.difference import Tolerance
from jitload.measuring.tuning import Tuning
from jitload.pipeline import load_request
from jitload.request.arguments import check_flags
from jitload.request.launch import Launch
from jitload.request.request import Request
from jitload.request.rows import Row, choose, read_rows
from jitload.request.tune import Tune
from jitload.request.variants import device_of, source_digest
from jitload.tracebacks import ends_at_caller
from jitload.tuning.builds import Candidate, build_candidates, make_candidates, shown_progress

_log = logging.getLogger(__name__)
_SAMPLES = 500  # the most samples of a variant
_LAST = 2  # variants that are measured to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Method:
    """How variants are checked and measured."""

    options: Options
    reference: Callable[..., Any] | None
    outputs: Any
    tolerance: Tolerance
    is_exact: bool
    in_graph: bool

    @property
    def mode(self) -> str:
        """The mode of the rows: those of different modes are not compared."""
        mode = "graph" if self.in_graph else "eager"
        return mode + (", cold" if self.options.flush_l2 else "") + (", exact" if self.is_exact else "")


@ends_at_caller
def tune(  # noqa: PLR0913  how to check and how to measure
    function: TypedFunction,
    *args: Any,
    seconds: float = 5.0,
    reference: Callable[..., Any] | None = None,
    exact: bool = False,
    outputs: Sequence[str | int] | str | int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    graph: bool = False,
    cold: bool = False,
    bytes: int | None = None,  # noqa: A002  as in `benchmark`
    flop: float | None = None,
    restore: bool = False,
    progress: bool = True,
) -> Tuning:
    """Measure the variants of a function for the key of these arguments, and choose the fastest.

    The function has a `Launch(tune=…)`. All variants are built, and those whose results are wrong are left out. The
    others are measured in turns; again and again, the slower half is left out. Of those that tie, the first in the
    order of the `Tune` is chosen. The arguments have their original values afterwards. Variants that the file of
    `tuned=` has for this key, GPU and driver are not measured again, except for the best of them.

    Args:
        function: The function.
        *args: The arguments of a call.
        seconds: Roughly how long to measure, in addition to the builds and checks.
        reference: A function that is known to be right. Without it, results are compared with those of the first
            variant.
        exact: Whether only variants are admitted whose results equal those of the first variant bit for bit.
        outputs: The arguments to compare. `outputs`, `rtol`, `atol`, `bytes`, `flop` and `restore` are described under
            `compare`.
        rtol: The allowed relative difference.
        atol: The allowed absolute difference.
        graph: Whether to measure launches of a captured CUDA graph. This has no effect on the CPU.
        cold: Whether the L2 cache is emptied before each launch. This has no effect on the CPU.
        bytes: The bytes that a call moves; estimated by default.
        flop: The number of floating-point operations of a call.
        restore: Whether to always restore the original values of the arguments before each call.
        progress: Whether to show the progress on a terminal or in a notebook.

    Returns:
        A `Tuning`. `print` shows it, `save` writes it to a file, and `load_inline(…, tuned=…)` chooses by it.

    Raises:
        JitLoadError: The function has no `Tune`, or its source is not at hand: it was loaded with `load_module`.
    """
    request, name, launch = _origin(function)
    check_flags(exact=exact, graph=graph, cold=cold, progress=progress)
    check_reference(reference)
    for label, number in (("rtol", rtol), ("atol", atol)):
        check_number(label, number, may_be_infinite=True)
    options = Options(flush_l2=cold, bytes=bytes, flop=flop, restore=restore, seconds=seconds)
    method = _Method(
        options=options, reference=reference, outputs=outputs, tolerance=Tolerance(rtol, atol), is_exact=exact,
        in_graph=graph,
    )  # fmt: skip
    chosen = function.variant(*args)
    candidates = _candidates(function, request, launch, chosen)
    space = [candidate.values for candidate in candidates]
    with open_clock([function], args, options) as clock:
        row = Row(
            function=name, gpu=clock.model, dtypes=tuple(chosen.dtypes.items()), key=tuple(chosen.key.items()),
            values=(), number=0, mode=method.mode, driver=clock.driver, source=_source_digest(request, name, launch),
        )  # fmt: skip
    earlier = _earlier_rows(request, row)
    if (best := choose(earlier.values())) is None:
        earlier = {}  # that none was right may be the fault of the reference
    to_measure = [number for number, values in enumerate(space) if values not in earlier]
    if to_measure and best is not None and best.values in space:
        to_measure.append(space.index(best.values))
    first = [] if 0 in to_measure else [0]  # the other variants are compared with it
    candidates = [candidate for candidate in candidates if candidate.number in {*to_measure, *first}]
    if to_measure:
        if launch is not None:
            build_candidates(candidates, request, is_shown=progress)
        rows = _Run(candidates, args, method, row).rows(is_shown=progress)
        earlier |= {measured.values: measured for measured in rows if measured.number in to_measure}
    return Tuning(replace(earlier[values], number=number) for number, values in enumerate(space) if values in earlier)


def _candidates(function: TypedFunction, request: Request, launch: Launch | None, chosen: Chosen) -> list[Candidate]:
    """Return the variants of a function. Those of a Triton kernel are functions of its module."""
    if launch is None:
        assert request.triton is not None
        module = load_request(request, None, keep_module_alive=True, verbose=False)
        variants = enumerate(request.triton.variants)
        return [Candidate(number, v.values, function=module[v.name]) for number, v in variants]
    assert isinstance(launch.tune, Tune)
    bare = replace(launch, kernel=launch.kernel or function._jitload_facts["kernel"]["name"])
    space = launch.tune.space(device_of(request))
    return make_candidates(bare, function.__name__, space, tuple(chosen.dtypes.items()))


def _source_digest(request: Request, name: str, launch: Launch | None) -> str:
    if launch is not None:
        return source_digest(request, name, launch)
    assert request.triton is not None
    parts = [part for part in request.triton.parts if part[0] in ("kernel", "globals", "outer")]
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _origin(function: object) -> tuple[Request, str, Launch | None]:
    """Return the request that a function was built for, its name, and its launch, or None for a Triton kernel."""
    if not isinstance(function, TypedFunction):
        raise TypeError(f"tune() takes a function of a module, mod.f, got {type(function).__name__}")
    name, request = function.__name__, function._jitload_library.request
    if function._jitload_key:
        raise JitLoadError(f"{function!r} cannot be tuned with a configuration: call {name}.tune(…)")
    if not isinstance(request, Request):
        raise JitLoadError(f"{name}() cannot be tuned: its source is not at hand. Load it with load_inline() or load()")
    if request.triton is not None and request.triton.choice is not None and name == request.triton.name:
        return request, name, None
    launch = dict(request.functions or ()).get(name)
    if launch is None or not isinstance(launch.tune, Tune):
        problem = "has no variants: declare them, Launch(tune=Tune(B=(128, 256)))"
        raise LaunchSpecError(problem, kernel=name, field="tune")
    if missing := next((field for field in ("grid", "block") if getattr(launch, field) is None), None):
        problem = "must be declared, because tune() measures calls without a configuration"
        raise LaunchSpecError(problem, kernel=name, field=missing)
    return request, name, launch


def _earlier_rows(request: Request, like: Row) -> dict[Any, Row]:
    """Return the rows in the request's file that were measured as `like` would be, by their values.

    All configurations of a Triton kernel are measured again.
    """
    rows = read_rows(request.tuned) if request.tuned else ()
    facts = (*like.group, like.mode, like.driver, like.source)
    return {row.values: row for row in rows if (*row.group, row.mode, row.driver, row.source) == facts}


class _Run:
    """The measurement of variants for one set of arguments."""

    def __init__(self, candidates: Sequence[Candidate], args: Sequence[Any], method: _Method, like: Row) -> None:
        self.candidates, self.args, self.method, self.like = candidates, args, method, like
        self.facts: dict[int, dict[str, Any]] = {}
        self.subjects: dict[int, Subject] = {}

    def rows(self, *, is_shown: bool) -> list[Row]:
        """Check and measure the variants. Return a row for each."""
        for candidate in self.candidates:
            if candidate.function is not None:
                candidate.reason = self._check_resources(candidate, candidate.function)
        built = [c for c in self.candidates if c.function is not None and not c.reason]
        functions = [candidate.function for candidate in built]
        if built:
            with open_clock(functions, self.args, self.method.options) as clock:
                others = [self.method.reference] if self.method.reference else []
                arguments = Arguments(self.args, written_by_any([*functions, *others], self.args), clock)
                with arguments, shown_progress(is_shown=is_shown) as show:
                    self._check(built, arguments, clock)
                    self._measure([c for c in built if not c.reason], arguments, show)
                    return [self._row(candidate) for candidate in self.candidates]
        return [self._row(candidate) for candidate in self.candidates]

    def _check_resources(self, candidate: Candidate, function: TypedFunction) -> str:
        """Note which resources a variant uses. Return why it could not be launched, or ""."""
        kernel, plan = function.kernel, function.variant(*self.args)
        dynamic = plan.shared_bytes
        facts: dict[str, Any] = {"registers": kernel.registers, "spill_bytes": kernel.spill_bytes}
        if kernel.shared_bytes is not None:
            facts["shared_bytes"] = kernel.shared_bytes + dynamic
        self.facts[candidate.number] = facts
        threads = math.prod(plan.block or (0,))
        if threads > kernel.max_threads:
            return f"a block of {threads} threads is larger than the kernel allows, {kernel.max_threads}"
        is_triton = "triton" in function._jitload_facts
        if kernel.registers is None or not (threads or is_triton):
            return ""
        occupancy = function.occupancy() if is_triton else function.occupancy(threads, dynamic)
        facts["occupancy"] = occupancy.share
        return "" if occupancy.blocks else f"no block fits on a multiprocessor: {' and '.join(occupancy.limited_by)}"

    def _check(self, built: Sequence[Candidate], arguments: Arguments, clock: Clock) -> None:
        """Give variants with wrong results, and those that cannot be launched, a reason."""
        method, functions = self.method, [candidate.function for candidate in built]
        check = Check(arguments, output_positions(functions, self.args, method.outputs), method.tolerance)
        if not check.outputs and method.reference is None:
            _log.warning("tune() compared nothing: %s() writes to no tensor of the call", self.like.function)
        keeps = method.options.restore
        right, first = None, None
        if method.reference is not None:
            right = check.expect(
                Subject(method.reference, arguments, "the reference"), is_sure=True, keeps_outputs=keeps
            )
        for candidate in built:
            subject = Subject(candidate.function, arguments, candidate.label)
            try:
                if right is not None:
                    check.check(subject, right)
                if first is None and (right is None or method.is_exact):
                    first = check.expect(subject, is_sure=False, keeps_outputs=keeps or right is not None)
                elif first is not None:
                    check._replace(is_exact=method.is_exact).check(subject, first)
                self.subjects[candidate.number] = self._subject(candidate, arguments)
                self.subjects[candidate.number].prepare(method.options)
            except MismatchError as error:
                candidate.reason = _without_name(str(error), candidate.label)
            except (RuntimeError, ValueError) as error:
                clock.wait()  # raises an error if the kernel has made the GPU's context unusable
                candidate.reason = (
                    str(error).removeprefix(f"{candidate.label!r}: ").removeprefix(f"{candidate.name}(): ")
                )

    def _subject(self, candidate: Candidate, arguments: Arguments) -> Subject:
        is_captured = self.method.in_graph and not arguments.clock.is_host
        return Subject(_Captured(candidate.function) if is_captured else candidate.function, arguments, candidate.label)

    def _measure(self, alive: Sequence[Candidate], arguments: Arguments, show: Callable[[str, int, int], None]) -> None:
        """Measure variants in turns. Halve their number until few are left, or the time is used up."""
        restore_alike([self.subjects[candidate.number] for candidate in alive], self.method.options)
        rounds = max(1, math.ceil(math.log2(max(1, len(alive)))))
        end = time.perf_counter() + self.method.options.seconds
        for number in range(rounds):
            now = time.perf_counter()
            until = now + max(0.0, end - now) / (rounds - number)
            for _ in range(_SAMPLES // rounds + 1):
                for candidate in alive:
                    arguments.restore()  # the previous variant may have changed what this one reads
                    self.subjects[candidate.number].take_sample()
                if time.perf_counter() >= until:
                    break
            show("measure variants", number + 1, rounds)
            if len(alive) > _LAST:
                ranked = sorted(alive, key=self._median)[: max(_LAST, math.ceil(len(alive) / 2))]
                alive = [candidate for candidate in alive if candidate in ranked]

    def _median(self, candidate: Candidate) -> float:
        return self.subjects[candidate.number].result(self.method.options).median_us

    def _row(self, candidate: Candidate) -> Row:
        facts = {**self.facts.get(candidate.number, {}), "reason": candidate.reason}
        if not candidate.reason:
            result = self.subjects[candidate.number].result(self.method.options)
            names = ("median_us", "p10_us", "p90_us", "samples", "bytes", "flop", "peak_gb_per_s")
            facts |= {name: getattr(result, name) for name in names}
        return replace(self.like, values=candidate.values, number=candidate.number, **facts)


def _without_name(message: str, label: str) -> str:
    """Return a message about a variant without the name of the variant, with which it begins."""
    rest = message.removeprefix(f"{label!r} ")
    return message if rest.startswith("and ") else rest


class _Captured:
    """A function whose launches are replayed from a CUDA graph, which its first call captures."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._graph: Any = None
        self.__name__ = function.__name__

    def __call__(self, *args: Any) -> None:
        if self._graph is None:
            torch = sys.modules.get("torch")
            if torch is None:
                raise JitLoadError("graph=True captures with torch: import torch, and pass its tensors")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._function(*args)
            self._graph = graph
        self._graph.replay()
