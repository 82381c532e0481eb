"""The function `jitload.tune`: builds, checks and measures the variants of a function, and chooses one."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jitload.building.progress import progress_bar
from jitload.errors import JitLoadError, LaunchSpecError
from jitload.loader.function import TypedFunction
from jitload.measuring.benchmark import Arguments, Options, Subject, check_number, open_clock, restore_alike
from jitload.measuring.comparison import Check, check_reference, output_positions, written_by_any
from jitload.measuring.difference import Tolerance
from jitload.measuring.tuning import Tuning
from jitload.pipeline import load_request
from jitload.request.arguments import check_flags
from jitload.request.launch import Launch
from jitload.request.request import Request
from jitload.request.rows import Row, choose, read_rows
from jitload.request.tune import Tune
from jitload.request.variants import source_digest, space_of
from jitload.tracebacks import ends_at_caller
from jitload.tuning.builds import Candidate, build_candidates, make_candidates

if TYPE_CHECKING:
    from jitload.cache.prune import ShowProgress

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
    with open_clock([function], args, options) as clock:
        like = Row(
            function=name, gpu=clock.model, dtypes=tuple(chosen.dtypes.items()), key=tuple(chosen.key.items()),
            values=(), number=0, mode=method.mode, driver=clock.driver, source=source_digest(request, name, launch),
        )  # fmt: skip
    candidates = _candidates(function, request, launch, like)
    rows = _earlier_rows(request, like)
    if (best := choose(rows.values())) is None:
        rows = {}  # that none was right may be the fault of the reference
    if new := {candidate.row.values for candidate in candidates} - rows.keys():
        new |= {best.values} if best else set()
        # The first may say what is right.
        compared = [c for c in candidates if c.row.values in new or c.row.number == 0]
        with progress_bar(is_shown=progress) as show:
            if launch is not None:
                build_candidates(compared, request, show)
            _measure_candidates(compared, args, method, show)
        rows |= {candidate.row.values: candidate.row for candidate in compared if candidate.row.values in new}
    return Tuning(replace(rows[c.row.values], number=c.row.number) for c in candidates if c.row.values in rows)


def _candidates(function: TypedFunction, request: Request, launch: Launch | None, like: Row) -> list[Candidate]:
    """Return the variants of a function. Those of a Triton kernel are functions of its module."""
    if launch is None:
        assert request.triton is not None
        module = load_request(request, None, keep_module_alive=True, verbose=False)
        variants = enumerate(request.triton.variants)
        return [Candidate(replace(like, values=v.values, number=n), function=module[v.name]) for n, v in variants]
    assert isinstance(launch.tune, Tune)
    bare = replace(launch, kernel=launch.kernel or function._jitload_facts["kernel"]["name"])
    return make_candidates(bare, space_of(request, launch.tune), like)


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


def _measure_candidates(
    candidates: Sequence[Candidate], args: Sequence[Any], method: _Method, show: ShowProgress | None
) -> None:
    """Check and measure the variants that are built."""
    for candidate in candidates:
        if candidate.function is not None:
            _note_resources(candidate, candidate.function, args)
    built = [candidate for candidate in candidates if candidate.function is not None and not candidate.row.reason]
    if not built:
        return
    functions = [candidate.function for candidate in built]
    with open_clock(functions, args, method.options) as clock:
        others = [method.reference] if method.reference else []
        arguments = Arguments(args, written_by_any([*functions, *others], args), clock)
        with arguments:
            check = Check(arguments, output_positions(functions, args, method.outputs), method.tolerance)
            if not check.outputs and method.reference is None:
                _log.warning("tune() compared nothing: %s() writes to no tensor of the call", built[0].row.function)
            right = _check_results(built, check, method)
            _take_samples([subject for _, subject in right], arguments, method.options, show)
    for candidate, subject in right:
        result = subject.result(method.options)
        names = ("median_us", "p10_us", "p90_us", "samples", "bytes", "flop", "peak_gb_per_s")
        candidate.note(**{name: getattr(result, name) for name in names})


def _note_resources(candidate: Candidate, function: TypedFunction, args: Sequence[Any]) -> None:
    """Note which resources a variant uses, and the reason if it could not be launched."""
    kernel, plan = function.kernel, function.variant(*args)
    facts: dict[str, Any] = {"registers": kernel.registers, "spill_bytes": kernel.spill_bytes}
    if kernel.shared_bytes is not None:
        facts["shared_bytes"] = kernel.shared_bytes + plan.shared_bytes
    threads, is_triton = math.prod(plan.block or (0,)), "triton" in function._jitload_facts
    if threads > kernel.max_threads:
        facts["reason"] = f"a block of {threads} threads is larger than the kernel allows, {kernel.max_threads}"
    elif kernel.registers is not None and (threads or is_triton):
        occupancy = function.occupancy() if is_triton else function.occupancy(threads, plan.shared_bytes)
        facts["occupancy"] = occupancy.share
        if not occupancy.blocks:
            facts["reason"] = f"no block fits on a multiprocessor: {' and '.join(occupancy.limited_by)}"
    candidate.note(**facts)


def _check_results(built: Sequence[Candidate], check: Check, method: _Method) -> list[tuple[Candidate, Subject]]:
    """Return the variants with right results, prepared to be measured. Give the others a reason.

    Results are compared with those of the reference. Without one, or to be exact, with those of the first variant that
    can be launched.
    """
    arguments, keeps, expected, prepared = check.arguments, method.options.restore, [], []
    if method.reference is not None:
        reference = Subject(method.reference, arguments, "the reference")
        expected.append((check, check.expect(reference, is_sure=True, keeps_outputs=keeps)))
    needs_first = method.is_exact or not expected
    for candidate in built:
        subject = Subject(candidate.function, arguments, candidate.row.label)
        try:
            for each, right in expected:
                each.check(subject, right)
            if needs_first:
                first = check.expect(subject, is_sure=False, keeps_outputs=keeps or bool(expected))
                expected.append((check._replace(is_exact=method.is_exact), first))
                needs_first = False
            if method.in_graph and not arguments.clock.is_host:
                subject.function = _captured(subject)
            subject.prepare(method.options)
            prepared.append((candidate, subject))
        except (RuntimeError, ValueError) as error:
            arguments.clock.wait()  # raises an error if the kernel has made the GPU's context unusable
            candidate.note(reason=_without_name(str(error), candidate))
    return prepared


def _without_name(message: str, candidate: Candidate) -> str:
    """Return a message about a variant without its names, which stand before the reason."""
    label = repr(candidate.row.label)
    rest = message.removeprefix(f"{label}: ").removeprefix(f"{candidate.name}(): ").removeprefix(f"{label} ")
    return message if rest.startswith("and ") else rest  # "'a' and 'b' differ": it is about both


def _captured(subject: Subject) -> Callable[..., None]:
    """Return a function that replays the launches of a call from a CUDA graph."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise JitLoadError("graph=True captures with torch: import torch, and pass its tensors")
    graph = torch.cuda.CUDAGraph()
    # Torch's own stream for captures is on the device of the first capture of the process.
    with warnings.catch_warnings(), torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        warnings.filterwarnings("error", "The CUDA Graph is empty")  # its replays would seem to be quick
        subject.call()
    return lambda *_: graph.replay()


def _take_samples(alive: Sequence[Subject], arguments: Arguments, options: Options, show: ShowProgress | None) -> None:
    """Measure variants in turns. Halve their number until few are left, or the time is used up."""
    restore_alike(alive, options)
    rounds = max(1, math.ceil(math.log2(max(1, len(alive)))))
    end = time.perf_counter() + options.seconds
    for number in range(rounds):
        now = time.perf_counter()
        until = now + max(0.0, end - now) / (rounds - number)
        for _ in range(_SAMPLES // rounds + 1):
            for subject in alive:
                arguments.restore()  # the previous variant may have changed what this one reads
                subject.take_sample()
            if time.perf_counter() >= until:
                break
        if show:
            show("measure variants", number + 1, rounds)
        ranked = sorted(alive, key=lambda subject: subject.result(options).median_us)
        alive = [subject for subject in alive if subject in ranked[: max(_LAST, math.ceil(len(alive) / 2))]]
