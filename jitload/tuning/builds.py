"""Builds the variants of a function, with as few runs of the compiler as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jitload.building.resources import core_count
from jitload.errors import CompileError, JitLoadError, LaunchSpecError, SignatureError
from jitload.pipeline import load_request
from jitload.request.request import Request
from jitload.request.tune import Values
from jitload.request.variants import groups, specialize, with_headers

if TYPE_CHECKING:
    from jitload.cache.prune import ShowProgress
    from jitload.loader.function import TypedFunction
    from jitload.request.launch import Launch
    from jitload.request.rows import Row

_MAX_SHARED = 227 << 10  # dynamic shared memory of a block on the GPUs that allow the most
_MAX_CLUSTER = 16
_SPLIT = "--split-compile=0"  # NVRTC optimizes the instances of a program on all cores


@dataclass(slots=True)
class Candidate:
    """A variant that is measured.

    Attributes:
        row: What is known about it.
        launch: Its launch. None if it exceeds a limit, and for a Triton kernel.
        function: The function that launches it alone, once it is built.
    """

    row: Row
    launch: Launch | None = None
    function: TypedFunction | None = None

    @property
    def name(self) -> str:
        """The name of the function that launches it alone."""
        return f"variant_{self.row.number}"

    def note(self, **facts: Any) -> None:
        """Change fields of the row."""
        self.row = replace(self.row, **facts)


def make_candidates(launch: Launch, space: Sequence[Values], like: Row) -> list[Candidate]:
    """Return the variants of a function, with rows like this one. Those whose launches exceed a limit have a reason."""
    candidates = [Candidate(replace(like, values=values, number=number)) for number, values in enumerate(space)]
    for candidate in candidates:
        try:
            candidate.launch = specialize(launch, like.function, candidate.row.values, like.dtypes)
            candidate.note(reason=_limit(candidate.launch))
        except LaunchSpecError as error:
            candidate.note(reason=f"{error.field}: {error.problem}" if error.field else error.problem)
    return candidates


def _limit(launch: Launch) -> str:
    """Return which limit of all GPUs a launch exceeds, or ""."""
    if isinstance(launch.shared_bytes, int) and launch.shared_bytes > _MAX_SHARED:
        return f"{launch.shared_bytes} bytes of dynamic shared memory are more than a block can have"
    extent = launch.cluster if isinstance(launch.cluster, tuple) else (launch.cluster,)
    blocks = math.prod(axis for axis in extent if isinstance(axis, int))
    return f"a cluster of {blocks} blocks is larger than {_MAX_CLUSTER}" if blocks > _MAX_CLUSTER else ""


def build_candidates(candidates: Sequence[Candidate], request: Request, show: ShowProgress | None) -> None:
    """Build variants, and set `function` or note a reason. Variants with the same options are one program."""
    pending = {c.name: c for c in candidates if c.launch is not None and not c.row.reason}
    functions = tuple((name, candidate.launch) for name, candidate in pending.items() if candidate.launch)
    settings = request.settings._replace(library="never")
    parts = groups(request._replace(functions=functions, tuned=None, settings=settings))
    programs = [(part, [pending[name] for name, _ in part.functions or ()]) for part in parts if part.functions]
    with ThreadPoolExecutor(core_count()) as pool:
        futures = [pool.submit(_build, *program) for program in programs]
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            if show:
                show("build variants", count, len(futures))


def _build(part: Request, members: Sequence[Candidate]) -> None:
    """Build variants as one program, so that its headers are read once, or one by one if it does not compile."""
    functions = tuple((c.name, replace(c.launch, tune=None)) for c in members if c.launch)
    options = (*(option for option in part.options if option != _SPLIT), *((_SPLIT,) if len(members) > 1 else ()))
    request = with_headers(part._replace(functions=functions, options=options))
    try:
        module = load_request(request, None, keep_module_alive=True, verbose=False)
    except (CompileError, LaunchSpecError, SignatureError) as error:
        if len(members) == 1:
            members[0].note(reason=f"does not compile: {_problem(error)}")
            return
        with ThreadPoolExecutor(core_count()) as pool:
            list(pool.map(lambda member: _build(part, [member]), members))
    else:
        for candidate in members:
            candidate.function = module[candidate.name]


def _problem(error: JitLoadError) -> str:
    diagnostics = [d for d in getattr(error, "diagnostics", ()) if "error" in d.severity]
    return diagnostics[0].message if diagnostics else str(error).splitlines()[0]
