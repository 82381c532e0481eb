"""Make a precompiled header, in a separate process that nothing waits for.

The process has low priority, a time limit and no output; if it fails, builds go on without the header. Each user has at
most one such process at work on a machine.
"""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitload.building.files_read import read_depfile
from jitload.building.machine_load import only_one
from jitload.cache.key import CacheKey
from jitload.cache.store import Work, claim_entry
from jitload.host_cpp.precompiled import FACTS, HEADER, can_afford, refuse
from jitload.settings import read_settings

_CPU_S = 120  # thirty times the usual
_WALL_S = 900
_WAIT_S = 60.0  # for another such process
_MAX_HEADERS = 4  # in a cache, 70 MB each: one for each set of options


def precompile(job: Mapping[str, Any]) -> None:
    """Make the precompiled header of a job, unless another process makes it or is busy for too long."""
    signal.signal(signal.SIGTERM, _end)
    signal.alarm(_WALL_S)
    signal.signal(signal.SIGALRM, _end)
    parts = tuple((label, tuple(value) if isinstance(value, list) else value) for label, value in job["parts"])
    key = CacheKey.of(job["name"], parts)
    cache_dir = Path(job["cache_dir"])
    with only_one(_WAIT_S) as is_ours:
        if not is_ours or not can_afford(cache_dir):
            return
        with claim_entry(cache_dir, key, read_settings()) as work:
            if work.entry or work.cache_dir != cache_dir:
                return
            headers, problem = make_header(job["command"], job["includes"], work.dir)
            if problem:
                refuse(key, cache_dir, problem)
                return
            _publish(work, headers)
    _keep_few(cache_dir, key.name)


def _end(*_: object) -> None:
    raise SystemExit(1)


def make_header(command: Sequence[str], includes: Sequence[str], work_dir: Path) -> tuple[tuple[Path, ...], str]:
    """Write a header and precompile it; return the headers that were read, and the problem if it cannot be used.

    Args:
        command: The compiler and its options.
        includes: The headers in it.
        work_dir: The directory to write to.
    """
    (work_dir / HEADER).write_text("".join(f"#include <{name}>\n" for name in includes))
    (work_dir / "empty.cc").write_text("")
    making = [*command, "-MD", "-MF", "depfile", "-x", "c++-header", HEADER, "-o", f"{HEADER}.gch"]
    # The user's options decide whether this warning is an error; the check below notices both.
    using = [*command, "-Winvalid-pch", "-include", f"./{HEADER}", "-fsyntax-only", "empty.cc"]
    for step in (making, using):
        done = subprocess.run(
            step, cwd=work_dir, capture_output=True, text=True, errors="replace", preexec_fn=_limit, check=False
        )
        if done.returncode != 0 or ".gch" in done.stderr:
            return (), f"{' '.join(step)}\n{done.stderr}"
    names = read_depfile((work_dir / "depfile").read_text(errors="surrogateescape"))
    return tuple(sorted({path for path in names if path.is_absolute()})), ""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def _publish(work: Work, headers: tuple[Path, ...]) -> None:
    made = work.dir / f"{HEADER}.gch"
    # The names below an `include` directory: a user's directory that has one of them may come first.
    names = {part for path in headers for part in str(path).rpartition("/include/")[2].split("/") if part}
    facts = {
        "size": made.stat().st_size,
        "sha256": hashlib.sha256(made.read_bytes()).hexdigest(),
        "names": sorted(names),
    }
    (work.dir / FACTS).write_text(json.dumps(facts))
    work.publish(FACTS, headers)


def _keep_few(cache_dir: Path, name: str) -> None:
    """Remove the oldest precompiled headers, which belong to other options or former releases."""
    made = sorted(cache_dir.glob(f"{name}-*/*/{FACTS}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in made[_MAX_HEADERS:]:
        shutil.rmtree(path.parent, ignore_errors=True)
