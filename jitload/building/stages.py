"""Reports the stages of a build to the log, and on standard error for `verbose=True`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_log = logging.getLogger("jitload")  # the logger of the whole package; the program sets its level and handlers


@contextmanager
def stage(description: str) -> Iterator[None]:
    """Log the duration of a stage of a build at level INFO."""
    started = time.perf_counter()
    yield
    _log.info("%s: %.0f ms", description, 1000 * (time.perf_counter() - started))


class _ShownLog:
    """A context manager that shows log messages of level INFO while any thread is in its block.

    The messages appear on standard error if the program has not configured `logging`. The last thread that leaves the
    block restores the logger.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._changes = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._change_logger()

    def _change_logger(self) -> None:
        if not _log.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("jitload: %(message)s"))
            _log.addHandler(handler)
            self._changes.callback(_log.removeHandler, handler)
        if not _log.isEnabledFor(logging.INFO):
            self._changes.callback(_log.setLevel, _log.level)
            _log.setLevel(logging.INFO)

    @property
    def is_shown(self) -> bool:
        """Whether a thread is in the block. Builds then log their commands, too."""
        return self._blocks > 0

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self._changes.close()


shown_log = _ShownLog()
