"""Reports the stages of a build: to listeners, to the log, and on standard error for `verbose=True`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("jitload")  # of the whole package, whose level and handlers the program sets

listeners: list[Callable[[str], None]] = []  # each is called with the description of a stage that begins


@contextmanager
def stage(description: str) -> Iterator[None]:
    """Report that a stage of a build begins, and log at level INFO how long it took."""
    for listener in listeners:
        listener(description)
    started = time.perf_counter()
    yield
    _log.info("%s: %.0f ms", description, 1000 * (time.perf_counter() - started))


@contextmanager
def shown_log(*, is_shown: bool) -> Iterator[None]:
    """Let messages of level INFO appear, on standard error if the program has not configured `logging`."""
    if not is_shown or _log.isEnabledFor(logging.INFO):
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("jitload: %(message)s"))
    has_handlers = _log.hasHandlers()
    level = _log.level
    _log.setLevel(logging.INFO)
    if not has_handlers:
        _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)
