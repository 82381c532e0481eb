"""Precompiled headers for NVRTC, with which further sources that include the same headers compile in less time.

NVRTC can use a precompiled header only in the process that has created it. Therefore, a child process (`isolated`) or a
worker of `prebuild` compiles these sources. After a slow compile, the child precompiles the headers in the background.
What is precompiled is the beginning of a source: the preprocessor directives before any other code.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from jitload.building.resources import free_memory
from jitload.cuda.job import NvrtcJob

_SLOW_S = 0.5  # processor time of a compile; the next one with the same headers precompiles them
_WORTH_S = 0.1  # headers that compile in less time are not kept
_HEAP_BYTES = 1 << 30  # NVRTC reserves as many addresses, but uses only the memory that it needs
_FREE_BYTES = 3 << 30  # with less free memory, nothing is precompiled
_MAX_KEPT = 2
_LINE = r'#line 1 "((?:[^"\\]|\\.)*)"\n'
_COMMENT = r"//(?:[^\n\\]|\\.)*|/\*.*?(?:\*/|\Z)"
_PART = rf"(?s)\s+|{_COMMENT}|\#[^\S\n]*(\w*)(?:{_COMMENT}|\"(?:\\.|[^\"\\\n])*\"?|\\.|/(?![/*])|[^\n/\\\"])*(?:\n|\Z)"
_REMARK = 'Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"\n\n'


class SplitJob(NamedTuple):
    """A job whose source begins with directives that can be precompiled.

    Attributes:
        job: The job. In its source, the `#line` that names the source comes after the directives, because NVRTC
            precompiles nothing after a `#line`.
        directives: The beginning of the source.
        label: The file name of the source in messages.
    """

    job: NvrtcJob
    directives: str
    label: str

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that the precompiled header depends on. NVRTC itself does not notice that a header has changed."""
        job = self.job
        return (self.directives, job.options, job.headers, job.directory, job.name, job.header_state)


def split_job(job: NvrtcJob) -> SplitJob | None:
    """Split the directives off the source of a job. Return None if they include nothing."""
    line = re.match(_LINE, job.source)
    directives = leading_directives(job.source[line.end() :]) if line and job.header_state else ""
    if not line or not directives:
        return None
    rest = job.source[line.end() + len(directives) :]
    number = directives.count("\n") + 1
    source = f'{directives}#pragma nv_hdrstop\n#line {number} "{line[1]}"\n{rest}'
    return SplitJob(job._replace(source=source), directives, line[1])


def headers_alone(job: NvrtcJob) -> NvrtcJob:
    """Return a job that has the directives of `job`, which `split_job` can split, and no code of its own."""
    split = split_job(job)
    assert split
    return job._replace(source=f'#line 1 "{split.label}"\n{split.directives}', expressions=())


def leading_directives(text: str) -> str:
    """Return the text up to the last `#include` before any code, or "" if there is none.

    The result has whole conditionals and no `#line`.
    """
    position, end, depth, has_include = 0, 0, 0, False
    pattern = re.compile(_PART)
    while (part := pattern.match(text, position)) and part[1] != "line":
        position, name = part.end(), part[1] or ""
        depth += name.startswith("if") - (name == "endif")
        has_include = has_include or name == "include"
        if has_include and depth == 0 and part[0].endswith("\n"):
            end, has_include = position, False
    return text[:end]


# ---- slow headers --------------------------------------------------------------------------------------------------

_slow: set[int] = set()


def remember_if_slow(job: NvrtcJob, seconds: float) -> None:
    """Remember the headers of a job that has taken this much processor time."""
    if seconds > _SLOW_S and (split := split_job(job)):
        _slow.add(hash(split.key))


def are_headers_slow(job: NvrtcJob) -> bool:
    """Return whether this process has already compiled a slow job with the same headers."""
    return bool(_slow) and (split := split_job(job)) is not None and hash(split.key) in _slow


# ---- precompiled headers -------------------------------------------------------------------------------------------


class PrecompiledHeader(NamedTuple):
    """A precompiled header: the descriptor of its file, which has no name any more, and NVRTC's messages about it."""

    descriptor: int
    messages: str

    def use(self, job: NvrtcJob) -> NvrtcJob:
        """Return a job that uses this header."""
        return job._replace(
            options=(*job.options, f"--use-pch=/proc/self/fd/{self.descriptor}", "--pch-messages=false")
        )

    def merge_messages(self, log: str) -> str:
        """Return the messages of a compile without a precompiled header. `log` are those of a compile with it."""
        return self.messages + (log.replace(_REMARK, "", 1) if _REMARK in self.messages else log)


_kept: dict[tuple[object, ...], PrecompiledHeader] = {}
_useless: set[int] = set()  # the hashes of the keys of headers that cannot be precompiled, or need not be
_lock = threading.Lock()


def find_precompiled(nvrtc: Any, split: SplitJob, create: Callable[[NvrtcJob], str | None]) -> PrecompiledHeader | None:
    """Return the precompiled header for a job, creating it if this process has none.

    `create` runs NVRTC, and returns its messages, or None if it has created no precompiled header.
    """
    key = (nvrtc.nvrtcVersion(), *split.key)
    with _lock:
        if key in _kept or hash(key) in _useless:
            return _kept.get(key)
        if created := _precompile(nvrtc, split, create):
            _kept[key] = created
        else:
            _useless.add(hash(key))
        if len(_kept) > _MAX_KEPT:
            os.close(_kept.pop(next(iter(_kept))).descriptor)
        return created


def _precompile(nvrtc: Any, split: SplitJob, create: Callable[[NvrtcJob], str | None]) -> PrecompiledHeader | None:
    if free_memory() < _FREE_BYTES or not _reserve_heap(nvrtc):
        return None
    with _temporary_directory() as directory:
        path = os.path.join(directory, "headers.pch")
        options = (*split.job.options, f"--create-pch={path}", "--pch-messages=false")
        source = f"{split.directives}#pragma nv_hdrstop\n"
        start = time.thread_time()
        messages = create(split.job._replace(source=source, options=options, expressions=()))
        if messages is None or time.thread_time() - start < _WORTH_S:
            return None
        name = os.path.join(split.job.directory, split.job.name.lstrip("/"))
        return PrecompiledHeader(os.open(path, os.O_RDONLY), messages.replace(f"{name}(", f"{split.label}("))


_unfinished: set[tempfile.TemporaryDirectory[str]] = set()


@contextmanager
def _temporary_directory() -> Iterator[str]:
    directory = tempfile.TemporaryDirectory(prefix="jitload-")
    _unfinished.add(directory)
    try:
        with directory:
            yield directory.name
    finally:
        _unfinished.discard(directory)


def remove_unfinished() -> None:
    """Remove the files of precompiled headers that are being created, before this process ends itself."""
    for directory in tuple(_unfinished):
        with suppress(OSError):
            directory.cleanup()


def _reserve_heap(nvrtc: Any) -> bool:
    """Make NVRTC's memory for precompiled headers large enough. Return False if this NVRTC cannot precompile headers.

    A change of the size makes earlier precompiled headers unusable.
    """
    try:
        status, size = nvrtc.nvrtcGetPCHHeapSize()
        return bool(status == 0 and (size >= _HEAP_BYTES or nvrtc.nvrtcSetPCHHeapSize(_HEAP_BYTES) == (0,)))
    except RuntimeError:  # raised by NVRTC before 12.8, which does not have the functions
        return False
