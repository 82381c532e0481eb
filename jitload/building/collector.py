"""Holds Python's garbage collector back while a module is built and loaded."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_holders: list[None] = []
_held = threading.Event()


@contextmanager
def pause_garbage_collection(*, at_most_s: float | None = None) -> Iterator[None]:
    """Hold the garbage collector back, for a time at most where other threads may need it by then.

    After `import torch` the next few thousand objects, whoever makes them, set off a full collection over all that
    torch made: 80 ms. Our imports make as many.
    """
    with _lock:
        _holders.append(None)
        if gc.isenabled():
            gc.disable()
            _held.set()
    timer = None if at_most_s is None else threading.Timer(at_most_s, _release)
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.cancel()
        if _holders:  # none in a child that was forked within
            _holders.pop()
        if not _holders:
            _collect_ours()
            _release()


def _collect_ours() -> None:
    """Look through what was made meanwhile, if that is due: by itself it may be all that torch made, once more."""
    if _held.is_set() and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
        gc.collect(0)


def _release() -> None:
    """Let it work again, if it is we who held it."""
    with _lock:
        if _held.is_set():
            _held.clear()
            gc.enable()


def _after_fork() -> None:
    """Let it work in a child: the threads that held it are the parent's."""
    global _lock  # noqa: PLW0603  another thread may have had it
    _lock = threading.Lock()
    _holders.clear()
    _release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
