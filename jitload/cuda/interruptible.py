"""Runs NVRTC on a thread of its own, so that Ctrl-C can end a compile, and so that the stack is large enough.

NVRTC 13.0 replaces the handlers of signals while it works, and restores them with signal(3). From then on, system calls
that a signal interrupts are restarted, and a thread that waits for a lock would no longer notice Ctrl-C. Therefore this
module makes signals interrupt system calls again.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

# The stack of the thread that runs NVRTC. With the 8 MB of a main thread, NVRTC crashes on expressions that are nested
# 5,000 deep. Pages of the stack that NVRTC does not touch take no memory.
_STACK_BYTES = 256 << 20
_POLL_S = 0.05  # seconds between checks for Ctrl-C, in case the signal does not wake the waiting thread
_EXIT_POLL_S = 0.0001
_stack_lock = threading.Lock()  # guards the stack size of new threads, which is process-wide
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")


class Cancellation:
    """A flag that cancels a compile. NVRTC checks the flag at thousands of points of the compile.

    NVRTC 13.5 crashes if the flag is set during one of its passes, which takes 0.3 % of a long compile.
    """

    def __init__(self) -> None:
        self._answer = ctypes.create_string_buffer(b"0")

    def watch(self, nvrtc: Any, program: Any) -> None:
        """Make NVRTC check the flag while it compiles a program. NVRTC before 12.8 cannot do this."""
        # The callback is the C library's atoi: a Python function would have to wait for the GIL at each call.
        callback = ctypes.cast(_libc().atoi, ctypes.c_void_p).value
        with suppress(RuntimeError):  # raised if this NVRTC does not have the function
            nvrtc.nvrtcSetFlowCallback(program, callback, ctypes.addressof(self._answer))

    def cancel(self) -> None:
        """Set the flag, which makes NVRTC end the compile."""
        self._answer[0] = b"1"


def run_interruptible(work: Callable[[Cancellation], T]) -> T:
    """Run `work` on a thread of its own, and return its result.

    `work` is a function that compiles. Its argument is the flag that cancels the compile.

    An exception in the calling thread, such as KeyboardInterrupt, cancels the compile. The exception is raised again
    when the compile has ended. If no thread can be started, the compile runs in the calling thread.
    """
    cancellation, future, has_ended = Cancellation(), Future[T](), threading.Event()

    def run() -> None:
        try:
            future.set_result(work(cancellation))
        except BaseException as error:  # noqa: BLE001  passed to the waiting thread
            future.set_exception(error)
        finally:
            for number in _SIGNALS:
                signal.siginterrupt(number, True)
            has_ended.set()

    is_started, thread = False, threading.Thread(target=run, name="jitload-nvrtc", daemon=True)
    try:
        is_started = _start(thread)
        if not is_started:
            return work(cancellation)
        # Thread.join() cannot be used here: after an interrupted join(), Python 3.11 considers the thread finished.
        while not has_ended.wait(_POLL_S):
            pass
        # NVRTC holds a lock while the thread exits. In a process that is forked then, NVRTC would wait for ever.
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            time.sleep(_EXIT_POLL_S)
    except BaseException:
        cancellation.cancel()
        if is_started:
            _wait_for(has_ended)
        raise
    return future.result()


def _start(thread: threading.Thread) -> bool:
    """Start a thread with a large stack, and return whether it started.

    Python refuses a new thread at a limit of the system, or when the process is ending.
    """
    with _stack_lock:
        usual_bytes = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError:
            return False
        finally:
            threading.stack_size(usual_bytes)
    return True


def _wait_for(has_ended: threading.Event) -> None:
    """Wait for a cancelled compile to end, and ignore further exceptions.

    Otherwise, a second Ctrl-C would leave NVRTC running in the background.
    """
    while not has_ended.is_set():
        try:
            has_ended.wait(_POLL_S)
        except BaseException:  # noqa: BLE001, S112  the caller raises the first exception
            continue


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
