"""Processes that keep parsed headers, with which NVRTC compiles further sources with the same headers in less time.

Such a process is a fork of the child process that runs NVRTC (`isolated`). It compiles the beginning of a source: the
preprocessor directives before any other code, and then the `#include` of a file with a lease (`fcntl`). When NVRTC
opens this file, the system makes it wait and sends a signal. For each source with these directives, the signal's
handler forks, and NVRTC goes on in the fork, with the rest of the source in place of the file.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import logging
import os
import re
import signal
import struct
import tempfile
import threading
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from jitload.building.resources import free_memory
from jitload.cuda.bindings import inside_nvrtc
from jitload.cuda.interruptible import Cancellation, run_interruptible
from jitload.cuda.job import NvrtcJob, NvrtcResult
from jitload.cuda.program import compile_in_process, compile_program, load_nvrtc
from jitload.errors import CompileError

_FREE_BYTES = 3 << 30  # with less free memory, no headers are kept
# What may have another meaning in an included file, or in a compile that began earlier.
_UNLIKE = r"(?s)(?:#|%:)(?:\s|\\|/\*.*?\*/)*include|__has_include|__INCLUDE_LEVEL__|__DATE__|__TIME|\\\s*\Z"
_F_SETOWN_EX, _F_OWNER_TID, _PR_SET_PDEATHSIG, _MADV_POPULATE_WRITE = 15, 0, 1, 23
_libc = ctypes.CDLL(None)
_log = logging.getLogger(__name__)


def compile_after_headers(library_path: Path, job: NvrtcJob) -> NvrtcResult | CompileError:
    """Compile with parsed headers if possible, and otherwise in this process. An error of a fork is returned."""
    line, _, text = job.source.partition("\n")
    names = tuple(f"__jitload_name_{number}" for number in range(len(job.expressions)))
    headers = job._replace(source=f"{line}\n{job.directives}\n", expressions=names, is_isolated=False)
    macros = "".join(f"#define {name} {value}\n" for name, value in zip(names, job.expressions, strict=True))
    line = line.replace(" 1 ", f" {job.directives.count(chr(10)) + 1} ", 1)
    source = f"{macros}{line}\n{text[len(job.directives) :]}"
    if job.directives and free_memory() >= _FREE_BYTES and not re.search(_UNLIKE, source):
        try:
            connection = _connection(library_path, headers)
            connection.send((source, job.expressions))
            if isinstance(answer := connection.recv(), NvrtcResult | CompileError):
                return answer
        except (EOFError, OSError):
            _log.warning("NVRTC compiles %s without kept headers, because no process keeps them", job.name)
    return compile_in_process(library_path, job)


@functools.lru_cache(maxsize=2)
def _connection(library_path: Path, headers: NvrtcJob) -> Connection:
    """Fork a process that keeps headers, and return the connection to it. When it is closed, the process ends."""
    ours, theirs = Pipe()
    if os.fork() == 0:
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            ours.close()
            _connection.cache_clear()  # closes the copies of other connections
            with inside_nvrtc():
                run_interruptible(functools.partial(_compile, theirs, library_path, headers))
        finally:
            os._exit(1)
    return ours


def _compile(connection: Connection, library_path: Path, headers: NvrtcJob, cancellation: Cancellation) -> None:
    """Compile headers, and in each fork a source after them. All these processes end here."""
    expressions: tuple[str, ...] | None = None

    def fork_for_jobs(_signal: int) -> None:
        """Return only in the forks. NVRTC opens the path again, which now is the source."""
        nonlocal expressions
        try:
            while fork := os.fork():
                if os.waitpid(fork, 0)[1] != 0:
                    os._exit(1)
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _copy_pages()
            source, expressions = connection.recv()
            os.write(memory := os.memfd_create("source"), source.encode())
            os.dup2(memory, file.fileno())
        except BaseException:  # noqa: BLE001  NVRTC must not go on
            os._exit(1)

    try:
        handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(fork_for_jobs)
        _libc.signal(signal.SIGUSR1, handler)  # a handler of Python's would run in the main thread
        _libc.signal(signal.SIGCHLD, None)  # the user's program may ignore or block signals
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        file = tempfile.TemporaryFile()  # noqa: SIM115  open until the process ends
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGUSR1)
        fcntl.fcntl(file, _F_SETOWN_EX, struct.pack("ii", _F_OWNER_TID, threading.get_native_id()))
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        beginning = headers._replace(source=f'{headers.source}#include "/proc/self/fd/{file.fileno()}"\n')
        try:
            result = compile_program(load_nvrtc(library_path), library_path, beginning, cancellation)
            symbols = zip(expressions or (), result.lowered.values(), strict=False)
            answer: object = result._replace(lowered=dict(symbols))
        except CompileError as error:  # a message about a name expression would quote the macro
            answer = None if "__nv_name_map" in error.log else error
        if expressions is not None:  # otherwise, NVRTC did not wait, and this is no fork
            connection.send(answer)
            os._exit(0)
    finally:
        os._exit(1)


def _copy_pages() -> None:
    """Copy the memory that this process shares with the one that forked it. Page by page, it would take longer."""
    page, pagemap = os.sysconf("SC_PAGE_SIZE"), os.open("/proc/self/pagemap", os.O_RDONLY)
    for start, end in re.findall(rb"(?m)^(\w+)-(\w+) rw-p", Path("/proc/self/maps").read_bytes()):
        first, last = (int(address, 16) // page for address in (start, end))
        for run in re.finditer(rb"[\x80-\xff]+", os.pread(pagemap, (last - first) * 8, first * 8)[7::8]):
            # Those pages are in memory whose entries have their highest bit.
            address, size = (first + run.start()) * page, len(run[0]) * page
            _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)
