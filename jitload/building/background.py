"""Builds the libraries of kernels in the background, one after another, while the process launches them from memory."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from jitload.errors import JitLoadError, ToolchainError

if TYPE_CHECKING:
    from pathlib import Path

    from jitload.cache.entry import Entry
    from jitload.cache.key import CacheKey
    from jitload.request.request import Request

    _Job = tuple[Entry, Request, CacheKey, Path]
# A process usually loads several kernels one after another, and then works with them. Libraries come last: when no
# kernel has been added for this time.
_DELAY_S = 0.5
_log = logging.getLogger(__name__)


class _Queue:
    """The libraries to build, and the thread that builds them and then ends."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: deque[_Job] = deque()
        self.added = 0  # how many jobs have been added
        self.thread: threading.Thread | None = None
        self.stopping = threading.Event()

    def add(self, job: _Job) -> None:
        with self.lock:
            self.jobs.append(job)
            self.added += 1
            if self.thread is None and not self.stopping.is_set():
                self.thread = threading.Thread(target=self.run, name="jitload-library", daemon=True)
                self.thread.start()

    def run(self) -> None:
        job = self.next_job()
        from jitload.building.library import build_library  # imports what a cache hit does not need

        # Registered behind what removes unfinished builds, so that it is called first.
        atexit.register(self.stop)
        while job:
            try:
                build_library(*job)
            except ToolchainError as error:
                _log.info("this process builds no libraries: %s", error)
                self.jobs.clear()
            except (JitLoadError, OSError) as error:
                _log.info("the library of %r is not built: %s", job[1].name, error)
            except Exception:  # noqa: BLE001  whatever it is, the next library may be built
                _log.warning("the library of %r is not built", job[1].name, exc_info=True)
            job = self.next_job()
        atexit.unregister(self.stop)

    def next_job(self) -> _Job | None:
        """Return the next job when no job has been added for a while, or None if there is none."""
        seen = -1 if self.jobs else self.added
        while seen != self.added and not self.stopping.is_set():
            seen = self.added
            self.stopping.wait(_DELAY_S)
        with self.lock:
            if self.jobs and not self.stopping.is_set():
                return self.jobs.popleft()
            self.thread = None
            return None

    def stop(self) -> None:
        """Stop the build that runs, so that nothing is published while the process ends."""
        from jitload.building.ninja import stop_running

        self.stopping.set()
        if thread := self.thread:
            stop_running()
            thread.join(_DELAY_S)


_queue = _Queue()


def _renew_after_fork() -> None:
    global _queue  # noqa: PLW0603  the parent's thread does not exist in the child
    _queue = _Queue()


os.register_at_fork(after_in_child=_renew_after_fork)


def build_library_later(recorded: Entry, request: Request, key: CacheKey, cache_dir: Path) -> None:
    """Build the library of kernels that have an entry into a cache, on a thread, with the lowest priority.

    A build that the process does not live to see leaves nothing. Errors are logged at level INFO: the kernels work
    without a library.
    """
    _queue.add((recorded, request, key, cache_dir))
