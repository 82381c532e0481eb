"""Precompiled headers for NVRTC, with which further sources that include the same headers compile in less time.

NVRTC can use a precompiled header only in the process that has created it. Therefore, a child process (`isolated`) or a
worker of `prebuild` compiles these sources. After a slow compile, the child precompiles the headers in the background.
What is precompiled is the beginning of a source: the preprocessor directives before any other code.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from jitload.building.resources import free_memory
from jitload.cuda.job import NvrtcJob

_SLOW_S = 0.5  # processor time of a compile; the next one with the same headers precompiles them
_HEAP_BYTES = 1 << 30  # of addresses: NVRTC uses only the memory that it needs. Another size would free what is kept
_FREE_BYTES = 3 << 30  # with less free memory, nothing is precompiled
_MAX_KEPT = 2


def _key(job: NvrtcJob) -> NvrtcJob:
    """Return all that a precompiled header depends on. NVRTC itself does not notice that a header has changed."""
    return job._replace(source="", expressions=(), is_isolated=False)


_slow: set[int] = set()  # hashes of keys


def remember_if_slow(job: NvrtcJob, seconds: float) -> None:
    """Remember the headers of a job that has taken this much processor time."""
    if seconds > _SLOW_S and job.directives:
        _slow.add(hash(_key(job)))


def are_headers_slow(job: NvrtcJob) -> bool:
    """Return whether this process has already compiled a slow job with the same headers."""
    return hash(_key(job)) in _slow


def headers_alone(job: NvrtcJob) -> NvrtcJob:
    """Return a job with the directives of `job`, and without its code."""
    line = job.source.partition("\n")[0]
    return job._replace(source=f"{line}\n{job.directives}", expressions=())


def use_precompiled(job: NvrtcJob, descriptor: int) -> NvrtcJob:
    """Return a job that uses a precompiled header. Its `#line` is after the directives, because NVRTC requires this."""
    line, _, text = job.source.partition("\n")
    number = job.directives.count("\n") + 1
    line = line.replace(" 1 ", f" {number} ", 1)
    source = f"{job.directives}#pragma nv_hdrstop\n{line}\n{text[len(job.directives) :]}"
    options = (*job.options, f"--use-pch=/proc/self/fd/{descriptor}", "--pch-messages=false")
    return job._replace(source=source, options=options)


_kept: dict[NvrtcJob, int | None] = {}  # None for headers that cannot be precompiled
_lock = threading.Lock()


def find_precompiled(nvrtc: Any, job: NvrtcJob, create: Callable[[NvrtcJob], bool]) -> int | None:
    """Return the precompiled header for a job, creating it if this process has none, or None if this is impossible.

    It is the descriptor of a file that has no name any more. `create` runs NVRTC, and returns whether it has created a
    precompiled header.
    """
    key = _key(job)
    with _lock:
        if key not in _kept:
            _kept[key] = _precompile(nvrtc, job, create)
            if len(_kept) > _MAX_KEPT and (oldest := _kept.pop(next(iter(_kept)))) is not None:
                os.close(oldest)
        return _kept[key]


def _precompile(nvrtc: Any, job: NvrtcJob, create: Callable[[NvrtcJob], bool]) -> int | None:
    try:
        if free_memory() < _FREE_BYTES or nvrtc.nvrtcSetPCHHeapSize(_HEAP_BYTES) != (0,):
            return None
    except RuntimeError:  # raised by NVRTC before 12.8, which does not have the function
        return None
    with tempfile.TemporaryDirectory(prefix="jitload-") as directory:
        path = os.path.join(directory, "headers.pch")
        options = (*job.options, f"--create-pch={path}", "--pch-messages=false")
        source = f"{job.directives}#pragma nv_hdrstop\n"
        is_created = create(job._replace(source=source, options=options, expressions=()))
        return os.open(path, os.O_RDONLY) if is_created else None
