"""The processes of a judge: a template that has imported torch, and for each candidate a guard and a process.

A guard is forked from the template, and the process from the guard. A fork takes hundredths of a second, and starting
Python and importing torch takes seconds. Neither the template nor a guard uses CUDA, which would not work in a fork.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import pickle
import re
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

from jitload.building.child_process import ChildPool, ChildProcess, describe_end
from jitload.cuda import isolated
from jitload.judging.records import LONGEST_MESSAGE, Answer, Candidate, Rejected, Setup, read_answer

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from jitload.judging.processes import serve; serve()"
START_S = 120.0  # how long a process may start, and at least, how long a candidate may compile and load
_END_S = 5.0
_MEMORY_FAILURE = re.compile(
    r"out of memory|not enough memory|can't allocate memory|unable to allocate|bad_alloc|MemoryError"
    r"|illegal[ _](?:memory|address)|misaligned[ _]address|\ba (?:read|write) of \d+ bytes?\b"
    r"|^its process (?:.* more than|was ended by SIG(?:SEGV|BUS|KILL)$)",
    re.IGNORECASE,
)
_MAX_FILE = 256 << 20  # bytes of a file that a candidate writes
_MAX_PROCESSES = 32
_TICK_MS = 50  # between checks of the memory and the number of a candidate's processes
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl
_ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # a variable of torch
_SOCKET, _MEMORY = 800, 801  # numbers of descriptors that nobody closes or writes to by mistake
_libc = ctypes.CDLL(None)


# ---- in the judge's process ------------------------------------------------------------------------------------------


class Template(ChildProcess):
    """The template, and the socket over which it gets descriptors, its standard input."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            super().__init__(_PROGRAM, *sys.path, stdin=theirs)

    def close(self) -> None:
        """Let the template end. A candidate's process ends with its own connection."""
        self.control.close()
        super().close()


class CandidateProcess:
    """A process for one candidate, and `shared`, the memory that is shared with it, as a tensor of bytes."""

    def __init__(self, template: Template, setup: Setup) -> None:
        self.begin("start", START_S)
        self._directory = Path(tempfile.mkdtemp(prefix="jitload-judge-"))
        (self._directory / "setup").write_bytes(pickle.dumps(setup))
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        size = setup.results[-1].region.stop
        with theirs, open(os.memfd_create("jitload-judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b") as memory:
            memory.truncate(size)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)  # or the judge could crash
            self.shared = torch.frombuffer(mmap.mmap(memory.fileno(), size), dtype=torch.uint8)
            with suppress(OSError):  # the template has died, as the missing answer will show
                socket.send_fds(template.control, [os.fsencode(self._directory)], [theirs.fileno(), memory.fileno()])

    def begin(self, stage: str, limit_s: float) -> None:
        """Begin a stage (`start`, `load` or `launch`), which may take `limit_s` seconds."""
        self.stage, self._limit_s, self._left_s = stage, limit_s, limit_s

    def load(self, candidate: Candidate, limit_s: float) -> Answer:
        """Wait until the process is ready, and let it compile and load a candidate within `limit_s` seconds."""
        self._answer()
        if select.select([self._socket], [], [], 0)[0]:  # another candidate has ended it
            self._answer()
        self.begin("load", limit_s)
        (self._directory / "candidate").write_bytes(pickle.dumps(candidate))  # it may be long for a message
        return self.ask("load")

    def ask(self, request: str) -> Answer:
        """Send a request, and return the answer."""
        with suppress(OSError):  # it has died
            self._socket.send(request.encode())
        return self._answer()

    def _answer(self) -> Answer:
        """Return the next answer, unless it rejects the candidate."""
        start = time.monotonic()
        try:
            self._socket.settimeout(max(self._left_s, 0.001))
            data = self._socket.recv(LONGEST_MESSAGE)
        except TimeoutError:
            raise Rejected("hang", f"its process is not done after {self._limit_s:g} s") from None
        except ConnectionError:
            data = b""
        finally:
            self._left_s -= time.monotonic() - start
        answer = read_answer(data) if data else Answer(reason="its process ended its parent")
        if answer.reason:
            stage = answer.stage or ("memory" if _MEMORY_FAILURE.search(answer.reason) else self.stage)
            raise Rejected(stage, answer.reason.partition("\n")[0], answer.diagnostics)
        return answer

    def end(self) -> None:
        """Kill the process and all that it has started, and remove its files."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(_END_S)
            while self._socket.recv(LONGEST_MESSAGE):
                pass
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)  # if there is no guard


class Processes:
    """Processes for candidates. One is always started in advance, and if the template dies, there is a new one."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._lock = setup, threading.Lock()
        self._templates = ChildPool(Template)
        self._spare: CandidateProcess | None = None

    def take(self) -> CandidateProcess:
        """Return a process for a candidate, and start the next one."""
        with self._lock:
            template = self._templates.take()
            process = self._spare or CandidateProcess(template, self._setup)
            self._spare = CandidateProcess(template, self._setup)
            self._templates.give_back(template)
            return process

    def close(self) -> None:
        """End all processes that wait."""
        with self._lock:
            if self._spare:
                self._spare.end()
            self._spare = None
            self._templates.close()


# ---- in the template -------------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork a guard for each message on the standard input, a socket, until the judge closes it or ends.

    A message is the directory of a new process, with descriptors of a socket and of the shared memory.
    """
    os.environ["JITLOAD_LIBRARY"] = "never"  # no builds in the background
    isolated.is_needed = False  # nor processes that keep headers: a candidate has a process of its own
    os.environ[_ASKS_NVML] = "1"  # or torch could start CUDA here, to find out whether there is a GPU
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards that have ended leave nothing
    _import_modules()
    _end_nvml()
    with socket.socket(fileno=0) as messages:
        while True:
            directory, descriptors, _, _ = socket.recv_fds(messages, 4096, 2)
            if not directory:
                break
            for guard in _children_of("self"):
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(guard, signal.SIGCONT)  # a candidate may have stopped it
            if os.fork() == 0:
                _guard(os.fsdecode(directory), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    os._exit(0)  # without what modules print at exit


def _import_modules() -> None:
    import torch._dynamo  # noqa: F401  it replaces functions of torch
    import tvm_ffi

    import jitload.cpp_extension
    import jitload.judging.child
    import jitload.loader.module

    jitload.cpp_extension.install()  # torch's own leaves locks behind where it is killed, for which others then wait
    with suppress(RuntimeError):  # tvm-ffi's first error reads the symbols of all libraries, which takes a second
        tvm_ffi.get_global_func("ffi.GetGlobalFuncMetadata")("none")


def _end_nvml() -> None:
    """End NVML, which modules have started. A candidate's process starts it again.

    That process has none of the template's descriptors, and would otherwise find no GPU through those of this NVML.
    """
    with suppress(OSError):  # it is not loaded
        nvml = ctypes.CDLL("libnvidia-ml.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        while nvml.nvmlShutdown() == 0:  # once for each start
            pass


# ---- in a guard ------------------------------------------------------------------------------------------------------


def _guard(directory: str, connection: int, memory: int) -> None:
    """Run a candidate's process, end it with all that it has started, say how it has ended, and never return."""
    from jitload.judging.child import serve_candidate

    try:
        _set_up(directory, connection, memory)
        setup, reason, statuses = pickle.loads(Path("setup").read_bytes()), "", dict[int, int]()  # noqa: S301  the judge's
        with socket.socket(fileno=_SOCKET) as answers:
            if (pid := os.fork()) == 0:
                os.setsid()
                _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
                serve_candidate(answers, _MEMORY, setup)
                return
            poll, at_first, is_dead = select.poll(), _memory_of("self"), None
            poll.register(answers, select.POLLRDHUP)  # the judge has closed it, or ended
            while not (reason or is_dead or poll.poll(_TICK_MS)):
                is_dead = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                reason = _excess(setup.memory, at_first)
            while children := _children_of("self"):
                for child in children:
                    os.kill(child, signal.SIGKILL)  # not waited for, so the id is still its own
                statuses.update((child, os.waitpid(child, 0)[1]) for child in children)
            shutil.rmtree(directory, ignore_errors=True)
            reason = reason or describe_end(os.waitstatus_to_exitcode(statuses[pid]))
            answers.send(json.dumps({"reason": f"its process {reason}"}).encode())
    finally:
        os._exit(0)


def _set_up(directory: str, connection: int, memory: int) -> None:
    """Set what a candidate's process inherits, and adopt what it leaves behind."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.dup2(connection, _SOCKET, inheritable=False)
    os.dup2(memory, _MEMORY, inheritable=False)
    os.closerange(3, _SOCKET)
    del os.environ[_ASKS_NVML]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE, _MAX_FILE))
    os.chdir(directory)
    os.environ["TMPDIR"] = os.environ["TORCH_EXTENSIONS_DIR"] = tempfile.tempdir = directory


def _excess(most_memory: int, at_first: int) -> str:
    """Return which limit is exceeded, or "". A forked process seems to have the memory that its parent had at first."""
    processes = [*_children_of("self")]
    for process in processes:
        processes += _children_of(process)  # the loop goes on with these
    sizes = [max(0, _memory_of(process) - at_first) for process in processes]
    if len(sizes) > _MAX_PROCESSES:
        return f"has started more than {_MAX_PROCESSES} processes"
    is_above = sum(sizes) > most_memory + os.fstat(_MEMORY).st_size
    return f"uses more than {most_memory / 1e9:g} GB of memory" if is_above else ""


def _children_of(pid: int | str) -> set[int]:
    with suppress(OSError):
        files = Path(f"/proc/{pid}/task").glob("*/children")
        return {int(child) for file in files for child in file.read_text().split()}
    return set()  # it has ended


def _memory_of(pid: int | str) -> int:
    """Return the bytes of memory that a process uses, without what it maps from files, or 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return 0
