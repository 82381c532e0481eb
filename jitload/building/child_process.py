"""A child process that answers this process's questions one by one, over the child's standard input and output."""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from jitload.errors import ToolchainError

_SHUTDOWN_S = 10.0  # seconds; how long to wait for a child to end, because NVRTC may need that long to stop
_POLL_S = 1.0  # seconds between a child's checks that its parent still runs


class ChildProcess:
    """A child process and the pipes to it.

    The child is not started by `multiprocessing`, because the child would then import this program's main module.

    The child runs in its own session, so that Ctrl-C reaches only this process, which then stops the child.
    """

    def __init__(
        self, program: str, *arguments: str, options: Sequence[str] = (), stdin: Any = subprocess.PIPE
    ) -> None:
        """Start Python with `options`, and run the code `program` with `arguments`."""
        if not sys.executable:
            raise ToolchainError(
                "no child process can be started, because sys.executable is empty: run the program with Python"
            )
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", program, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def ask(self, question: object) -> Any:
        """Send a question and return the answer, or None if the child has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(question, self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)  # noqa: S301  from our own child
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            # An error of a pipe usually means that the child has ended. A signal handler may also raise an OSError,
            # such as a TimeoutError. Such an error has no error number, and it is passed on.
            if (isinstance(error, OSError) and error.errno is None) or not self._has_ended():
                raise
        return None

    def is_alive(self) -> bool:
        """Return whether the child runs."""
        return self._process.poll() is None

    def _has_ended(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SHUTDOWN_S)
        return not self.is_alive()

    def cause_of_death(self) -> str:
        """Return how the process ended."""
        return describe_end(self._process.wait())

    def interrupt(self) -> None:
        """Send SIGTERM, so that the process stops its work and cleans up."""
        self._process.terminate()

    def close(self) -> None:
        """Close the pipes. A child that waits for a question then ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def await_end(self) -> None:
        """Wait for the process to end, and kill it if it still runs after 10 s."""
        if not self._has_ended():
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()
        self._process.wait()

    def forget(self) -> None:
        """Close a forked process's copies of the pipes, without ending the child process."""
        self.close()
        self._process.returncode = 0  # otherwise Popen warns that the child still runs


C = TypeVar("C", bound=ChildProcess)


class ChildPool(Generic[C]):
    """Children that wait for questions. `start` starts a new one when none waits, or in place of one that died."""

    def __init__(self, start: Callable[[], C]) -> None:
        self.start = start
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self.idle: list[C] = []
        self._working = set[C]()
        self._is_interrupted = False

    def take(self) -> C:
        """Return a child that waits, or a new one."""
        with self._lock:
            if self._is_interrupted:
                raise CancelledError
            while self.idle and not self.idle[-1].is_alive():
                self.idle.pop().close()
            child = self.idle.pop() if self.idle else self.start()
            self._working.add(child)
            return child

    def give_back(self, child: C) -> None:
        """Keep a child for the next question, if it is alive."""
        with self._lock:
            self._working.discard(child)
            if child.is_alive():
                self.idle.append(child)

    def ask(self, question: object, tries: int) -> tuple[Any, str]:
        """Return the answer of a child, or None and how the last of `tries` children died over the question."""
        cause = ""
        for _ in range(tries):
            child = self.take()
            try:
                answer = child.ask(question)
            except BaseException:  # such as KeyboardInterrupt
                child.kill()
                raise
            finally:
                self.give_back(child)
            if answer is not None:
                return answer, ""
            cause = child.cause_of_death()
            child.close()
        return None, cause

    def interrupt(self) -> None:
        """Let no child begin, and interrupt those at work."""
        with self._lock:
            self._is_interrupted = True
            for child in self._working:
                child.interrupt()

    def forget(self) -> None:
        """Forget the children in a forked process. They belong to the parent process."""
        for child in (*self.idle, *self._working):
            child.forget()
        self._begin()

    def close(self) -> None:
        """End the children that wait."""
        for child in self.idle:
            child.close()
        for child in self.idle:
            child.await_end()


def describe_end(status: int) -> str:
    """Return how a process ended. `status` is its exit code, or the negative number of a signal."""
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


def end_with_parent(parent: int) -> None:
    """Start a thread that ends this process when the process `parent`, which started it, has ended.

    Temporary directories are removed before. An end-of-file on the pipe is no reliable sign, because a fork of the
    parent may keep the pipe open.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        atexit._run_exitfuncs()  # noqa: SLF001  the process is killed, because NVRTC may be at work
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="jitload-parent", daemon=True).start()


def answer_questions(answer: Callable[[Any], object], *, idle_s: float | None = None) -> None:
    """Pass each question on standard input to `answer`, and write the result to standard output.

    This is the main loop of a child process. Questions and results are pickled. The loop ends when the parent closes
    the pipes, or after `idle_s` seconds without a question.
    """
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of tools must not mix with the answers
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        # The parent sends a question only after the last answer, so that no question is in the buffer.
        while select.select([questions], [], [], idle_s)[0]:
            question = pickle.load(questions)  # noqa: S301  from the process that started this one
            pickle.dump(answer(question), answers)
            answers.flush()
            if not gc.isenabled():  # most objects made so far belong to modules, which are never garbage
                gc.freeze()
                gc.enable()
    gc.freeze()  # a collection at exit would take longer than the rest of the exit
