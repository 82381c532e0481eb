"""The process that has imported torch, and from which a judge forks a process for each candidate.

A fork takes hundredths of a second, and starting Python and importing torch takes seconds. The template never uses
CUDA, which would not work in a fork.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitload.building.child_process import answer_questions

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl
_MAX_FILE = 256 << 20  # bytes of a file that a candidate writes
_CLEAN_UP_S = 5.0
_ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # a variable of torch
_SOCKET, _MEMORY = 800, 801  # numbers of descriptors that nobody closes or writes to by mistake
_libc = ctypes.CDLL(None)


def serve(parent: int, control: int, root: str) -> None:
    """Answer the questions of the process `parent`.

    A question is the directory and the setup of a new process, whose id is the answer, or the id of a process to end.
    When the parent ends, so do all processes.
    """
    from jitload.cuda import isolated

    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a candidate leaves behind becomes a child of this process
    os.environ["JITLOAD_LIBRARY"] = "never"  # no builds in the background
    isolated.is_needed = False  # nor processes that precompile headers: a candidate has a process of its own
    os.environ[_ASKS_NVML] = "1"  # or torch could start CUDA here, to find out whether there is a GPU
    running: set[int] = set()

    def answer(question: Any) -> int:
        if isinstance(question, int):
            return _end(question, running)
        _, descriptors, _, _ = socket.recv_fds(control_socket, 1, 2)
        if (pid := os.fork()) == 0:
            _run(*question, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        running.add(pid)
        return pid

    _import_modules()
    _end_nvml()
    with socket.socket(fileno=control) as control_socket:
        answer_questions(answer, parent=parent)
    for pid in [*running]:
        _end(pid, running)
    shutil.rmtree(root, ignore_errors=True)
    os._exit(0)  # without what modules print at exit


def _import_modules() -> None:
    import torch
    import torch._dynamo  # which replaces functions of torch
    import tvm_ffi

    import jitload.cpp_extension
    import jitload.judging.child
    import jitload.loader.module

    jitload.cpp_extension.install()  # torch's own leaves locks behind where it is killed, for which others then wait

    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # this imports more
    with suppress(RuntimeError):  # tvm-ffi's first error reads the symbols of all libraries, which takes a second
        tvm_ffi.get_global_func("ffi.GetGlobalFuncMetadata")("none")


def _end_nvml() -> None:
    """End NVML, which modules have started. A candidate's process starts it again.

    That process closes all descriptors, and would otherwise find no GPU through those of this NVML.
    """
    with suppress(OSError):  # it is not loaded
        nvml = ctypes.CDLL("libnvidia-ml.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        while nvml.nvmlShutdown() == 0:  # once for each start
            pass


def _end(pid: int, running: set[int]) -> int:
    """Kill a process and all that it has started, and return its status."""
    running.remove(pid)
    os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    deadline = time.monotonic() + _CLEAN_UP_S
    while (orphans := children_of("self") - running) and time.monotonic() < deadline:
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)  # not waited for, so the id is still its own
        for orphan in orphans:
            os.waitpid(orphan, 0)
    return status


def children_of(pid: int | str) -> set[int]:
    """Return the ids of a process's children."""
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task")
        return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}
    return set()  # it has ended


def _run(directory: str, setup: Any, connection: int, memory: int) -> None:
    """Run the new process, and never return."""
    from jitload.judging.child import serve_candidate

    try:
        _prepare(directory, connection, memory)
        serve_candidate(socket.socket(fileno=_SOCKET), _MEMORY, setup)
    finally:
        os._exit(0)


def _prepare(directory: str, connection: int, memory: int) -> None:
    import resource

    os.setsid()
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that its limits also apply to orphans
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
