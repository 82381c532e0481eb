"""Runs NVRTC in a child process, so that a crash, or a compile that takes too much time or memory, ends only the child.

A child is started when it is first needed and stays for later compiles, for which it keeps parsed headers. After an
idle minute, it ends. It imports neither torch nor the user's program, and it has no GPU context.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from jitload.building.child_process import ChildPool, ChildProcess, answer_questions, end_with_parent
from jitload.building.resources import core_count, run_in_background
from jitload.cuda import program
from jitload.cuda.job import NvrtcJob, NvrtcResult
from jitload.errors import CompileError, JitLoadError

# Whether NVRTC needs a process of its own. False in a worker process that only builds, because a worker that dies is
# replaced.
is_needed = True

_PROGRAM = (
    "import sys; parent, *sys.path[:] = sys.argv[1:]; from jitload.cuda.isolated import serve; serve(int(parent))"
)
_IDLE_S = 60.0
_PACKAGE_DIR = str(Path(__file__).parents[2])


class _Question(NamedTuple):
    """A job for a child process, with the library, the environment and the working directory to use."""

    library_path: Path
    job: NvrtcJob
    environment: dict[str, str]
    working_dir: str


def run_isolated(library_path: Path, job: NvrtcJob) -> NvrtcResult:
    """Run NVRTC once in a child process.

    If the module's variable `is_needed` is false, run NVRTC in this process.

    Raises:
        CompileError: NVRTC rejected the source, an option or a name expression, or the child process died.
        ToolchainError: The library cannot be used or does not know the architecture, or `sys.executable` is empty.
    """
    if not is_needed:
        return program.compile_in_process(library_path, job)
    if job.directives and _compiling:
        _compiling.exception()  # waits
    with _slots:
        # A job may die of what an earlier one has damaged in a child that waits, but not in a new child.
        question = _Question(library_path, job, dict(os.environ), _working_dir())
        answer, cause = _children.ask(question, tries=1 + len(_children.idle))
    if isinstance(answer, NvrtcResult):
        return answer
    raise answer or _crash(job, cause)


def compile_later(library_path: Path, job: NvrtcJob) -> None:
    """Compile a job again in the background, in a child process that then keeps its headers."""
    global _compiling  # noqa: PLW0603
    if is_needed and (_compiling is None or _compiling.done()):  # otherwise, the job waits for its next compile
        question = _Question(library_path, job, dict(os.environ), _working_dir())
        _compiling = run_in_background(_children.ask, question, 1)  # the next compile will report an error


_compiling: Future[Any] | None = None


def _working_dir() -> str:
    try:
        return os.getcwd()
    except OSError:  # raised if the working directory was removed
        return "/"


def _crash(job: NvrtcJob, cause: str) -> CompileError:
    return CompileError(
        stage="nvrtc",
        name=job.name,
        log=f"The process that ran NVRTC {cause} while it compiled {job.name!r}.",
        command=job.options,
        hint="NVRTC crashed, or the system ended the process, for example for lack of memory. To find the cause, leave "
        "out parts of the source.",
    )


def _start() -> ChildProcess:
    # The option -S leaves out the site module, which may import anything. Instead, the child gets the sys.path of this
    # process, including what the site module added to it.
    options = ("-I", "-S", *(("-X", "utf8") if sys.flags.utf8_mode else ()))
    return ChildProcess(_PROGRAM, str(os.getpid()), *sys.path, _PACKAGE_DIR, options=options)


def _end_children() -> None:
    """End the idle children. Children at work end with this process."""
    while _children.idle:
        _children.idle.pop().kill()


def _forget_children() -> None:
    global _slots, _compiling  # noqa: PLW0603
    _children.forget()
    _compiling = None
    _slots = threading.BoundedSemaphore(core_count())


_children, _slots = ChildPool(_start), threading.BoundedSemaphore(core_count())  # each child at work takes a core
atexit.register(_end_children)
os.register_at_fork(after_in_child=_forget_children)


def prepare_child() -> None:
    """Start a child process for the next compile if none is idle."""
    if not _children.idle:
        with suppress(OSError, JitLoadError):  # the compile will report the error
            _children.give_back(_start())


# ---- the child ---------------------------------------------------------------------------------------------------


def serve(parent: int) -> None:
    """Run jobs one after another, as a child of the process whose id is `parent`."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes with headers that have ended leave nothing
    end_with_parent(parent)
    answer_questions(_answer, idle_s=_IDLE_S)


def _answer(question: _Question) -> NvrtcResult | Exception:
    from jitload.cuda.parsed_headers import compile_after_headers

    os.environ.clear()
    os.environ.update(question.environment)
    try:
        os.chdir(question.working_dir)
        return compile_after_headers(question.library_path, question.job)
    except JitLoadError as error:
        return error
    except Exception as error:  # noqa: BLE001  the parent raises this error
        return JitLoadError(f"the process that runs NVRTC failed: {type(error).__name__}: {error}")
