"""The function `jitload.prebuild`: builds many requests in many processes, on this machine or a cluster."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitload.building.progress import progress_bar
from jitload.errors import JitLoadError
from jitload.prebuilding.processes import LocalWorkers, worker_count
from jitload.prebuilding.requests import is_triton, needs_this_process, portable_request
from jitload.prebuilding.worker import Outcome, Task, build_task, failure, worker_environment
from jitload.request.tune import Tuned

if TYPE_CHECKING:
    from jitload.cache.archive import UnpackResult

_log = logging.getLogger(__name__)
_Done = Callable[[Task, Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prebuilt:
    """The outcomes of all requests, in the order of the requests.

    Attributes:
        outcomes: One outcome for each request. With `archs`, a request without an `arch` has one for each architecture.
        seconds: How long the whole call took.
        tuned: The measurements that chose among variants, by the names of their files.
    """

    outcomes: tuple[Outcome, ...]
    seconds: float
    tuned: Mapping[str, str] = field(default_factory=dict)

    @property
    def built(self) -> tuple[Outcome, ...]:
        """The outcomes of the requests that were compiled."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "built")

    @property
    def reused(self) -> tuple[Outcome, ...]:
        """The outcomes of the requests whose libraries were in the cache."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "reused")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The outcomes of the requests that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "failed")

    def check(self) -> None:
        """Raise JitLoadError if any request failed. The error's message is `str(self)`, a summary."""
        if self.failed:
            raise JitLoadError(str(self))

    def fill_bundle(self, directory: str | os.PathLike[str]) -> UnpackResult:
        """Copy the libraries to a directory that every user may read, to ship them in a package or an image.

        Libraries that are already in the directory are kept. A package installs the directory as
        `jitload_bundles/<name>`. The files that `tuned=` named are copied, too.

        Returns:
            An `UnpackResult` with the number of new libraries, `added`, and of earlier libraries, `present`.

        Raises:
            CacheError: The directory cannot be written.
        """
        from jitload.cache.archive import fill_bundle

        return fill_bundle(self.entry_dirs(), Path(directory).absolute(), self.tuned.items())

    def entry_dirs(self) -> tuple[Path, ...]:
        """Return the directories in the cache that hold the libraries."""
        return tuple(Path(outcome.path).parent for outcome in (*self.built, *self.reused))

    def __str__(self) -> str:
        counts = f"{len(self.built)} built, {len(self.reused)} reused, {len(self.failed)} failed"
        lines = [f"  {outcome.name} ({outcome.arch}): {outcome.error}" for outcome in self.failed]
        return "\n".join((f"{counts}, in {self.seconds:.1f} s", *lines))


def prebuild(
    requests: Iterable[Mapping[str, Any]],
    executor: Executor | None = None,
    *,
    progress: bool = True,
    archs: Sequence[str] | None = None,
    jobs: int | None = None,
) -> Prebuilt:
    """Build many libraries into the cache for later calls. No GPU is needed.

    A failed request or a dead worker does not stop the other requests. Ctrl-C ends the workers, but finished libraries
    stay in the cache.

    Args:
        requests: Mappings with the keywords of `build_inline`, such as `{"name": "vec", "cuda_sources": text}`. A
            mapping that names files has the keywords of `build`. A mapping with the key `kernel` has the keywords of
            `load_triton`: `kernel` is a Triton kernel or its import name, `"my_package.kernels:add"`, and `args` are
            example arguments. A Triton kernel is built in this process if it is defined in `__main__` or a notebook, or
            if its request cannot be pickled.
        executor: An executor of `concurrent.futures`, such as Dask's `client.get_executor()` or mpi4py's. Its workers
            get this process's `JITLOAD_*` variables, and need the same versions of all tools and packages. By default,
            processes on this machine build the requests.
        progress: Whether to show a progress bar, on a terminal or in a notebook.
        archs: Architectures, `("sm_80", "sm_90a")`. A request without an `arch` is built once for each of them. Calls
            with `arch="native"` on a GPU of such an architecture find the library. A request with an `arch` of its own
            is built once, for that `arch`.
        jobs: The number of processes on this machine. The default is as many as cores and memory allow.

    Returns:
        The outcomes. `print()` shows a summary, and `.check()` raises an error if a request failed.

    Raises:
        JitLoadError: `requests` or `archs` is invalid.

    Example:
        `prebuild([{"name": "vec", "cuda_sources": text}], archs=("sm_80", "sm_90a")).check()`
    """
    tasks = _tasks(requests, archs)
    tuned = _measurements(tasks)
    started = time.monotonic()
    outcomes: dict[int, Outcome] = {}
    try:
        with progress_bar(is_shown=progress and bool(tasks)) as show:

            def done(task: Task, outcome: Outcome) -> None:
                outcomes[task.number] = outcome
                if show:
                    counts = Counter(outcome.state for outcome in outcomes.values())
                    states = ", ".join(f"{count} {state}" for state, count in counts.items())
                    show(f"prebuild: {states}", len(outcomes), len(tasks))

            if show:
                show("prebuild", 0, len(tasks))
            _run(tasks, executor, jobs, outcomes, done)
    except BaseException:
        summary = Prebuilt(outcomes=tuple(outcomes.values()), seconds=time.monotonic() - started)
        _log.warning("prebuild() was interrupted with %d requests left: %s", len(tasks) - len(outcomes), summary)
        raise
    ordered = tuple(outcomes[task.number] for task in tasks)
    return Prebuilt(outcomes=ordered, seconds=time.monotonic() - started, tuned=tuned)


def _tasks(requests: Iterable[Mapping[str, Any]], archs: Sequence[str] | None) -> tuple[Task, ...]:
    """Return one task for each request.

    With `archs`, a request without its own architecture has one task for each item of `archs`.
    """
    if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
        raise JitLoadError(f"requests must be an iterable of mappings, such as a list, got {type(requests).__name__}")
    if isinstance(archs, str):
        archs = (archs,)
    if archs is not None and not (isinstance(archs, Iterable) and archs and all(isinstance(a, str) for a in archs)):
        raise JitLoadError(f"archs must be architectures, ('sm_80', 'sm_90a'), or None, got {archs!r}")
    expanded = []
    for request in map(portable_request, requests):
        has_own_arch = not isinstance(request, Mapping) or request.get("arch") not in (None, "native")
        if archs is None or has_own_arch:
            expanded.append(request)
        else:
            expanded += [{**request, "arch": arch} for arch in archs]
    environment = worker_environment(has_triton=any(map(is_triton, expanded)))
    run = secrets.token_hex(8)
    return tuple(
        Task(number=number, request=request, environment=environment, needs_caller=needs_this_process(request), run=run)
        for number, request in enumerate(expanded)
    )


def _measurements(tasks: Sequence[Task]) -> dict[str, str]:
    """Return the files by which the libraries choose among variants, by their names."""
    files: dict[str, Tuned] = {}
    for task in tasks:
        value = task.request.get("tuned") if isinstance(task.request, Mapping) else None
        if not isinstance(value, Mapping) or not (name := Tuned(**value).file_name):
            continue
        file = files.setdefault(name, Tuned(**value))
        if file.text != value["text"]:
            raise JitLoadError(f"{file.label} and {value['label']} differ, and have the same name: rename one of them")
    return {name: file.text for name, file in files.items()}


# ---- where it runs ---------------------------------------------------------------------------------------------


def _run(
    tasks: Sequence[Task], executor: Executor | None, jobs: int | None, outcomes: Mapping[int, Outcome], done: _Done
) -> None:
    """Build the tasks with the executor. Without an executor, or if it breaks, build the rest on this machine.

    `done` adds the outcome of a task to `outcomes`.
    """
    if executor is not None:
        _run_in(executor, tasks, done)
        if tasks := [task for task in tasks if task.number not in outcomes]:
            lost = "a worker of the executor died, and %d requests are left; they are built on this machine"
            _log.warning(lost, len(tasks))
    if tasks:
        with LocalWorkers(min(worker_count() if jobs is None else jobs, len(tasks))) as workers:
            _run_in(workers, tasks, done)


def _run_in(executor: Executor, tasks: Sequence[Task], done: _Done) -> None:
    """Build tasks with an executor, and those with `needs_caller` in this process.

    If the executor breaks, its other tasks are not done.
    """
    futures: dict[Future[Outcome], Task] = {}
    try:
        with suppress(BrokenExecutor):
            for task in tasks:
                if not task.needs_caller:
                    futures[executor.submit(build_task, task)] = task
        for task in tasks:
            if task.needs_caller:
                done(task, build_task(task))
        for future in as_completed(futures):
            with suppress(BrokenExecutor):
                done(futures[future], _outcome(future, futures[future]))
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _outcome(future: Future[Outcome], task: Task) -> Outcome:
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except CancelledError:
        return failure(task, "the executor cancelled the request")
    except Exception as error:  # noqa: BLE001  an executor has exceptions of its own
        return failure(task, error)
