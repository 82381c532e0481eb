"""Workers of `prebuild` keep to cores of their own while they build, where each core has a worker."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_prebuild import make_cache, request, states

import jitload
from jitload import cores

_USABLE = cores.usable_cores()
pytestmark = pytest.mark.skipif(len(_USABLE) < 2, reason="takes two cores")
_NOTES_CORES = """#!/bin/sh
case "$*" in *wrapper.cc*) sed -n 's/^Cpus_allowed_list:\\s*//p' /proc/self/status >> "{log}";; esac
exec {real} "$@"
"""


@pytest.fixture
def two_cores() -> Iterator[tuple[int, ...]]:
    """Let this thread use two cores."""
    os.sched_setaffinity(0, _USABLE[:2])
    yield _USABLE[:2]
    os.sched_setaffinity(0, _USABLE)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a compiler notes on which cores it may run."""
    make_cache(tmp_path, monkeypatch)
    script, log = tmp_path / "c++-that-notes", tmp_path / "cores"
    script.write_text(_NOTES_CORES.format(log=log, real=shutil.which("c++")))
    script.chmod(0o755)
    monkeypatch.setenv("JITLOAD_CXX", str(script))
    return log


def _build(jobs: int, count: int = 6) -> None:
    done = jitload.prebuild([request(f"f{number}") for number in range(count)], progress=False, jobs=jobs)
    assert states(done) == ["built"] * count


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_a_worker_has_a_core_of_its_own_where_each_core_has_one_worker(two_cores, log, jobs):
    _build(jobs)
    all_of_them = "-".join(map(str, two_cores)) if two_cores[1] == two_cores[0] + 1 else ",".join(map(str, two_cores))
    expected = set(map(str, two_cores)) if jobs == 2 else {all_of_them}
    found = log.read_text().split()
    assert len(found) == 6
    assert set(found) == expected


def test_few_requests_have_all_cores(two_cores, log):
    _build(2, count=1)
    assert log.read_text().strip() not in map(str, two_cores)


@pytest.fixture
def own(two_cores, monkeypatch) -> int:
    """Give this process a core of its own."""
    monkeypatch.setattr(cores, "_own", [])
    cores.have_core(two_cores[1])
    return two_cores[1]


def test_threads_that_are_started_keep_to_it_and_those_that_were_there_do_not(two_cores, own):
    found: dict[str, tuple[int, ...]] = {}
    go = threading.Event()

    def note(name: str, *, wait: bool = False) -> None:
        if wait:
            go.wait(10)
        found[name] = cores.usable_cores()

    earlier = threading.Thread(target=note, args=("earlier",), kwargs={"wait": True})
    earlier.start()
    with cores.on_own_core():
        later = threading.Thread(target=note, args=("later",))
        later.start()
        later.join()
        go.set()
        earlier.join()
    assert found == {"later": (own,), "earlier": two_cores}
    assert cores.usable_cores() == two_cores


def test_what_takes_long_gets_all_cores(two_cores, own, monkeypatch):
    monkeypatch.setattr(cores, "_LONGEST_S", 0.1)
    found: list[tuple[int, ...]] = []
    is_over = threading.Event()
    with cores.on_own_core():
        worker = threading.Thread(target=lambda: (is_over.wait(10), found.append(cores.usable_cores())))
        worker.start()
        deadline = time.monotonic() + 10
        while cores.usable_cores() != two_cores and time.monotonic() < deadline:
            time.sleep(0.01)
        assert cores.usable_cores() == two_cores
        is_over.set()
        worker.join()
    assert found == [two_cores]


def test_a_core_that_was_taken_away_costs_nothing(two_cores, monkeypatch):
    monkeypatch.setattr(cores, "_own", [1 << 14])
    with cores.on_own_core():
        assert cores.usable_cores() == two_cores
    assert cores.usable_cores() == two_cores


def test_an_error_gives_all_cores_back(two_cores, own):
    with pytest.raises(ValueError, match="x"), cores.on_own_core():
        raise ValueError("x")
    assert cores.usable_cores() == two_cores
