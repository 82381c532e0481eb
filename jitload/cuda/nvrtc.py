"""Runs NVRTC, in this process or in a child process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from jitload.building.stages import stage
from jitload.cuda.job import NvrtcJob, NvrtcResult
from jitload.cuda.messages import parse_diagnostics
from jitload.cuda.program import compile_in_process, load_nvrtc, slow, wait_for_compile

_LONGEST_WAIT_S = 60.0  # for the first job; there may be none, because of an error
_log = logging.getLogger(__name__)


def run_nvrtc(library_path: Path, job: NvrtcJob) -> NvrtcResult:
    """Run NVRTC once, in this process or in a child process.

    Raises:
        CompileError: NVRTC rejected the source, an option or a name expression; `.log` has its messages.
        ToolchainError: The library cannot be used, or it does not know the architecture.
    """
    _log.info("the options of NVRTC for %s: %s", job.name, " ".join(job.options))
    job = job.with_declarations()
    if job.is_isolated or job.directives in slow:
        from jitload.cuda.isolated import run_isolated

        with stage(f"NVRTC compiles {job.name} in a child process"):
            return run_isolated(library_path, job)
    try:
        return compile_in_process(library_path, job)
    finally:
        if job.directives in slow:  # also after an error in the source, which will be compiled again
            from jitload.cuda.isolated import compile_later

            compile_later(library_path, job)


def prepare_nvrtc(library_path: Path, *, is_isolated: bool) -> None:
    """Load NVRTC before the first job is ready, and wait for this job. Only background threads call this function.

    What the caller imports next would otherwise take the interpreter from the thread that prepares the job.

    If `is_isolated` is true, start a child process for the job, and do not load NVRTC here.
    """
    if is_isolated:
        from jitload.cuda.isolated import prepare_child

        prepare_child()
    else:
        load_nvrtc(library_path)
        wait_for_compile(_LONGEST_WAIT_S)


def log_warnings(log: str, include_dirs: Sequence[Path]) -> None:
    """Log the messages of a successful compile.

    The level is INFO if all messages are about files in `include_dirs`, and otherwise WARNING.
    """
    if log.strip():
        diagnostics = parse_diagnostics(log)
        is_in_headers = all(any(Path(d.file).is_relative_to(root) for root in include_dirs) for d in diagnostics)
        _log.log(logging.INFO if diagnostics and is_in_headers else logging.WARNING, "%s", log.rstrip())
