"""The processes of a judge, as the judge sees them: it starts them, limits them and ends them."""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from jitload.building.child_process import ChildProcess, describe_end
from jitload.judging.records import LONGEST_MESSAGE, Answer, Candidate, Rejected, Setup, read_answer
from jitload.judging.template import children_of

_PROGRAM = (
    "import sys; parent, control, root, *sys.path[:] = sys.argv[1:]; from jitload.judging.template import serve; "
    "serve(int(parent), int(control), root)"
)
_TICK_S = 0.05  # between checks of the memory and the number of a candidate's processes
_MAX_PROCESSES = 32
START_S = 120.0  # how long a process may start, and at least, how long a candidate may compile and load
_OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|unable to allocate|bad_alloc|MemoryError"
    r"|illegal[ _](?:memory|address)|misaligned[ _]address|\ba (?:read|write) of \d+ bytes?\b",
    re.IGNORECASE,
)


class Template(ChildProcess):
    """The process from which those of candidates are forked, and the socket over which it gets descriptors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.root = tempfile.mkdtemp(prefix="jitload-judge-")  # of the directories of all processes
        self._control, theirs = socket.socketpair()
        with theirs:
            arguments = (str(os.getpid()), str(theirs.fileno()), self.root, *sys.path)
            super().__init__(_PROGRAM, *arguments, descriptors=(theirs.fileno(),))

    def order(self, question: object, descriptors: tuple[int, ...] = ()) -> int | None:
        """Start a process with copies of the descriptors, or end one, and return the answer. None: it has died."""
        with self._lock:
            if descriptors:
                with suppress(OSError):  # it has died
                    socket.send_fds(self._control, [b"\0"], list(descriptors))
            self._process.send_signal(signal.SIGCONT)  # a candidate may have stopped it
            answer: int | None = self.ask(question, timeout_s=START_S)
            return answer

    def end(self) -> None:
        """End the template, which ends its processes."""
        self.close()
        self.await_end()
        self._control.close()
        shutil.rmtree(self.root, ignore_errors=True)


class CandidateProcess:
    """A process for one candidate, and `shared`, the memory that is shared with it, as a tensor of bytes."""

    def __init__(self, template: Template, setup: Setup) -> None:
        self.begin("start", START_S)
        self.status: int | None = None  # how it has ended, or None if the template has died, too
        self._template, self._most_memory, self._first_memory = template, setup.memory, 0
        self._directory = tempfile.mkdtemp(dir=template.root)
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._socket.settimeout(_TICK_S)
        size = setup.results[-1].end
        with theirs, open(os.memfd_create("jitload-judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b") as memory:
            memory.truncate(size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # shrinking it would crash the judge
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
            self.shared = torch.frombuffer(mmap.mmap(memory.fileno(), size), dtype=torch.uint8)
            self._pid = template.order((self._directory, setup), (theirs.fileno(), memory.fileno())) or 0
        self._send("start")

    def begin(self, stage: str, limit_s: float) -> None:
        """Begin a stage (`start`, `load` or `launch`), which may take `limit_s` seconds."""
        self.stage, self._limit_s, self._left_s = stage, limit_s, limit_s

    def load(self, candidate: Candidate, limit_s: float) -> Answer:
        """Wait until it is ready, and let it compile and load a candidate, which may take `limit_s` seconds."""
        self._answer()
        self._first_memory = _memory_of(self._pid)  # a fork seems to have all memory of the template, too
        if not self._first_memory:  # another candidate has ended it
            raise self._lost_connection()
        self.begin("load", limit_s)
        Path(self._directory, "candidate").write_bytes(pickle.dumps(candidate))  # it may be long for a message
        return self.ask("load")

    def ask(self, method: str, *arguments: Any) -> Answer:
        """Send a request, and return the answer."""
        self._send(method, *arguments)
        return self._answer()

    def _send(self, method: str, *arguments: Any) -> None:
        with suppress(OSError):  # it has died, as the missing answer will show
            self._socket.send(pickle.dumps((method, arguments)))

    def _answer(self) -> Answer:
        """Return the next answer, unless it rejects the candidate, and check the limits meanwhile."""
        start, answer = time.monotonic(), None
        try:
            while not answer:
                if time.monotonic() - start > self._left_s:
                    raise self._rejection(f"is not done after {self._limit_s:g} s", "hang")
                self._check_limits()
                with suppress(TimeoutError):
                    if not (data := self._socket.recv(LONGEST_MESSAGE)):
                        raise ConnectionResetError
                    answer = read_answer(data)
        except ConnectionError:
            raise self._lost_connection() from None
        finally:
            self._left_s -= time.monotonic() - start
        if answer.reason:
            stage = answer.stage or ("memory" if _OUT_OF_MEMORY.search(answer.reason) else self.stage)
            raise Rejected(stage, answer.reason.partition("\n")[0], answer.diagnostics)
        return answer

    def _check_limits(self) -> None:
        pids = [self._pid, *_descendants(self._pid)]
        if len(pids) > _MAX_PROCESSES:
            raise self._rejection(f"has started more than {_MAX_PROCESSES} processes", "memory")
        sizes = [max(0, _memory_of(pid) - self._first_memory) for pid in pids]
        if self._first_memory and sum(sizes) > self._most_memory + self.shared.numel():
            raise self._rejection(f"uses more than {self._most_memory / 1e9:g} GB of memory", "memory")

    def _lost_connection(self) -> Rejected:
        """Return how the process has died, or that it closed its connection."""
        deadline = time.monotonic() + 0.5
        while (is_alive := _memory_of(self._pid) > 0) and time.monotonic() < deadline:
            time.sleep(0.001)
        if is_alive:
            return self._rejection("closed its connection to the judge")
        self.end()
        cause = "ended its parent" if self.status is None else describe_end(self.status)
        return self._rejection(cause, "memory" if cause.endswith(("SIGSEGV", "SIGBUS", "SIGKILL")) else "")

    def _rejection(self, reason: str, stage: str = "") -> Rejected:
        """Return the verdict on a process that has died, or must. The stage is by default its own."""
        return Rejected(stage or self.stage, f"its process {reason}")

    def end(self) -> None:
        """Kill the process and all that it has started, and remove its files. Later calls do nothing."""
        if self._socket.fileno() < 0:
            return
        self.status = self._template.order(self._pid) if self._pid else None
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _descendants(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from _descendants(child)


def _memory_of(pid: int) -> int:
    """Return the bytes of memory that a process uses, without what it maps from files, or 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return 0


class Processes:
    """Processes for candidates. One is always started in advance, and if the template dies, there is a new one."""

    make_template: Callable[[], Template] = Template

    def __init__(self, setup: Setup) -> None:
        self._setup, self._lock = setup, threading.Lock()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="jitload-judge-spare")
        self._template: Template | None = None
        self._spare: Future[CandidateProcess] | None = None

    def start(self) -> Future[CandidateProcess] | None:
        """Start a process in advance, and return the one that has been started before."""
        with self._lock:
            spare, self._spare = self._spare, self._starter.submit(self._start)
        return spare

    def _start(self) -> CandidateProcess:
        if self._template and not self._template.is_alive():
            self._template.end()
            self._template = None
        self._template = self._template or self.make_template()
        return CandidateProcess(self._template, self._setup)

    def take(self) -> CandidateProcess:
        """Return a process for a candidate, and start another one."""
        while (spare := self.start()) is None:
            pass  # nothing has been started before
        return spare.result()

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            spare, self._spare = self._spare, None
            if spare and not spare.exception():
                spare.result().end()
            if self._template:
                self._template.end()
            self._template = None
