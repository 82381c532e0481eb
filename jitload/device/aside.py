"""Runs a compile of NVRTC on a thread of its own: with room for it, and so that Ctrl-C ends it."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

# NVRTC takes the stack that it finds: in the 8 MB of a main thread it crashes on expressions that nest 5,000 deep. What
# is not touched takes no memory.
_STACK_BYTES = 256 << 20
_one_at_a_time = threading.Lock()  # the size of a stack is the process's
Made = TypeVar("Made")


class Flow:
    """What NVRTC asks, at hundreds of places of a compile, whether to go on."""

    def __init__(self) -> None:
        self._word = ctypes.create_string_buffer(b"0")

    def watch(self, library: ctypes.CDLL, program: Any) -> None:
        """Let a program ask, where this NVRTC can: from 12.8 on."""
        if hasattr(library, "nvrtcSetFlowCallback"):
            library.nvrtcSetFlowCallback(program, _read_word(), self._word)

    def cancel(self) -> None:
        """Let the answer be no from now on."""
        self._word[0] = b"1"


@functools.lru_cache(maxsize=1)
def _read_word() -> Any:
    """Return a C function that reads "0" and "1": a callback in Python would wait for the GIL each time."""
    return ctypes.CDLL(None).atoi


def run_aside(work: Callable[[Flow], Made]) -> Made:
    """Return what a compile makes.

    An exception in this thread, as Ctrl-C raises it in the main one, ends the compile before it is passed on.
    """
    flow, done, ended = Flow(), Future[Made](), threading.Event()
    thread = threading.Thread(target=_run, args=(work, flow, done, ended), name="jitload-nvrtc", daemon=True)
    is_started = False
    try:
        is_started = _is_started(thread)
        if not is_started:
            return work(flow)
        ended.wait()  # and no join(), which takes a thread for ended when it is interrupted, in Python 3.11
    except BaseException:
        flow.cancel()
        if is_started:
            _await(ended)
        raise
    return done.result()


def _is_started(thread: threading.Thread) -> bool:
    """Start a thread; tell whether it could be: not at a limit of threads or memory, nor when the process ends."""
    with _one_at_a_time:
        usual = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError:
            return False
        finally:
            threading.stack_size(usual)
    return True


def _run(work: Callable[[Flow], Made], flow: Flow, done: Future[Made], ended: threading.Event) -> None:
    try:
        done.set_result(work(flow))
    except BaseException as error:  # noqa: BLE001  handed to whoever waits
        done.set_exception(error)
    finally:
        ended.set()


def _await(ended: threading.Event) -> None:
    """Wait for a compile that was told to end; a second Ctrl-C must not leave NVRTC at work behind our back."""
    while not ended.is_set():
        try:
            ended.wait()
        except BaseException:  # noqa: BLE001, S112  the first one is on its way
            continue
