"""A request of `prebuild` in, what became of it out: what a worker does, wherever it is."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jitload.errors import CompileError, JitLoadError
from jitload.settings import UPSTREAMS_ARCH

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.ninja_runs import Building, NinjaRun

_MOST = 8  # builds that share a run of ninja
_LONGEST_S = 0.25  # that others may begin after the first; builds that take long save nothing
_OLD_S = 1.0  # that builds wait for one that NVRTC takes long over
_OURS = "JITLOAD_"
_LONGEST_SHOWN = 80  # of a name in the summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request on its way to a worker, wherever that is.

    Attributes:
        number: Its place among the requests.
        request: The keywords of `build_inline`, `build` or `load_triton`.
        environment: The caller's variables that decide what is made; they hold for the worker, too.
        is_own: Whether only the caller's process can build it.
        run: What tells one `prebuild` from another: Dask answers a task that equals an earlier one without running it.
    """

    number: int
    request: Mapping[str, Any]
    environment: tuple[tuple[str, str], ...] = ()
    is_own: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request.

    Attributes:
        name: The module's name.
        arch: The architectures that were asked for.
        state: `"built"`, `"reused"` (it was in the cache, or another process built it meanwhile), or `"failed"`.
        path: The library, where the worker sees it.
        error: The first line of what went wrong.
        log: All of it, as the call itself would have raised it: with the compiler's words.
        seconds: How long it took.
    """

    name: str
    arch: str
    state: Literal["built", "reused", "failed"]
    path: str = ""
    error: str = ""
    log: str = ""
    seconds: float = 0.0


def own_environment(*, has_triton: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the variables that a worker elsewhere takes over: what we read, and what changes what Triton makes."""
    names = {name for name in os.environ if name.startswith(_OURS) or name == UPSTREAMS_ARCH}
    if has_triton:
        from jitload.triton.key import is_in_key

        names |= set(filter(is_in_key, os.environ))
    return tuple((name, os.environ[name]) for name in sorted(names))


def failed(task: Task, error: BaseException | str, seconds: float = 0.0) -> Outcome:
    """Return the outcome of a request that went wrong."""
    name, arch = _names(task.request)
    lines = str(error).strip().splitlines() or [""]
    first = lines[0] if isinstance(error, JitLoadError | str) else f"{type(error).__name__}: {lines[0]}"
    if isinstance(error, CompileError) and not error.diagnostics and (said := error.log.strip().splitlines()):
        first += f": {said[-1].strip()}"  # Triton says where it was, shows the lines, and then what is wrong
    return Outcome(name=name, arch=arch, state="failed", error=first, log=str(error), seconds=seconds)


def _names(request: Any) -> tuple[str, str]:
    fields = request if isinstance(request, Mapping) else {}
    arch = fields.get("arch", "native")
    archs = arch if isinstance(arch, list | tuple) else (arch,)
    return _shown(fields.get("name", "?")), _shown(", ".join(map(str, archs)))


def _shown(value: object) -> str:
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def build_one(task: Task) -> Outcome:
    """Build what a request asks for, in this process, and return what became of it; errors are outcomes."""
    from jitload.ninja_runs import run_alone
    from jitload.prebuild_requests import building_of

    started = time.monotonic()
    _take_over(task.environment)
    try:
        entry = run_alone(building_of(task.request))
    except Exception as error:  # noqa: BLE001  one failure must not stop the rest
        return failed(task, error, time.monotonic() - started)
    return _done(task, entry, time.monotonic() - started)


def _take_over(environment: tuple[tuple[str, str], ...]) -> None:
    for name, value in environment:
        if os.environ.get(name) != value:
            os.environ[name] = value


def _done(task: Task, entry: Entry, seconds: float) -> Outcome:
    name, arch = _names(task.request)
    state: Literal["built", "reused"] = "built" if entry.is_new else "reused"
    return Outcome(name=name, arch=arch, state=state, path=str(entry.product), seconds=seconds)


# ---- several at once -------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Started:
    """A build that waits for ninja, and the time that it has taken so far."""

    task: Task
    building: Building[Entry]
    seconds: float = 0.0
    run: NinjaRun | None = None

    def go_on(self, error: Exception | None = None) -> Outcome | None:
        """Go on to the next run of ninja, or to the end; `error` is what was wrong with the last one.

        Raises:
            LockHeldError: It has not begun, since somebody else builds it and it must not wait.
        """
        from jitload.cache.locks import LockHeldError

        started = time.monotonic()
        try:
            self.run = next(self.building) if error is None else self.building.throw(error)
        except StopIteration as end:
            return _done(self.task, end.value, self.seconds + time.monotonic() - started)
        except Exception as failure:  # one must not stop the rest
            if isinstance(failure, LockHeldError) and error is None:
                raise
            return failed(self.task, failure, self.seconds + time.monotonic() - started)
        self.seconds += time.monotonic() - started
        return None


class Batch:
    """Builds of which each has come to its run of ninja, which they share.

    Each holds the lock of its key meanwhile. So none of them waits for a lock: two workers could wait for each other.
    """

    def __init__(self, report: Callable[[Task, Outcome], None]) -> None:
        self._report = report
        self._builds: list[_Started] = []
        self._started = 0.0
        self._is_finishing = False

    def build(self, first: Task, ask: Callable[[], Task | None]) -> None:
        """Build a request, and others with it that `ask` gives, as long as they are small."""
        self._started = time.monotonic()
        task: Task | None = first
        try:
            while task is not None:
                self._add(task)
                is_full = len(self._builds) == _MOST or self._age_s() > _LONGEST_S
                task = ask() if self._builds and not is_full else None
            self._finish()
        finally:
            for build in self._builds:
                build.building.close()

    def _add(self, task: Task) -> None:
        """Start a build; one that somebody else is at is waited for when nothing is held."""
        from jitload.cache.locks import LockHeldError
        from jitload.cuda.interruptible import doing_meanwhile

        _take_over(task.environment)
        try:
            with doing_meanwhile(self._finish_if_old):
                self._start(task, is_patient=not self._builds)
        except LockHeldError:
            self._finish()
            self._start(task, is_patient=True)

    def _start(self, task: Task, *, is_patient: bool) -> None:
        from jitload.prebuild_requests import building_of

        build = _Started(task=task, building=building_of(task.request, is_patient=is_patient))
        if outcome := build.go_on():
            self._report(task, outcome)
        else:
            self._builds.append(build)

    def _age_s(self) -> float:
        return time.monotonic() - self._started

    def _finish_if_old(self) -> None:
        """Finish those that wait; not while that is done, when one that starts over is in NVRTC again."""
        if self._age_s() > _OLD_S and not self._is_finishing:
            self._is_finishing = True
            try:
                self._finish()
            finally:
                self._is_finishing = False

    def _finish(self) -> None:
        """Run ninja for all that have come to it, until each has come to its end."""
        from jitload.ninja_runs import run_together

        while builds := tuple(self._builds):
            started = time.monotonic()
            errors = run_together([build.run for build in builds if build.run])
            share = (time.monotonic() - started) / len(builds)
            for build, error in zip(builds, errors, strict=True):
                build.seconds += share
                if outcome := build.go_on(error):
                    self._builds.remove(build)
                    self._report(build.task, outcome)


# ---- a process -------------------------------------------------------------------------------------------------


def serve(core: int | None = None) -> None:
    """Build what comes in until there is no more: what a worker process does, on a core of its own if it has one."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves nothing behind, like Ctrl-C
    caller = _Caller()
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        from jitload.cores import have_core
        from jitload.library import import_first

        import_first()
        if core is not None:
            have_core(core)
        batch = Batch(caller.report)
        while True:
            if task := caller.read(caller.receive()):
                batch.build(task, caller.ask)


class _Caller:
    """The process that started this one: it sends requests, and is told what became of each by its number."""

    def __init__(self) -> None:
        self._incoming, self._outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what a tool prints is no answer

    def receive(self) -> Any:
        """Return a request as it travels, None for no more."""
        return pickle.load(self._incoming)  # noqa: S301  from the process that started this one

    def read(self, message: tuple[int, bytes]) -> Task | None:
        """Return the request in a message; one that cannot be read here is reported."""
        number, data = message
        try:
            task: Task = pickle.loads(data)  # noqa: S301  as above
        except Exception as error:  # noqa: BLE001  whatever a user's object raises
            problem = f"the request cannot be read in another process: {type(error).__name__}: {error}"
            self._send((number, problem))
            return None
        return task

    def report(self, task: Task, outcome: Outcome) -> None:
        """Tell what became of a request."""
        self._send((task.number, outcome))

    def ask(self) -> Task | None:
        """Return one request more, None where there is none for this process now."""
        task = None
        while task is None:
            self._send(None)
            message = self.receive()
            if message is None:
                return None
            task = self.read(message)
        return task

    def _send(self, what: tuple[int, Outcome | str] | None) -> None:
        pickle.dump(what, self._outgoing)
        self._outgoing.flush()
