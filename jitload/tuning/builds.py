"""Builds the variants of a function, with as few runs of the compiler as possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jitload.building.resources import core_count
from jitload.errors import CompileError, JitLoadError, LaunchSpecError, SignatureError
from jitload.pipeline import load_request
from jitload.request.request import Request
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
