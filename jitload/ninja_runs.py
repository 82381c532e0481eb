"""Builds that stop where their commands are to run, so that one run of ninja can do for several of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jitload.cores import on_own_core
from jitload.errors import JitLoadError, ToolchainError

if TYPE_CHECKING:
    from jitload.host_build import Step

_TOGETHER = ".ninja_together"  # goes with ninja's own files when the first of the builds is published
_log = logging.getLogger(__name__)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class NinjaRun:
    """What a build waits for.

    Attributes:
        ninja: The program.
        dir: Where the commands run; `build.ninja` is there.
        steps: What it says.
        name: The module's name.
        is_verbose: Log what the compilers print.
    """

    ninja: Path
    dir: Path
    steps: tuple[Step, ...]
    name: str
    is_verbose: bool


# A build as a generator: it yields each run of ninja that it needs, gets an exception where that failed, and returns
# what it made.
Building = Generator[NinjaRun, None, Made]


def run_alone(building: Building[Made]) -> Made:
    """Carry a build to its end, and return what it made."""
    with closing(building):
        error: Exception | None = None
        while True:
            try:
                run = next(building) if error is None else building.throw(error)
            except StopIteration as end:
                made: Made = end.value
                return made
            error = _run_one(run)


def run_together(runs: Sequence[NinjaRun]) -> tuple[Exception | None, ...]:
    """Run the commands of several builds, by one ninja; return what went wrong with each.

    If anything does, each gets a run of its own, which says what and of which.
    """
    if len(runs) > 1 and not any(run.is_verbose for run in runs) and _run_as_one(runs):
        return (None,) * len(runs)
    return tuple(map(_run_one, runs))


def _run_one(run: NinjaRun) -> Exception | None:
    from jitload.host_build import run_ninja

    try:
        with on_own_core():
            run_ninja(run.ninja, run.dir, name=run.name, verbose=run.is_verbose)
    except Exception as error:  # noqa: BLE001  raised in the build, at the place where it waits
        return error
    if not _has_product(run):
        made = run.steps[-1]
        problem = f"module {run.name!r}: its commands ended well, and {made.output} was not made"
        return ToolchainError(f"{problem}. Is it a compiler? {made.command[0]}")
    return None


def _has_product(run: NinjaRun) -> bool:
    return (run.dir / run.steps[-1].output).is_file()


def _run_as_one(runs: Sequence[NinjaRun]) -> bool:
    """Run all commands one after another; tell whether all went well."""
    from jitload.host_build import run_command, together_text

    first = runs[0]
    try:
        text = together_text([(run.dir, run.steps) for run in runs])
        (first.dir / _TOGETHER).write_bytes(os.fsencode(text))
        with on_own_core():
            status, output = run_command((str(first.ninja), "--quiet", "-j1", "-f", _TOGETHER), first.dir)
    except (JitLoadError, OSError):
        return False
    if output.strip():
        _log.debug("%s", output.rstrip())
    return status == 0 and all(map(_has_product, runs))
