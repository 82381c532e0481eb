"""Runs a compile of NVRTC on a thread of its own: with room for it, and so that Ctrl-C ends it.

NVRTC 13.0 takes SIGINT for itself while it works, and gives it back by signal(3), which has system calls start again
after it: a thread that then waits for a lock no longer notices Ctrl-C. What was there is put back.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

# NVRTC takes the stack that it finds: in the 8 MB of a main thread it crashes on expressions that nest 5,000 deep. What
# is not touched takes no memory.
_STACK_BYTES = 256 << 20
_one_at_a_time = threading.Lock()  # the size of a stack is the process's, and so are handlers of signals
_LOOKS_UP_S = 0.05  # how often the main thread looks whether Ctrl-C came, where that does not wake it
_meanwhile = threading.local()
Made = TypeVar("Made")


class Flow:
    """What NVRTC asks, at hundreds of places of a compile, whether to go on."""

    def __init__(self) -> None:
        self._word = ctypes.create_string_buffer(b"0")

    def watch(self, library: ctypes.CDLL, program: Any) -> None:
        """Let a program ask, where this NVRTC can: from 12.8 on."""
        if hasattr(library, "nvrtcSetFlowCallback"):
            # The C library's atoi reads "0" and "1"; a callback in Python would wait for the GIL each time.
            library.nvrtcSetFlowCallback(program, _libc().atoi, self._word)

    def cancel(self) -> None:
        """Let the answer be no from now on."""
        self._word[0] = b"1"


def run_interruptible(work: Callable[[Flow], Made]) -> Made:
    """Return what a compile makes.

    An exception in this thread, as Ctrl-C raises it in the main one, ends the compile before it is passed on.
    """
    flow, done, ended = Flow(), Future[Made](), threading.Event()
    thread = threading.Thread(target=_run, args=(work, flow, done, ended), name="jitload-nvrtc", daemon=True)
    is_started = False
    try:
        is_started = start_with_stack(thread, _STACK_BYTES)
        if not is_started:
            return work(flow)
        while not ended.wait(_LOOKS_UP_S):  # and no join(), which Python 3.11 takes for done when it is interrupted
            if do := getattr(_meanwhile, "work", None):
                do()
    except BaseException:
        flow.cancel()
        if is_started:
            _await(ended)
        raise
    return done.result()


@contextmanager
def doing_meanwhile(do: Callable[[], None]) -> Iterator[None]:
    """Have something done, again and again, while this thread waits for a compile that takes long."""
    _meanwhile.work = do
    try:
        yield
    finally:
        _meanwhile.work = None


def start_with_stack(thread: threading.Thread, stack_bytes: int) -> bool:
    """Start a thread; tell whether it could be: not at a limit of threads or memory, nor when the process ends."""
    with _one_at_a_time:
        usual = threading.stack_size(stack_bytes)
        try:
            thread.start()
        except RuntimeError:
            return False
        finally:
            threading.stack_size(usual)
    return True


def _run(work: Callable[[Flow], Made], flow: Flow, done: Future[Made], ended: threading.Event) -> None:
    try:
        with _handlers_kept():
            made = work(flow)
        done.set_result(made)
    except BaseException as error:  # noqa: BLE001  handed to whoever waits
        done.set_exception(error)
    finally:
        ended.set()


def _await(ended: threading.Event) -> None:
    """Wait for a compile that was told to end; a second Ctrl-C must not leave NVRTC at work behind our back."""
    while not ended.is_set():
        try:
            ended.wait(_LOOKS_UP_S)
        except BaseException:  # noqa: BLE001, S112  the first one is on its way
            continue


# ---- handlers of signals ---------------------------------------------------------------------------------------

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ)


class _Action(ctypes.Structure):
    """What the C library keeps of a signal; glibc and musl agree on it. Of the mask the kernel has the first word."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )

    def differs(self, other: _Action) -> bool:
        return bool(self.flags != other.flags or self.mask[0] != other.mask[0])


_before: list[_Action] = []  # what was there when the first of the compiles began that are at work
_at_work = 0


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Put back how signals are handled, unless somebody has set another handler meanwhile."""
    global _at_work  # noqa: PLW0603
    with _one_at_a_time:
        if _at_work == 0:
            _before[:] = map(_action, _SIGNALS)
        _at_work += 1
    try:
        yield
    finally:
        with _one_at_a_time:
            _at_work -= 1
            if _at_work == 0:
                for number, before in zip(_SIGNALS, _before, strict=True):
                    now = _action(number)
                    if now.handler == before.handler and now.differs(before):
                        _libc().sigaction(number, ctypes.byref(before), None)


def _action(number: int) -> _Action:
    found = _Action()
    _libc().sigaction(number, None, ctypes.byref(found))
    return found


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
