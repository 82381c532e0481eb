"""The function `jitload.tune`: builds, checks and measures the variants of a function, and chooses one."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from jitload.building.progress import ShowProgress, progress_bar
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
from jitload.request.tune import Tune, Values
from jitload.request.variants import groups, source_digest, specialize
from jitload.tables import Rates
from jitload.tracebacks import ends_at_caller

_log = logging.getLogger(__name__)
_SAMPLES = 500  # the most samples of a variant
_LAST = 2  # variants that are measured to the end
_SPLIT = "--split-compile=0"  # NVRTC optimizes the instances of a program on all cores


# Variants by the names of the functions that launch them alone: what is known about them, and those that are built.
Rows = dict[str, Row]
Functions = dict[str, TypedFunction]


@ends_at_caller
def tune(function: TypedFunction, *args: Any, seconds: float = 5.0, progress: bool = True, **options: Any) -> Tuning:
    """Measure the variants of a function for the key of these arguments, and choose the fastest.

    The function has a `Launch(tune=…)`. All variants are built, and those whose results are wrong are left out. The
    others are measured in turns; again and again, the slower half is left out. Of those that tie, the first in the
    order of the `Tune` is chosen. The arguments have their original values afterwards. Variants that the file of
    `tuned=` has for this key, GPU and driver are not measured again, except for the first and the best of them.

    Args:
        function: The function.
        *args: The arguments of a call.
        seconds: Roughly how long to measure, in addition to the builds and checks.
        progress: Whether to show a progress bar, on a terminal or in a notebook.
        **options: `reference`, `outputs`, `rtol`, `atol`, `flush_l2`, `bytes`, `flop` and `restore` as for `compare`.
            With `exact=True`, only variants are admitted whose results equal those of the first variant bit for bit.
            With `graph=True`, launches of a captured CUDA graph are measured, except on the CPU.

    Returns:
        A `Tuning`. `print` shows it, `save` writes it to a file, and `load_inline(…, tuned=…)` chooses by it.

    Raises:
        JitLoadError: The function has no `Tune`, or its source is not at hand: it was loaded with `load_module`.
    """
    request, launch, space = _origin(function)
    checked = Options(seconds=seconds, **options)
    like = _row(function, args, request, launch, checked)
    rows = {name: replace(like, values=values, number=n) for n, (name, values) in enumerate(space.items())}
    known = {r.values: r for r in read_rows(request.tuned) if (r.group, r.method) == (like.group, like.method)}
    if (best := choose(known.values())) is None:
        known = {}  # if none was right, the reference may have been wrong
    again = {next(iter(space.values())), best.values} if best else set()  # the others may be checked against the first
    if any(row.values not in known for row in rows.values()):
        compared = {name: row for name, row in rows.items() if row.values in again or row.values not in known}
        with progress_bar(is_shown=progress) as show:
            if launch is not None:
                named = replace(launch, kernel=launch.kernel or function._jitload_facts["kernel"]["name"])
                functions = build_variants(compared, request, named, show)
            else:
                module = load_request(request)
                functions = {name: module[name] for name in compared}
            _measure(compared, functions, args, checked, show)
        known |= {row.values: row for row in compared.values()}
    return Tuning(replace(known[row.values], number=row.number) for row in rows.values())


def _origin(function: object) -> tuple[Request, Launch | None, dict[str, Values]]:
    """Return the request that a function was built for, its launch, or None for a Triton kernel, and its variants."""
    if not isinstance(function, TypedFunction):
        raise TypeError(f"tune() takes a function of a module, mod.f, got {type(function).__name__}")
    name, request = function.__name__, function._jitload_library.request
    if function._jitload_key:
        raise JitLoadError(f"{function!r} cannot be tuned with a configuration: call {name}.tune(…)")
    if not isinstance(request, Request):
        raise JitLoadError(f"{name}() cannot be tuned: its source is not at hand. Load it with load_inline() or load()")
    if request.triton is not None and request.triton.choice is not None and name == request.triton.name:
        return request, None, {variant.name: variant.values for variant in request.triton.variants}
    launch = dict(request.functions or ()).get(name)
    if launch is None or not isinstance(launch.tune, Tune):
        problem = "has no variants: declare them, Launch(tune=Tune(B=(128, 256)))"
        raise LaunchSpecError(problem, kernel=name, field="tune")
    return request, launch, {f"variant_{n}": v for n, v in enumerate(launch.tune.space(request.archs))}


def _row(
    function: TypedFunction, args: Sequence[Any], request: Request, launch: Launch | None, options: Options
) -> Row:
    """Return what the rows of a function's variants have in common, for the key of these arguments."""
    chosen = function.variant(*args)
    words = ("graph" if options.graph else "eager", "cold" * options.flush_l2, "exact" * options.exact)
    with open_clock([function], args, options) as clock:
        return Row(
            function=function.__name__, gpu=clock.model, dtypes=tuple(chosen.dtypes.items()),
            key=tuple(chosen.key.items()), values=(), number=0, mode=", ".join(filter(None, words)),
            driver=clock.driver, source=source_digest(request, function.__name__, launch),
        )  # fmt: skip


# ---- builds ----------------------------------------------------------------------------------------------------------


def build_variants(rows: Rows, request: Request, launch: Launch, show: ShowProgress | None) -> Functions:
    """Build variants of a launch, and note the reasons of those that cannot be built in their rows.

    Those whose launches exceed a limit are not built. The others with the same options are one program.
    """
    launches, built = [], Functions()
    for name, row in rows.items():
        try:
            launches.append((name, specialize(launch, row.function, row.values, row.dtypes)))
        except LaunchSpecError as error:
            rows[name] = replace(row, reason=f"{error.field}: {error.problem}" if error.field else error.problem)
    settings = request.settings._replace(library="never")
    parts = groups(request._replace(functions=tuple(launches), tuned=None, settings=settings)) if launches else ()
    with ThreadPoolExecutor(core_count()) as pool:
        futures = [pool.submit(_build, part, rows, built) for part in parts]
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            if show:
                show("build variants", count, len(futures))
    return {name: built[name] for name in rows if name in built}


def _build(part: Request, rows: Rows, built: Functions) -> None:
    """Build variants as one program, so that its headers are read once, or one by one if it does not compile."""
    functions = part.functions or ()
    request = part._replace(options=(*part.options, _SPLIT)) if len(functions) > 1 else part
    try:
        module = load_request(request)
    except (CompileError, LaunchSpecError, SignatureError) as error:
        if len(functions) == 1:
            name = functions[0][0]
            rows[name] = replace(rows[name], reason=str(error).splitlines()[0])
            return
        with ThreadPoolExecutor(core_count()) as pool:
            list(pool.map(lambda pair: _build(part._replace(functions=(pair,)), rows, built), functions))
    else:
        built.update((name, module[name]) for name, _ in functions)


# ---- checks and measurements -----------------------------------------------------------------------------------------


def _measure(
    rows: Rows, functions: Functions, args: Sequence[Any], options: Options, show: ShowProgress | None
) -> None:
    """Check and measure the variants that are built."""
    if not functions:
        return
    with open_check([*functions.values()], args, options) as check:
        if not check.outputs and check.reference is None:
            name = next(iter(rows.values())).function
            _log.warning("tune() compared nothing: %s() writes to no tensor of the call", name)
        subjects = _right_subjects(rows, functions, check)
        _take_samples([*subjects.values()], options, show)
    for name, subject in subjects.items():
        result = subject.result(options)
        rows[name] = replace(rows[name], **{field: getattr(result, field) for field in ("samples", *Rates.__slots__)})


def _resources(function: TypedFunction, args: Sequence[Any]) -> dict[str, Any]:
    """Return what a variant uses, by the fields of a row. Raise ValueError if it cannot be launched."""
    kernel, call = function.kernel, function.variant(*args)
    used: dict[str, Any] = {"registers": kernel.registers, "spill_bytes": kernel.spill_bytes}
    if kernel.shared_bytes is not None:
        used["shared_bytes"] = kernel.shared_bytes + call.shared_bytes
    if kernel.registers is not None:
        occupancy = function.occupancy(call.threads or None, call.shared_bytes or None)  # or those of a Triton kernel
        if not occupancy.blocks:
            raise ValueError(f"no block fits on a multiprocessor: {' and '.join(occupancy.limited_by)}")
        used["occupancy"] = occupancy.share
    return used


def _right_subjects(rows: Rows, functions: Functions, check: Check) -> dict[str, Subject]:
    """Return the variants with right results, prepared to be measured. Note the reasons of the others in their rows.

    Results are compared with those of the reference. Without one, or to be exact, they are compared with those of the
    first variant that is right.
    """
    options, clock, prepared = check.options, check.arguments.clock, {}
    expected = check.expect(check.reference) if check.reference else None
    for name, function in functions.items():
        subject = Subject(function, check.arguments, rows[name].label)
        try:
            rows[name] = replace(rows[name], **_resources(function, check.arguments.values))
            if expected is not None:
                check.check(subject, expected)
            if expected is None or options.exact > expected.is_exact:
                expected = check.expect(subject)
            if options.graph and not clock.is_host:
                subject.function = _captured(subject)
            subject.prepare(options)
            prepared[name] = subject
        except (RuntimeError, ValueError) as error:
            clock.wait()  # raises an error if the kernel has made the GPU's context unusable
            reason = str(error).removeprefix(f"{subject.name!r}: ").removeprefix(f"{name}(): ")
            rows[name] = replace(rows[name], reason=reason.replace(f"{subject.name!r} is ", "is ", 1))
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
    for number in range(rounds):
        until = time.perf_counter() + options.seconds / rounds
        for _ in range(_SAMPLES // rounds + 1):
            take_turns(alive)
            if time.perf_counter() >= until:
                break
        if show:
            show("measure variants", number + 1, rounds)
        ranked = sorted(alive, key=lambda subject: subject.result(options).median_us)
        alive = [subject for subject in alive if subject in ranked[: max(_LAST, math.ceil(len(alive) / 2))]]
