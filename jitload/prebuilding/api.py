"""`prebuild`: many requests in, a cache filled by many processes, on this machine or a cluster, and a summary out."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jitload.errors import JitLoadError
from jitload.prebuilding.processes import LocalWorkers, local_workers, worker_count
from jitload.prebuilding.requests import is_triton, must_stay, travelling
from jitload.prebuilding.worker import Outcome, Task, build_task, failed, own_environment

_LINES = 10  # of progress, where there is no tqdm
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prebuilt:
    """What became of the requests, in their order.

    Attributes:
        outcomes: One for each request, and for each architecture where `archs` was given.
        seconds: How long it all took.
    """

    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def built(self) -> tuple[Outcome, ...]:
        """What was compiled."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "built")

    @property
    def reused(self) -> tuple[Outcome, ...]:
        """What was in the cache."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "reused")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """What went wrong."""
        return tuple(outcome for outcome in self.outcomes if outcome.state == "failed")

    def check(self) -> None:
        """Raise JitLoadError, with this summary, if a request failed."""
        if self.failed:
            raise JitLoadError(str(self))

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
    """Build many libraries into the cache, so that later calls find them; no GPU is needed.

    A request that fails, or whose worker dies, does not stop the others. Ctrl-C ends the workers, and what was built
    until then stays.

    Args:
        requests: The keywords of `build_inline`, or of `build` where `sources=` names files, as a mapping each:
            `{"name": "vec", "cuda_sources": text, "arch": "sm_90a"}`. With `kernel`, the keywords of `load_triton`: a
            Triton kernel, or the name by which it is imported, `"my_package.kernels:add"`; example arguments go
            by `args`. A Triton kernel of a program or a notebook, which no other process can import, and one whose
            request cannot be sent, are built in this process.
        executor: Where to build: any executor of `concurrent.futures`, such as Dask's `client.get_executor()` or
            mpi4py's; its workers take over this process's `JITLOAD_*` and need the same versions of everything that
            is in a key. None starts processes on this machine.
        progress: Show how far it is: a bar where tqdm is installed, else a few lines.
        archs: Build each request once for each of these, `("sm_80", "sm_90a")`, as a call with `arch="native"` asks
            for it on such a GPU. A request that names its own `arch` keeps it; several in that make one library for
            all of them.
        jobs: How many processes on this machine; the default is bounded by cores and memory.

    Returns:
        What was built, reused and failed. `print` it, or `.check()` it.

    Raises:
        JitLoadError: `requests`, `archs`, `jobs` or `executor` is not what it should be.

    Example:
        `prebuild([{"name": "vec", "cuda_sources": text}], archs=("sm_80", "sm_90a")).check()`
    """
    tasks = _tasks(requests, archs)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise JitLoadError(f"executor must have submit(), as concurrent.futures.Executor does, got {executor!r}")
    if jobs is not None and (not isinstance(jobs, int) or jobs < 1):
        raise JitLoadError(f"jobs must be a positive number of processes, got {jobs!r}")
    started = time.monotonic()
    outcomes: dict[int, Outcome] = {}
    try:
        with _progress(len(tasks), outcomes, is_shown=progress) as done:
            _run(tasks, executor, jobs, done)
    except BaseException:
        summary = Prebuilt(outcomes=tuple(outcomes.values()), seconds=time.monotonic() - started)
        _log.warning("prebuild() was interrupted with %d requests left: %s", len(tasks) - len(outcomes), summary)
        raise
    ordered = tuple(outcomes[task.number] for task in tasks)
    return Prebuilt(outcomes=ordered, seconds=time.monotonic() - started)


def _tasks(requests: Iterable[Mapping[str, Any]], archs: Sequence[str] | None) -> tuple[Task, ...]:
    """Return the requests with their numbers, those that name no architecture once for each of `archs`."""
    if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
        raise JitLoadError(f"requests must be several mappings, in a list say, got {type(requests).__name__}")
    if isinstance(archs, str):
        archs = (archs,)
    if archs is not None and not (isinstance(archs, Iterable) and all(isinstance(one, str) for one in archs) and archs):
        raise JitLoadError(f"archs must be architectures, ('sm_80', 'sm_90a'), or None, got {archs!r}")
    spread = []
    for request in map(travelling, requests):
        says_its_own = not isinstance(request, Mapping) or request.get("arch") not in (None, "native")
        if archs is None or says_its_own:
            spread.append(request)
        else:
            spread += [{**request, "arch": arch} for arch in archs]
    environment = own_environment(has_triton=any(map(is_triton, spread)))
    run = secrets.token_hex(8)
    return tuple(
        Task(number=number, request=request, environment=environment, is_own=must_stay(request), run=run)
        for number, request in enumerate(spread)
    )


# ---- where it runs ---------------------------------------------------------------------------------------------


def _run(tasks: Sequence[Task], executor: Executor | None, jobs: int | None, done: _Progress) -> None:
    """Build with the executor, and on this machine if there is none or what it left when it broke."""
    if executor is not None:
        left = _run_in(executor, tasks, done)
        if left:
            lost = "the executor lost a worker and with it %d requests; they are built on this machine"
            _log.warning(lost, len(left))
        tasks = left
    if tasks:
        with local_workers(min(jobs or worker_count(), len(tasks))) as workers:
            _run_in(workers, tasks, done)


def _run_in(executor: Executor | LocalWorkers, tasks: Sequence[Task], done: _Progress) -> tuple[Task, ...]:
    """Build with an executor, and in this process what only it can; return the requests that a broken executor left."""
    futures: dict[Future[Outcome], Task] = {}
    left = []
    try:
        for task in tasks:
            if not task.is_own:
                future = _submit(executor, task)
                futures[future] = task
        for task in tasks:
            if task.is_own:
                done.add(task, build_task(task))
        for future in as_completed(futures):
            outcome = _outcome(future, futures[future])
            if outcome is None:
                left.append(futures[future])
            else:
                done.add(futures[future], outcome)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return tuple(left)


def _submit(executor: Executor | LocalWorkers, task: Task) -> Future[Outcome]:
    """Submit a request; where the executor is broken, return a future that says so."""
    try:
        return executor.submit(build_task, task)
    except BrokenExecutor as error:
        future: Future[Outcome] = Future()
        future.set_exception(error)
        return future
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise JitLoadError(f"the executor {executor!r} takes no tasks ({problem}): give one that is open") from error


def _outcome(future: Future[Outcome], task: Task) -> Outcome | None:
    """Return what became of a request; None if that is not known, because the executor broke under it."""
    try:
        return future.result()
    except BrokenExecutor:
        return None
    except CancelledError:
        return failed(task, "the executor cancelled it")
    except Exception as error:  # noqa: BLE001  of the executor's own kind: a worker was killed, a task cannot be sent
        return failed(task, error)


# ---- progress --------------------------------------------------------------------------------------------------


class _Progress:
    """The outcomes so far, by the numbers of their tasks; shows nothing."""

    def __init__(self, total: int, outcomes: dict[int, Outcome]) -> None:
        self.total = total
        self.outcomes = outcomes
        self.failures = 0

    def add(self, task: Task, outcome: Outcome) -> None:
        """Add the outcome of a request, and show how far it is."""
        self.outcomes[task.number] = outcome
        self.failures += outcome.state == "failed"
        self.show()

    def show(self) -> None:
        """Show how many requests are done."""


class _Lines(_Progress):
    """Writes a line for each tenth."""

    def show(self) -> None:
        """Write a line when the next tenth is full."""
        count = len(self.outcomes)
        if count * _LINES // self.total != (count - 1) * _LINES // self.total:
            failures = f", {self.failures} failed" if self.failures else ""
            sys.stderr.write(f"prebuild: {count} of {self.total}{failures}\n")
            sys.stderr.flush()


class _Bar(_Progress):
    """Shows the bar of tqdm."""

    def __init__(self, total: int, outcomes: dict[int, Outcome], bar: Any) -> None:
        super().__init__(total, outcomes)
        self._bar = bar

    def show(self) -> None:
        """Move the bar."""
        if self.failures:
            self._bar.set_postfix_str(f"{self.failures} failed", refresh=False)
        self._bar.update()


@contextmanager
def _progress(total: int, outcomes: dict[int, Outcome], *, is_shown: bool) -> Iterator[_Progress]:
    if not is_shown or not total:
        yield _Progress(total, outcomes)
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield _Lines(total, outcomes)
        return
    with tqdm(total=total, desc="prebuild", unit="kernel") as bar:
        yield _Bar(total, outcomes, bar)
