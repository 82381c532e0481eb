"""Worker processes on this machine, for `prebuild` without an executor."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jitload.building.child_process import ChildPool, ChildProcess
from jitload.errors import JitLoadError
from jitload.prebuilding.worker import Outcome, Task, failure

TRIES = 3  # attempts at a request whose workers die
_WORKER_BYTES = 512 << 20  # the memory that a worker takes, with NVRTC and its C++ compiler
# If the garbage collector were on, it would look through all modules several times while a worker imports them.
_PROGRAM = (
    "import gc, sys; gc.disable(); sys.path[:] = sys.argv[1:]; from jitload.prebuilding.worker import serve; serve()"
)


class LocalWorkers(ThreadPoolExecutor):
    """An executor of worker processes on this machine. A worker that dies is replaced, and the other builds go on.

    If its `with` block raises an exception, the workers' unfinished builds are interrupted.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count, thread_name_prefix="jitload-prebuild")  # each thread waits for one worker
        self.workers = ChildPool(_start_worker)

    def submit(self, build: Callable[..., Any], /, *tasks: Any, **_: Any) -> Future[Any]:
        """Let the next idle worker build a request, and return a future for the outcome."""
        return super().submit(self._build, build, *tasks)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type:
            self.shutdown(wait=False, cancel_futures=True)
            self.workers.interrupt()
        self.shutdown()
        self.workers.close()

    def _build(self, build: Callable[[Task], Outcome], task: Task) -> Outcome:
        """Build a request in a worker, and return the outcome. If the worker dies, try again with another worker."""
        started = time.monotonic()
        try:
            data = pickle.dumps((build, task))
        except Exception as error:  # noqa: BLE001  whatever a user's object raises
            return failure(task, f"the request cannot be sent to another process: {error}")
        try:
            answer, cause = self.workers.ask(data, TRIES)
        except JitLoadError as error:
            answer = f"{error}"
        else:
            answer = answer or f"{TRIES} workers died while they built the request; the last one {cause}"
        return answer if isinstance(answer, Outcome) else failure(task, answer, time.monotonic() - started)


def _start_worker() -> ChildProcess:
    try:
        return ChildProcess(_PROGRAM, *sys.path)
    except (OSError, JitLoadError) as error:  # no process or no memory left, or no Python
        raise JitLoadError(f"a worker cannot be started: {error}") from error


def worker_count() -> int:
    """Return how many workers to start: one for each core, but not more than fit in the free memory."""
    from jitload.building.resources import core_count, free_memory

    return max(1, min(core_count(), free_memory() // _WORKER_BYTES))
