"""The processes of a judge, as the judge sees them: it starts them, limits them and ends them."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from jitload.building.child_process import ChildProcess, describe_end
from jitload.errors import JitLoadError
from jitload.judging.connection import Answer, Call, Setup, take_answer
from jitload.judging.template import children_of
from jitload.judging.verdict import Rejected

_PROGRAM = (
    "import sys; parent, control, root, *sys.path[:] = sys.argv[1:]; from jitload.judging.template import serve; "
    "serve(int(parent), int(control), root)"
)
_TICK_S = 0.05  # between checks of the memory and the number of a candidate's processes
_MAX_PROCESSES = 32
START_S = 120.0  # how long a process may start, and at least, how long a candidate may compile and load
_SHOWN_OUTPUT = 4000  # bytes
OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|unable to allocate|bad_alloc|MemoryError"
    r"|illegal[ _](?:memory|address)|misaligned[ _]address|\ba (?:read|write) of \d+ bytes?\b",
    re.IGNORECASE,
)


class TemplateDiedError(JitLoadError):
    """The process has died from which those of candidates are forked, and these with it."""


class Template:
    """The process from which those of candidates are forked, and the socket over which it gets descriptors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.root = tempfile.mkdtemp(prefix="jitload-judge-")  # of the directories of all processes
        self._control, theirs = socket.socketpair()
        arguments = (str(os.getpid()), str(theirs.fileno()), self.root, *sys.path)
        self._child = ChildProcess(_PROGRAM, *arguments, descriptors=(theirs.fileno(),))
        self.is_alive = self._child.is_alive
        theirs.close()

    def fork(self, descriptors: tuple[int, ...]) -> int:
        """Start a process with copies of the descriptors, and return its id."""
        return self._ask(0, descriptors)

    def end(self, pid: int) -> int:
        """Kill a process and all that it has started, and return its status."""
        return self._ask(pid)

    def _ask(self, pid: int, descriptors: tuple[int, ...] = ()) -> int:
        with self._lock:
            if descriptors:
                with suppress(OSError):  # it has died
                    socket.send_fds(self._control, [b"\0"], list(descriptors))
            self._child.wake()  # a candidate may have stopped it
            answer = self._child.ask(pid, timeout_s=START_S)
        if answer is None:
            self._remove_leftovers()
            raise TemplateDiedError(f"the judge's process {self._child.cause_of_death()}")
        return int(answer)

    def _remove_leftovers(self) -> None:
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                if os.readlink(link).startswith(f"{self.root}/"):
                    os.kill(int(link.parent.name), signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)

    def close(self) -> None:
        """End the template, which ends its processes."""
        self._child.close()
        self._child.await_end()
        self._control.close()
        self._remove_leftovers()


class CandidateProcess:
    """A process for one candidate, and `shared`, the memory that is shared with it, as a tensor of bytes."""

    def __init__(self, template: Template, setup: Setup) -> None:
        self.stage = "start"  # or `compile`, `load` or `launch`
        self.limit_s = self.left_s = START_S  # how long this stage may take, and what is left of that
        self.null_us = 0.0  # how long a call takes that computes nothing
        self.null_late_us = 0.0  # how long events seem to need after it
        self._received = bytearray()
        self._memory, self._first_memory, self._template = setup.memory, 0, template
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed by end()
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(_TICK_S * 1e6)))
        self._connection = Connection(ours.detach())
        memory = os.memfd_create("jitload-judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, setup.layout.size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # shrinking it would crash the judge
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        try:
            self.shared = torch.frombuffer(mmap.mmap(memory, setup.layout.size), dtype=torch.uint8)
            self._pid = template.fork((theirs.fileno(), memory, self._output.fileno()))
        except TemplateDiedError:
            self._output.close()
            self._connection.close()
            raise
        finally:
            os.close(memory)
            theirs.close()
        self._connection.send(setup)

    def wake(self) -> bool:
        """Let it go on, and return whether it is alive. A candidate may have stopped or ended it."""
        with suppress(OSError):
            os.kill(self._pid, signal.SIGCONT)
        return _memory_of(self._pid) > 0

    def prepare(self, starts: tuple[int, ...]) -> None:
        """Wait until it is ready, and measure how long a call takes that computes nothing."""
        self._answer()
        self.null_late_us = min(answer.late_us for answer in self.rehearse(starts))
        self._first_memory = _memory_of(self._pid)  # a fork seems to have all memory of the template, too

    def begin(self, stage: str, limit_s: float) -> None:
        """Begin a stage, which may take `limit_s` seconds."""
        self.stage, self.limit_s, self.left_s = stage, limit_s, limit_s

    def rehearse(self, starts: tuple[int, ...]) -> list[Answer]:
        """Measure how long a call takes that computes nothing. Keep the longest of such times."""
        answers = [self.ask(Call(starts, kind="rehearse")) for _ in range(3)]
        self.null_us = max(self.null_us, min(answer.seen_us for answer in answers))
        return answers

    def ask(self, request: object) -> Answer:
        """Send a request, and return the answer, with `seen_us`: how long it took by the clock of this process."""
        start = time.perf_counter()
        with suppress(OSError):  # it has died, as the missing answer will show
            self._connection.send(request)
        return self._answer()._replace(seen_us=(time.perf_counter() - start) * 1e6)

    def _answer(self) -> Answer:
        """Return the next answer. Check the limits meanwhile, also of a process that sends and sends."""
        start = time.monotonic()
        end, next_check = start + self.left_s, start + _TICK_S
        while (answer := take_answer(self._received)) is None:
            self._receive()
            if (now := time.monotonic()) > end:
                raise self.rejection(f"is not done after {self.limit_s:g} s", "hang")
            if now > next_check:
                self._check_limits()
                next_check = time.monotonic() + _TICK_S
        self.left_s = end - time.monotonic()
        return answer

    def _receive(self) -> None:
        try:
            data = os.read(self._connection.fileno(), 1 << 16)
        except BlockingIOError:  # nothing came for `_TICK_S`
            return
        except ConnectionError:
            data = b""
        if not data:
            raise self._lost_connection()
        self._received += data

    def _check_limits(self) -> None:
        pids = [self._pid, *_descendants(self._pid)]
        if len(pids) > _MAX_PROCESSES:
            raise self.rejection(f"has started more than {_MAX_PROCESSES} processes", "memory")
        sizes = [max(0, _memory_of(pid) - self._first_memory) for pid in pids]
        if sum(sizes) > self._memory + self.shared.numel():
            raise self.rejection(f"uses more than {self._memory / 1e9:g} GB of memory", "memory")

    def _lost_connection(self) -> Rejected:
        """Return how the process has died, or that it closed its connection."""
        deadline = time.monotonic() + 0.5
        while _memory_of(self._pid):
            if time.monotonic() > deadline:
                return self.rejection("closed its connection to the judge")
            time.sleep(0.001)
        cause = describe_end(self.end())
        is_access = self.stage == "launch" and cause.endswith(("SIGSEGV", "SIGBUS"))
        is_memory = is_access or cause.endswith("SIGKILL") or OUT_OF_MEMORY.search(self.output())
        return self.rejection(cause, "memory" if is_memory else "")

    def rejection(self, reason: str, stage: str = "") -> Rejected:
        """Return the verdict on a process that has died, or must. The stage is by default its own."""
        doing = {"start": "at its start", "compile": "while it compiled", "load": "while it was loaded"}
        return Rejected(stage or self.stage, f"its process {reason} {doing.get(self.stage, 'in a call')}")

    def end(self) -> int:
        """Kill the process and all that it has started, and remove its files. Return its status, at the first call."""
        pid, self._pid = self._pid, 0
        if not pid:
            return 0
        self._connection.close()
        try:
            return self._template.end(pid)
        finally:
            self.output()
            self._output.close()

    def output(self) -> str:
        """Return the end of what it has printed."""
        if not self._output.closed:
            start = max(0, os.fstat(self._output.fileno()).st_size - _SHOWN_OUTPUT)
            self._shown = os.pread(self._output.fileno(), _SHOWN_OUTPUT, start).decode("utf-8", "replace")
        return self._shown


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
        self._template, self._setup = self.make_template(), setup
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="jitload-judge-spare")
        self._spare: Future[CandidateProcess] = self._starter.submit(self._start)
        self._lock = threading.Lock()

    def _start(self) -> CandidateProcess:
        if not self._template.is_alive():
            self._template.close()
            self._template = self.make_template()
        return CandidateProcess(self._template, self._setup)

    def take(self, *, is_last_try: bool = False) -> CandidateProcess:
        """Return a process for a candidate, and start another one."""
        with self._lock:
            spare, self._spare = self._spare, self._starter.submit(self._start)
        process = spare.result()
        if process.wake() or is_last_try:
            return process
        with suppress(TemplateDiedError):
            process.end()
        return self.take(is_last_try=True)

    def close(self) -> None:
        """End all processes."""
        self._starter.shutdown()
        if not self._spare.exception():
            with suppress(TemplateDiedError):
                self._spare.result().end()
        self._template.close()
