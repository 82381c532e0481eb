"""One request of `prebuild` in, what became of it out; and the processes of this machine that do so."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jitload.cores import have_core, usable_cores
from jitload.errors import CacheError, CompileError, JitLoadError, ToolchainError

TRIES = 3  # of a request whose worker died
_PATIENCE_S = 10.0  # for a long step of NVRTC
_BYTES_EACH = 512 << 20  # a worker with NVRTC and the C++ compiler that it runs
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from jitload.prebuild_worker import serve; serve({core})"
_OURS = "JITLOAD_"
_LONGEST_SHOWN = 80  # of a name in the summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request on its way to a worker, wherever that is.

    Attributes:
        number: Its place among the requests.
        request: The keywords of `build_inline`, `build` or `load_triton`.
        environment: The caller's `JITLOAD_*`, which hold for the worker, too.
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
        seconds: How long it took.
    """

    name: str
    arch: str
    state: Literal["built", "reused", "failed"]
    path: str = ""
    error: str = ""
    seconds: float = 0.0


def own_environment(*, has_triton: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the variables that a worker elsewhere takes over: ours, and those that change what Triton makes."""
    names = {name for name in os.environ if name.startswith(_OURS)}
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
    return Outcome(name=name, arch=arch, state="failed", error=first, seconds=seconds)


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
    started = time.monotonic()
    for name, value in task.environment:
        if os.environ.get(name) != value:
            os.environ[name] = value
    try:
        path, is_new = _build(task.request)
    except Exception as error:  # noqa: BLE001  one failure must not stop the rest
        return failed(task, error, time.monotonic() - started)
    name, arch = _names(task.request)
    state: Literal["built", "reused"] = "built" if is_new else "reused"
    return Outcome(name=name, arch=arch, state=state, path=path, seconds=time.monotonic() - started)


def _build(request: Any) -> tuple[str, bool]:
    """Return a request's library, and whether it was built just now."""
    from jitload.api import build, build_inline
    from jitload.cache.entry import published
    from jitload.prebuild_requests import build_triton, is_triton
    from jitload.settings import find_cache_dir, read_settings

    if not isinstance(request, Mapping):
        raise JitLoadError(f"a request is a mapping of the keywords of build_inline, got {type(request).__name__}")
    if aside := {"output", "build_directory"} & request.keys():
        raise JitLoadError(f"prebuild() fills the cache: leave {min(aside)}= to build_inline()")
    before = set(published)
    if is_triton(request):
        path = build_triton(request)
    else:
        are_files = any(request.get(name) for name in ("sources", "cuda_files", "cpp_files"))
        path = (build if are_files else build_inline)(**request)
    entry_dir = Path(path).parent
    is_new = entry_dir in published and entry_dir not in before
    cache_dir = find_cache_dir(read_settings())
    if is_new and not entry_dir.is_relative_to(cache_dir):
        raise CacheError(f"the cache {cache_dir} cannot be written, so nothing can be kept in it")
    return path, is_new


# ---- a process -------------------------------------------------------------------------------------------------


def serve(core: int | None = None) -> None:
    """Build what comes in until there is no more: what a worker process does, on a core of its own if it has one."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves nothing behind, like Ctrl-C
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a tool prints is no answer
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        from jitload.library import import_first

        import_first()
        if core is not None:
            have_core(core)
        while True:
            task = pickle.load(incoming)  # noqa: S301  from the process that started this one
            pickle.dump(build_one(task), outgoing)
            outgoing.flush()


class _Process:
    """A worker process and the pipes to it. It is a session of its own, so that Ctrl-C reaches it through us."""

    def __init__(self, core: int | None) -> None:
        if not sys.executable:
            raise ToolchainError("there is no Python to start workers with (sys.executable is empty): give executor=")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(core=core), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def ask(self, data: bytes) -> Outcome | None:
        """Return what became of a request; None when the process died of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
            outcome = pickle.load(self._process.stdout)  # noqa: S301  from our own child
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            return None
        assert isinstance(outcome, Outcome)
        return outcome

    def cause_of_death(self) -> str:
        """Return how the process ended."""
        status = self._process.wait()
        if status >= 0:
            return f"ended with status {status}"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
        return f"was ended by signal {-status}"

    def finish(self) -> None:
        """Let the process end: there is no more to do."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def stop(self) -> None:
        """Tell the process to leave its work and clear up."""
        self._process.terminate()

    def await_end(self) -> None:
        """Wait until the process has ended, by force if it takes too long."""
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LocalWorkers:
    """Processes of this machine, one for each thread that feeds it. One that dies costs the request it died of.

    They are no children of multiprocessing: those import the program's main module once more.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="jitload-prebuild")
        self._own = threading.local()
        cores = usable_cores()  # with fewer workers than cores, theirs might be those of somebody else
        self._cores: list[int | None] = [*cores] if len(cores) == count > 1 else [None] * count
        self._processes: set[_Process] = set()
        self._guard = threading.Lock()
        self._is_stopped = False

    def submit(self, task: Task) -> Future[Outcome]:
        """Queue a request."""
        return self._threads.submit(self._run, task)

    def _run(self, task: Task) -> Outcome:
        started = time.monotonic()
        try:
            data = pickle.dumps(task)
        except Exception as error:  # noqa: BLE001  whatever a user's object raises
            return failed(task, f"the request cannot be sent to another process: {error}")
        cause = ""
        for _ in range(TRIES):
            try:
                process = self._process()
            except (OSError, JitLoadError) as error:  # no process or no memory left, or no Python
                return failed(task, f"a worker cannot be started: {error}", time.monotonic() - started)
            if outcome := process.ask(data):
                return outcome
            cause = process.cause_of_death()
            self._drop(process)
        seconds = time.monotonic() - started
        return failed(task, f"the worker {cause}, {TRIES} times", seconds)

    def _process(self) -> _Process:
        with self._guard:
            if self._is_stopped:
                raise KeyboardInterrupt
            if not hasattr(self._own, "core"):
                self._own.core = self._cores.pop()
            if getattr(self._own, "process", None) is None:
                self._own.process = _Process(self._own.core)
                self._processes.add(self._own.process)
            found: _Process = self._own.process
            return found

    def _drop(self, process: _Process) -> None:
        with self._guard:
            self._processes.discard(process)
            self._own.process = None
        process.finish()

    def finish(self, *, is_interrupted: bool = False) -> None:
        """End all processes; interrupted, they leave their builds unfinished and clear up."""
        with self._guard:
            self._is_stopped = self._is_stopped or is_interrupted
            processes = tuple(self._processes)
        if is_interrupted:
            for process in processes:
                process.stop()
            for process in processes:
                process.await_end()
        self._threads.shutdown(cancel_futures=True)
        for process in processes:
            process.finish()
        for process in processes:
            process.await_end()


def worker_count() -> int:
    """Return how many workers this machine takes: by the cores that this process may use, and by free memory."""
    from jitload.cxx.spare import core_count, free_memory

    return max(1, min(core_count(), free_memory() // _BYTES_EACH))
