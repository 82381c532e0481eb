"""When Python's garbage collector may work during a build: not before a compiler does."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_held = threading.Event()


@contextmanager
def collector_held() -> Iterator[None]:
    """Hold the garbage collector back, up to the end or to `release_collector`, whichever is first.

    Right after `import torch` the next few thousand objects, whoever makes them, set off a full collection over all
    that torch made: 80 ms. Our imports make as many. Once a compiler runs, the collector can work beside it.
    """
    if gc.isenabled():
        _held.set()
        gc.disable()
    try:
        yield
    finally:
        release_collector()


def release_collector() -> None:
    """Let the garbage collector work again, if it is we who held it."""
    if _held.is_set():
        _held.clear()
        gc.enable()
