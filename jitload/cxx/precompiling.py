"""Makes a precompiled header, in a process of its own that nothing waits for.

It takes what the machine has to spare, an end is set to it, and it says nothing: whatever goes wrong, the builds go on
without. One at a time of a user's works on a machine.
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

from jitload.cache.entry import find_entry
from jitload.cache.key import CacheKey
from jitload.cache.store import Work, claim_entry
from jitload.cxx.apart import errors_recipe, errors_text, interface_text
from jitload.cxx.headers import read_depfile
from jitload.cxx.precompiled import FACTS, HEADER, OBJECT, can_afford, refuse
from jitload.cxx.spare import only_one
from jitload.settings import read_settings

_CPU_S = 120  # thirty times what it takes
_WALL_S = 900
_WAIT_S = 60.0  # for another one that is at work
_MOST = 4  # in a cache, one for each set of options: 70 MB each


def precompile(job: Mapping[str, Any]) -> None:
    """Make the precompiled header of a job, unless another process does, or others are at work for long."""
    signal.signal(signal.SIGTERM, _end)
    signal.alarm(_WALL_S)
    signal.signal(signal.SIGALRM, _end)
    parts = tuple((label, tuple(value) if isinstance(value, list) else value) for label, value in job["parts"])
    recipe = CacheKey.of(job["name"], parts)
    cache_dir = Path(job["cache_dir"])
    with only_one(_WAIT_S) as is_ours:
        if not is_ours or not can_afford(cache_dir):
            return
        with claim_entry(cache_dir, recipe, read_settings()) as work:
            if work.entry or work.cache_dir != cache_dir:
                return
            made = _errors_made(recipe, job["apart"], cache_dir)
            headers, problem = make_header(job["command"], job["includes"], work.dir, apart=job["apart"], made=made)
            if problem and job["apart"]:
                headers, problem = make_header(job["command"], job["includes"], work.dir)
            if problem:
                refuse(recipe, cache_dir, problem)
                return
            _publish(work, headers)
    _keep_few(cache_dir, recipe.name)


def _end(*_: object) -> None:
    raise SystemExit(1)


def _errors_made(recipe: CacheKey, apart: Sequence[str], cache_dir: Path) -> bytes:
    """Return the object that a first build has made, or nothing."""
    entry = find_entry(cache_dir, errors_recipe(recipe, apart), read_settings()) if apart else None
    return entry.product.read_bytes() if entry else b""


def make_header(
    command: Sequence[str], includes: Sequence[str], work_dir: Path, *, apart: Sequence[str] = (), made: bytes = b""
) -> tuple[tuple[Path, ...], str]:
    """Make a header and its precompiled form; return the headers read, and what stands against using it.

    Args:
        command: The compiler and its options.
        includes: What is in it.
        work_dir: Where.
        apart: The names of a header whose functions go to an object of their own.
        made: That object, where there is one.
    """
    text = "".join(f"#include <{name}>\n" for name in includes)
    texts = {
        HEADER: text,
        "interface.h": f'{interface_text(apart)}#line 1 "{HEADER}"\n{text}',
        "errors.cc": errors_text(apart) if apart else "",
        "empty.cc": "",
    }
    for name, content in texts.items():
        (work_dir / name).write_text(content)
    making = [*command, "-MD", "-MF", "depfile", "-x", "c++-header", "interface.h", "-o", f"{HEADER}.gch"]
    # An option of the user's may make this warning an error, or not: both ways it is seen.
    using = [*command, "-Winvalid-pch", "-include", f"./{HEADER}", "-fsyntax-only", "empty.cc"]
    (work_dir / OBJECT).unlink(missing_ok=True)
    if made:
        (work_dir / OBJECT).write_bytes(made)
    steps = (making, using, [*command, "-c", "errors.cc", "-o", OBJECT]) if apart and not made else (making, using)
    for step in steps:
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
    # The names below an `include` directory: a user's directory with one of them might come before.
    names = {part for path in headers for part in str(path).rpartition("/include/")[2].split("/") if part}
    beside = work.dir / OBJECT
    facts = {
        "size": made.stat().st_size,
        "sha256": hashlib.sha256(made.read_bytes()).hexdigest(),
        "object_sha256": hashlib.sha256(beside.read_bytes()).hexdigest() if beside.exists() else "",
        "names": sorted(names),
    }
    (work.dir / FACTS).write_text(json.dumps(facts))
    work.publish(FACTS, headers)


def _keep_few(cache_dir: Path, name: str) -> None:
    """Remove the ones that were made longest ago, of other options and of releases that are gone."""
    made = sorted(cache_dir.glob(f"{name}-*/*/{FACTS}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in made[_MOST:]:
        shutil.rmtree(path.parent, ignore_errors=True)
