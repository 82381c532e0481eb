"""The processes of this machine in which `prebuild` builds: what each gets to do, and what becomes of one that dies."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jitload.cores import usable_cores
from jitload.errors import JitLoadError, ToolchainError
from jitload.prebuild_worker import Outcome, Task, failed

TRIES = 3  # of a request whose worker died
_PATIENCE_S = 10.0  # for a long step of NVRTC
_BYTES_EACH = 512 << 20  # a worker with NVRTC and the C++ compiler that it runs
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from jitload.prebuild_worker import serve; serve({core})"
_KEPT_EACH = 4  # requests for each worker that go out one by one: at the end nobody waits for somebody's batch


@dataclass(slots=True, kw_only=True)
class _Sent:
    """A request on its way: how often it was tried, and since when."""

    task: Task
    data: bytes
    started: float
    tries: int = 0


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

    def send(self, data: bytes) -> None:
        """Send a message; whether it arrives, the next answer tells."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def answers(self) -> Iterator[Any]:
        """Yield what comes back, as long as the process lives."""
        assert self._process.stdout is not None
        with suppress(OSError, EOFError, ValueError, pickle.UnpicklingError):
            while True:
                yield pickle.load(self._process.stdout)  # noqa: S301  from our own child

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
    """Processes of this machine, each fed by a thread. One that dies costs the request it died of.

    They are no children of multiprocessing: those import the program's main module once more.

    Attributes:
        futures: What becomes of each request.
    """

    def __init__(self, tasks: Sequence[Task], count: int) -> None:
        self.futures: dict[Future[Outcome], Task] = {Future(): task for task in tasks}
        self._by_number = {task.number: future for future, task in self.futures.items()}
        self._queue = deque(tasks)
        self._kept = _KEPT_EACH * count
        self._processes: set[_Process] = set()
        self._guard = threading.Lock()
        self._is_stopped = False
        cores = usable_cores()  # with fewer workers than cores, theirs might be those of somebody else
        own: Sequence[int | None] = cores if len(cores) == count > 1 else [None] * count
        self._threads: list[threading.Thread] = []
        for core in own:
            thread = threading.Thread(target=self._feed, args=(core,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: fewer workers will do
                if not self._threads:
                    raise
                break
            self._threads.append(thread)

    def _feed(self, core: int | None) -> None:
        """Keep a worker busy until there is nothing left. What a worker dies of is tried again, each by itself."""
        process: _Process | None = None
        again: deque[_Sent] = deque()
        try:
            while sent := again.popleft() if again else self._next():
                try:
                    process = process or self._start(core)
                except (OSError, JitLoadError) as error:  # no process or no memory left, or no Python
                    self._fail(sent, f"a worker cannot be started: {error}")
                    continue
                if left := self._converse(process, sent):
                    again += self._count_death(process, left)
                    process = None
        except BaseException as error:  # noqa: BLE001  raised where the outcomes are waited for
            for future in self.futures:
                with suppress(InvalidStateError):  # it has its outcome
                    future.set_exception(error)

    def _next(self, kept: int = 0) -> _Sent | None:
        """Return the next request as it is sent, None where no more than so many are left."""
        while True:
            with self._guard:
                if self._is_stopped or len(self._queue) <= kept:
                    return None
                task = self._queue.popleft()
            started = time.monotonic()
            try:
                data = pickle.dumps((task.number, pickle.dumps(task)))
                return _Sent(task=task, data=data, started=started)
            except Exception as error:  # noqa: BLE001  whatever a user's object raises
                problem = f"the request cannot be sent to another process: {error}"
                self._by_number[task.number].set_result(failed(task, problem))

    def _start(self, core: int | None) -> _Process:
        with self._guard:
            if self._is_stopped:
                raise KeyboardInterrupt
            process = _Process(core)
            self._processes.add(process)
            return process

    def _converse(self, process: _Process, first: _Sent) -> list[_Sent]:
        """Let a worker build a request, and others with it if it asks for them; return what it left when it died."""
        left = {first.task.number: first}
        process.send(first.data)
        for answer in process.answers():
            if answer is None:  # it asks for one more
                more = None if first.tries else self._next(self._kept)
                process.send(more.data if more else pickle.dumps(None))
                if more:
                    left[more.task.number] = more
                continue
            number, outcome = answer
            sent = left.pop(number)
            if isinstance(outcome, str):
                self._fail(sent, outcome)
            else:
                self._by_number[number].set_result(outcome)
            if not left:
                break
        return list(left.values())

    def _count_death(self, process: _Process, left: Sequence[_Sent]) -> list[_Sent]:
        """Return what is to be tried again after a worker's death."""
        cause = process.cause_of_death()
        process.finish()
        with self._guard:
            self._processes.discard(process)
            if self._is_stopped:
                return []
        for sent in left:
            sent.tries += 1
            if sent.tries == TRIES:
                self._fail(sent, f"the worker {cause}, {TRIES} times")
        return [sent for sent in left if sent.tries < TRIES]

    def _fail(self, sent: _Sent, problem: str) -> None:
        outcome = failed(sent.task, problem, time.monotonic() - sent.started)
        self._by_number[sent.task.number].set_result(outcome)

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
        for thread in self._threads:
            thread.join()
        for process in processes:
            process.finish()
        for process in processes:
            process.await_end()


def worker_count() -> int:
    """Return how many workers this machine takes: by the cores that this process may use, and by free memory."""
    from jitload.cxx.spare import core_count, free_memory

    return max(1, min(core_count(), free_memory() // _BYTES_EACH))
