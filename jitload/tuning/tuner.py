"""The function `jitload.tune`: builds, checks and measures the variants of a function, and chooses one."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jitload.building.progress import progress_bar
from jitload.building.resources import core_count
from jitload.errors import CompileError, JitLoadError, LaunchSpecError, SignatureError
from jitload.loader.function import TypedFunction
from jitload.measuring.benchmark import Options, Subject, open_clock, restore_alike, take_turns
from jitload.measuring.comparison import Check, open_check
from jitload.measuring.tuning import Tuning
from jitload.pipeline import load_request
from jitload.request.launch import Launch
from jitload.request.request import Request
from jitload.request.rows import Row, choose, read_rows
from jitload.request.tune import Tune
from jitload.request.variants import groups, source_digest, specialize, with_headers
from jitload.tracebacks import ends_at_caller

if TYPE_CHECKING:
    from jitload.cache.listing import ShowProgress

_log = logging.getLogger(__name__)
_SAMPLES = 500  # the most samples of a variant
_LAST = 2  # variants that are measured to the end
_MAX_SHARED = 227 << 10  # dynamic shared memory of a block on the GPUs that allow the most
_MAX_CLUSTER = 16
_SPLIT = "--split-compile=0"  # NVRTC optimizes the instances of a program on all cores


@dataclass(slots=True)
class Candidate:
    """A variant that is measured: what is known about it, and the function that launches it alone, once it is built."""

    row: Row
    function: TypedFunction | None = None

    @property
    def name(self) -> str:
        """The name of the function that launches it alone."""
        return f"variant_{self.row.number}"

    def note(self, **facts: Any) -> None:
        """Change fields of the row."""
        self.row = replace(self.row, **facts)


@ends_at_caller
def tune(function: TypedFunction, *args: Any, seconds: float = 5.0, progress: bool = True, **options: Any) -> Tuning:
    """Measure the variants of a function for the key of these arguments, and choose the fastest.

    The function has a `Launch(tune=…)`. All variants are built, and those whose results are wrong are left out. The
    others are measured in turns; again and again, the slower half is left out. Of those that tie, the first in the
    order of the `Tune` is chosen. The arguments have their original values afterwards. Variants that the file of
    `tuned=` has for this key, GPU and driver are not measured again, except for the best of them.

    Args:
        function: The function.
        *args: The arguments of a call.
        seconds: Roughly how long to measure, in addition to the builds and checks.
        progress: Whether to show the progress on a terminal or in a notebook.
        **options: `reference`, `outputs`, `rtol`, `atol`, `flush_l2`, `bytes`, `flop` and `restore` as for `compare`.
            With `exact=True`, only variants are admitted whose results equal those of the first variant bit for bit.
            With `graph=True`, launches of a captured CUDA graph are measured, except on the CPU.

    Returns:
        A `Tuning`. `print` shows it, `save` writes it to a file, and `load_inline(…, tuned=…)` chooses by it.

    Raises:
        JitLoadError: The function has no `Tune`, or its source is not at hand: it was loaded with `load_module`.
    """
    request, launch = _origin(function)
    checked = Options(seconds=seconds, **options)
    candidates = _candidates(function, args, request, launch, checked)
    like = candidates[0].row
    rows = {r.values: r for r in read_rows(request.tuned) if (r.group, r.method) == (like.group, like.method)}
    if (best := choose(rows.values())) is None:
        rows = {}  # that none was right may be the fault of the reference
    if new := {candidate.row.values for candidate in candidates} - rows.keys():
        new |= {best.values} if best else set()
        # The first may say what is right.
        compared = [c for c in candidates if c.row.values in new or c.row.number == 0]
        with progress_bar(is_shown=progress) as show:
            if launch is not None:
                named = replace(launch, kernel=launch.kernel or function._jitload_facts["kernel"]["name"])
                build_candidates(compared, request, named, show)
            _measure_candidates(compared, args, checked, show)
        rows |= {candidate.row.values: candidate.row for candidate in compared if candidate.row.values in new}
    return Tuning(replace(rows[c.row.values], number=c.row.number) for c in candidates if c.row.values in rows)


def _origin(function: object) -> tuple[Request, Launch | None]:
    """Return the request that a function was built for, and its launch, or None for a Triton kernel."""
    if not isinstance(function, TypedFunction):
        raise TypeError(f"tune() takes a function of a module, mod.f, got {type(function).__name__}")
    name, request = function.__name__, function._jitload_library.request
    if function._jitload_key:
        raise JitLoadError(f"{function!r} cannot be tuned with a configuration: call {name}.tune(…)")
    if not isinstance(request, Request):
        raise JitLoadError(f"{name}() cannot be tuned: its source is not at hand. Load it with load_inline() or load()")
    if request.triton is not None and request.triton.choice is not None and name == request.triton.name:
        return request, None
    launch = dict(request.functions or ()).get(name)
    if launch is None or not isinstance(launch.tune, Tune):
        problem = "has no variants: declare them, Launch(tune=Tune(B=(128, 256)))"
        raise LaunchSpecError(problem, kernel=name, field="tune")
    return request, launch


def _candidates(
    function: TypedFunction, args: Sequence[Any], request: Request, launch: Launch | None, options: Options
) -> list[Candidate]:
    """Return the variants of a function, with rows for the key of these arguments."""
    name, chosen = function.__name__, function.variant(*args)
    words = ("graph" if options.graph else "eager", "cold" * options.flush_l2, "exact" * options.exact)
    with open_clock([function], args, options) as clock:
        like = Row(
            function=name, gpu=clock.model, dtypes=tuple(chosen.dtypes.items()), key=tuple(chosen.key.items()),
            values=(), number=0, mode=", ".join(filter(None, words)), driver=clock.driver,
            source=source_digest(request, name, launch),
        )  # fmt: skip
    if launch is not None:
        assert isinstance(launch.tune, Tune)
        pairs: list[tuple[Any, Any]] = [(values, None) for values in launch.tune.space(request.archs)]
    else:
        assert request.triton is not None
        module = load_request(request, None, keep_module_alive=True, verbose=False)  # with a function for each variant
        pairs = [(variant.values, module[variant.name]) for variant in request.triton.variants]
    return [Candidate(replace(like, values=v, number=n), built) for n, (v, built) in enumerate(pairs)]


# ---- builds ----------------------------------------------------------------------------------------------------------


def build_candidates(
    candidates: Sequence[Candidate], request: Request, launch: Launch, show: ShowProgress | None
) -> None:
    """Build variants of a launch, and set `function` or note a reason.

    Those whose launches exceed a limit are not built. The others with the same options are one program.
    """
    by_name = {candidate.name: candidate for candidate in candidates}
    functions = []
    for name, candidate in by_name.items():
        try:
            special = specialize(launch, candidate.row.function, candidate.row.values, candidate.row.dtypes)
            _check_limits(special)
            functions.append((name, special))
        except LaunchSpecError as error:
            candidate.note(reason=f"{error.field}: {error.problem}" if error.field else error.problem)
    settings = request.settings._replace(library="never")
    parts = groups(request._replace(functions=tuple(functions), tuned=None, settings=settings)) if functions else ()
    with ThreadPoolExecutor(core_count()) as pool:
        futures = [pool.submit(_build, part, by_name) for part in parts]
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            if show:
                show("build variants", count, len(futures))


def _check_limits(launch: Launch) -> None:
    """Raise LaunchSpecError if a launch exceeds a limit of all GPUs."""
    if isinstance(launch.shared_bytes, int) and launch.shared_bytes > _MAX_SHARED:
        raise LaunchSpecError(f"{launch.shared_bytes} bytes are more than a block can have", field="shared_bytes")
    extent = launch.cluster if isinstance(launch.cluster, tuple) else (launch.cluster,)
    if (blocks := math.prod(axis for axis in extent if isinstance(axis, int))) > _MAX_CLUSTER:
        raise LaunchSpecError(f"{blocks} blocks are more than {_MAX_CLUSTER}", field="cluster")


def _build(part: Request, candidates: Mapping[str, Candidate]) -> None:
    """Build variants as one program, so that its headers are read once, or one by one if it does not compile."""
    functions = tuple((name, replace(launch, tune=None)) for name, launch in part.functions or ())
    options = (*part.options, *((_SPLIT,) if len(functions) > 1 else ()))
    request = with_headers(part._replace(functions=functions, options=options))
    try:
        module = load_request(request, None, keep_module_alive=True, verbose=False)
    except (CompileError, LaunchSpecError, SignatureError) as error:
        if len(functions) == 1:
            candidates[functions[0][0]].note(reason=f"does not compile: {_problem(error)}")
            return
        with ThreadPoolExecutor(core_count()) as pool:
            list(pool.map(lambda pair: _build(part._replace(functions=(pair,)), candidates), functions))
    else:
        for name, _ in functions:
            candidates[name].function = module[name]


def _problem(error: JitLoadError) -> str:
    diagnostics = [d for d in getattr(error, "diagnostics", ()) if "error" in d.severity]
    return diagnostics[0].message if diagnostics else str(error).splitlines()[0]


# ---- checks and measurements -----------------------------------------------------------------------------------------


def _measure_candidates(
    candidates: Sequence[Candidate], args: Sequence[Any], options: Options, show: ShowProgress | None
) -> None:
    """Check and measure the variants that are built."""
    for candidate in candidates:
        if candidate.function is not None:
            _note_resources(candidate, candidate.function, args)
    built = [candidate for candidate in candidates if candidate.function is not None and not candidate.row.reason]
    if not built:
        return
    with open_check([candidate.function for candidate in built], args, options) as check:
        if not check.outputs and check.reference is None:
            _log.warning("tune() compared nothing: %s() writes to no tensor of the call", built[0].row.function)
        right = _check_results(built, check)
        _take_samples([subject for _, subject in right], options, show)
    for candidate, subject in right:
        result = subject.result(options)
        names = ("median_us", "p10_us", "p90_us", "samples", "bytes", "flop", "peak_gb_per_s")
        candidate.note(**{name: getattr(result, name) for name in names})


def _note_resources(candidate: Candidate, function: TypedFunction, args: Sequence[Any]) -> None:
    """Note which resources a variant uses, and the reason if it could not be launched."""
    kernel, plan = function.kernel, function.variant(*args)
    candidate.note(registers=kernel.registers, spill_bytes=kernel.spill_bytes)
    if kernel.shared_bytes is not None:
        candidate.note(shared_bytes=kernel.shared_bytes + plan.shared_bytes)
    threads, is_triton = plan.threads, "triton" in function._jitload_facts
    if threads > kernel.max_threads:
        candidate.note(reason=f"a block of {threads} threads is larger than the kernel allows, {kernel.max_threads}")
    elif kernel.registers is not None and (threads or is_triton):
        occupancy = function.occupancy() if is_triton else function.occupancy(threads, plan.shared_bytes)
        candidate.note(occupancy=occupancy.share)
        if not occupancy.blocks:
            candidate.note(reason=f"no block fits on a multiprocessor: {' and '.join(occupancy.limited_by)}")


def _check_results(built: Sequence[Candidate], check: Check) -> list[tuple[Candidate, Subject]]:
    """Return the variants with right results, prepared to be measured. Give the others a reason.

    Results are compared with those of the reference. Without one, or to be exact, with those of the first variant that
    can be launched.
    """
    options, clock, prepared = check.options, check.arguments.clock, []
    expected = [check.expect(check.reference)] if check.reference else []
    needs_first = options.exact or not expected
    for candidate in built:
        subject = Subject(candidate.function, check.arguments, candidate.row.label)
        try:
            for each in expected:
                check.check(subject, each)
            if needs_first:
                expected.append(check.expect(subject, is_exact=options.exact))
                needs_first = False
            if options.graph and not clock.is_host:
                subject.function = _captured(subject)
            subject.prepare(options)
            prepared.append((candidate, subject))
        except (RuntimeError, ValueError) as error:
            clock.wait()  # raises an error if the kernel has made the GPU's context unusable
            reason = str(error).removeprefix(f"{subject.name!r}: ").removeprefix(f"{candidate.name}(): ")
            candidate.note(reason=reason.replace(f"{subject.name!r} is ", "is ", 1))
    return prepared


def _captured(subject: Subject) -> Callable[..., None]:
    """Return a function that replays the launches of a call from a CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    # Torch's own stream for captures is on the device of the first capture of the process.
    with warnings.catch_warnings(), torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        warnings.filterwarnings("error", "The CUDA Graph is empty")  # its replays would seem to be quick
        subject.call()
    return lambda *_: graph.replay()


def _take_samples(alive: Sequence[Subject], options: Options, show: ShowProgress | None) -> None:
    """Measure variants in turns. Halve their number until few are left, or the time is used up."""
    restore_alike(alive, options)
    rounds = max(1, math.ceil(math.log2(max(1, len(alive)))))
    end = time.perf_counter() + options.seconds
    for number in range(rounds):
        now = time.perf_counter()
        until = now + max(0.0, end - now) / (rounds - number)
        for _ in range(_SAMPLES // rounds + 1):
            take_turns(alive)
            if time.perf_counter() >= until:
                break
        if show:
            show("measure variants", number + 1, rounds)
        ranked = sorted(alive, key=lambda subject: subject.result(options).median_us)
        alive = [subject for subject in alive if subject in ranked[: max(_LAST, math.ceil(len(alive) / 2))]]
