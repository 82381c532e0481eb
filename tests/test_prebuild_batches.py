"""Builds of a worker that share a run of ninja: what comes out, the locks they hold, and what one of them can break."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import ARCH, build, kernel, python_command, python_env, start_python, work_dirs
from test_prebuild import make_cache, request, states
from test_prebuild_workers import killer  # noqa: F401  a fixture

import jitload
from jitload import host_build, prebuild_worker
from jitload.cuda.interruptible import run_interruptible
from jitload.device import kernels
from jitload.prebuild_worker import Batch, Outcome, Task

MANY = 24  # more than a worker is given one by one


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return make_cache(tmp_path, monkeypatch)


@pytest.fixture
def runs(monkeypatch) -> list[tuple[str, ...]]:
    """Return the runs of ninja, as they come."""
    seen: list[tuple[str, ...]] = []
    run = host_build.run_command

    def counted(command, work_dir):
        seen.append(tuple(command))
        return run(command, work_dir)

    monkeypatch.setattr(host_build, "run_command", counted)
    return seen


def build_together(*requests: dict) -> dict[int, Outcome]:
    """Build requests in this process as a worker does; return the outcomes by number, in the order of their coming."""
    tasks = iter([Task(number=number, request=one) for number, one in enumerate(requests)])
    outcomes: dict[int, Outcome] = {}

    def report(task: Task, outcome: Outcome) -> None:
        assert task.number not in outcomes
        outcomes[task.number] = outcome

    for first in tasks:
        Batch(report).build(first, lambda: next(tasks, None))
    assert sorted(outcomes) == list(range(len(requests)))
    return outcomes


def small(count: int) -> list[dict]:
    """Return requests for so many kernels, k0, k1 and so on."""
    return [request(f"k{number}") for number in range(count)]


@pytest.fixture
def patient(monkeypatch):
    """Let a build wait for others as long as it takes on a machine that is busy."""
    monkeypatch.setattr(prebuild_worker, "_LONGEST_S", 600.0)
    monkeypatch.setattr(prebuild_worker, "_OLD_S", 600.0)


def put_compiler(tmp_path: Path, monkeypatch, script: str) -> None:
    """Let a shell script stand before the C++ compiler; what it does not end goes on to the compiler."""
    compiler = tmp_path / "other-c++"
    compiler.write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("c++")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("JITLOAD_CXX", str(compiler))


# ---- what comes out --------------------------------------------------------------------------------------------


def test_small_builds_share_a_run_of_ninja(cache, runs, patient):
    outcomes = build_together(*small(11))
    assert [outcome.state for outcome in outcomes.values()] == ["built"] * 11
    assert len(runs) == 2  # eight, and three
    assert all("-j1" in run for run in runs)
    assert work_dirs(cache) == []


def test_an_entry_is_what_a_build_by_itself_makes(cache, tmp_path, monkeypatch, runs, patient):
    requests = [
        *small(3),
        request("expression", functions={"expression": jitload.Launch(grid="x.shape[0]", block=64)}),
        request("two", arch=("sm_80", "sm_90a")),
        {
            "name": "given",
            "functions": {"k": jitload.Launch(signature="(float* x)")},
            "embed_cubin": {"k": build(kernel("k")).with_name(f"{ARCH}.cubin")},
        },
    ]
    runs.clear()
    together = build_together(*requests)
    assert [outcome.state for outcome in together.values()] == ["built"] * len(requests), together
    assert len(runs) == 1
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "alone"))
    for number, one in enumerate(requests):
        alone, other = Path(jitload.build_inline(**one)).parent, Path(together[number].path).parent
        assert (alone.name, alone.parent.name) == (other.name, other.parent.name)
        assert _content(alone, tmp_path / "alone") == _content(other, cache)


def _content(entry: Path, cache: Path) -> dict[str, object]:
    found: dict[str, object] = {path.name: path.read_bytes() for path in entry.iterdir()}
    ninja = bytes(found["build.ninja"])  # type: ignore[arg-type]  where the runtime lies differs
    found["build.ninja"] = ninja.replace(str(cache).encode(), b"")
    manifest = json.loads(bytes(found["manifest.json"]))  # type: ignore[arg-type]
    del manifest["created"], manifest["files"]["build.ninja"]
    found["manifest.json"] = manifest
    return found


def test_a_build_that_takes_long_waits_for_nobody(cache, runs, monkeypatch):
    monkeypatch.setattr(prebuild_worker, "_LONGEST_S", 0.0)
    build_together(*small(3))
    assert len(runs) == 3


def test_one_that_nvrtc_takes_long_over_keeps_nobody_waiting(cache, runs, patient, monkeypatch):
    monkeypatch.setattr(prebuild_worker, "_OLD_S", 1.0)
    real = kernels.run_nvrtc

    def run_nvrtc(library, job):
        if job.name == "slow.cu":
            return run_interruptible(lambda _: (time.sleep(2.0), real(library, job))[1])
        return real(library, job)

    monkeypatch.setattr(kernels, "run_nvrtc", run_nvrtc)
    outcomes = build_together(request("a"), request("b"), request("slow"), request("c"))
    assert list(outcomes) == [0, 1, 2, 3]
    assert [outcome.state for outcome in outcomes.values()] == ["built"] * 4
    assert [outcomes[number].seconds < 2 for number in range(4)] == [True, True, False, True]
    assert len(runs) in (2, 3)  # slow and c share one, unless NVRTC takes long over c, too


def test_what_is_in_the_cache_is_told_at_once(cache, runs, patient):
    build(kernel("old"), name="old")
    outcomes = build_together(request("old"), request("fresh"), request("old"), request("later"))
    assert list(outcomes) == [0, 2, 1, 3]
    assert [outcomes[number].state for number in range(4)] == ["reused", "built", "reused", "built"]
    assert len(runs) == 2  # build() above, and the two


def test_what_is_logged_is_built_by_itself(cache, runs, patient, caplog):
    caplog.set_level("INFO", logger="jitload")
    build_together(request("a"), request("b", verbose=True), request("c"))
    assert [run[1] for run in runs] == ["--quiet", "-v", "--quiet"]
    assert "wrapper.cc" in caplog.text


def test_a_directory_of_any_name(tmp_path, monkeypatch, runs, patient):
    """The text of the shared build.ninja has the whole path, which a shell reads."""
    make_cache(tmp_path, monkeypatch)
    odd = tmp_path / "a b'$(touch x)$HOME#&; é"
    shutil.move(tmp_path / "cache", odd)
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(odd))
    assert {outcome.state for outcome in build_together(*small(3)).values()} == {"built"}
    assert len(runs) == 1


def test_a_directory_that_ninja_cannot_read(tmp_path, monkeypatch, runs, patient):
    odd = tmp_path / "a|b"
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(odd))
    outcomes = build_together(*small(2))
    assert all(outcome.error.startswith("ninja cannot read a path with '|'") for outcome in outcomes.values())


# ---- locks -----------------------------------------------------------------------------------------------------


def test_equal_requests_are_one_build(cache, runs, patient):
    outcomes = build_together(*[request("same")] * 5, request("other"), request("same"))
    assert [outcomes[number].state for number in range(7)] == ["built", *["reused"] * 4, "built", "reused"]
    assert len(runs) == 2


_HALF = """
import sys, jitload
from jitload import prebuild_worker
from test_prebuild import request
prebuild_worker._LONGEST_S = prebuild_worker._OLD_S = 600.0
from test_prebuild_batches import build_together
requests = [request(f"k{{i}}") for i in range({count})][::{step}]
done = build_together(*requests).values()
print(sum(one.state == "built" for one in done), sum(one.state == "reused" for one in done))
"""


def test_two_that_want_the_same_in_opposite_order_do_not_wait_for_each_other(cache):
    programs = [start_python(_HALF.format(count=16, step=step)) for step in (1, -1)]
    counts = [tuple(map(int, program.communicate(timeout=120)[0].split())) for program in programs]
    assert [program.returncode for program in programs] == [0, 0]
    assert [sum(count) for count in counts] == [16, 16]
    assert sum(built for built, _ in counts) == 16
    assert len(list(cache.glob("k*-*/*/manifest.json"))) == 16


def test_what_somebody_else_builds_is_waited_for_with_empty_hands(cache, tmp_path, monkeypatch, patient):
    """While one process builds `slow`, another that has begun others publishes them before it waits."""
    put_compiler(tmp_path, monkeypatch, "grep -qs 'void slow' source0.cu && sleep 4")
    code = "import jitload; from test_prebuild import request; print(jitload.build_inline(**request('slow')))"
    other = start_python(code)
    _await(lambda: list(cache.glob(".work/slow-*/wrapper.cc")))
    started = time.monotonic()
    outcomes = build_together(request("a"), request("b"), request("slow"), request("c"))
    assert list(outcomes) == [0, 1, 2, 3]
    assert [outcomes[number].state for number in range(4)] == ["built", "built", "reused", "built"]
    ready = max(Path(outcomes[number].path).stat().st_ctime for number in (0, 1))
    assert ready < Path(outcomes[2].path).stat().st_ctime
    assert time.monotonic() - started < 60
    assert other.communicate(timeout=30)[0].strip() == outcomes[2].path


def _await(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- what one of them can break --------------------------------------------------------------------------------


def test_source_that_is_wrong_costs_itself(cache, runs, patient):
    bad = request("bad", cuda_sources='extern "C" __global__ void f() { nonsense; }')
    outcomes = build_together(request("a"), bad, request("b"))
    assert list(outcomes) == [1, 0, 2]
    assert outcomes[1].error.startswith("NVRTC could not compile 'bad.cu' for sm_90a: bad.cu:1: ")
    assert [outcomes[number].state for number in (0, 2)] == ["built", "built"]
    assert len(runs) == 1


def test_a_compile_that_fails_costs_itself_and_its_words_are_kept(cache, tmp_path, monkeypatch, patient):
    put_compiler(
        tmp_path, monkeypatch, "grep -qs 'void victim' source0.cu && echo wrapper.cc:7:1: error: no >&2 && exit 1"
    )
    outcomes = build_together(request("a"), request("victim"), request("b"))
    assert [outcomes[number].state for number in range(3)] == ["built", "failed", "built"]
    alone = build_together(request("victim"))[0]
    assert outcomes[1].error == alone.error
    assert "wrapper.cc:7: no" in alone.error
    assert len(work_dirs(cache)) == 2  # the failures, kept for a look
    assert all(name.startswith("victim-") for name in work_dirs(cache))


def test_a_worker_that_dies_of_one_costs_that_one_alone(cache, killer):  # noqa: F811  the fixture
    log = killer(99)
    requests = small(MANY)
    requests[5] = request("victim")
    done = jitload.prebuild(requests, progress=False, jobs=1)
    assert [outcome.name for outcome in done.failed] == ["victim"]
    assert done.failed[0].error == "the worker was ended by SIGKILL, 3 times"
    assert log.read_text() == "x\n" * 3
    assert len(list(cache.glob("k*-*/*/manifest.json"))) == MANY - 1


def test_workers_ask_for_more_and_all_are_built_once(cache):
    done = jitload.prebuild(small(MANY), progress=False, jobs=2)
    assert states(done) == ["built"] * MANY
    assert states(jitload.prebuild(small(MANY), progress=False, jobs=2)) == ["reused"] * MANY
    assert all(outcome.seconds > 0 for outcome in done.outcomes)


def test_each_gets_a_run_of_its_own_where_the_shared_file_has_no_room(cache, runs, monkeypatch, patient):
    real = Path.write_bytes

    def write_bytes(path, *words, **more):
        if path.name == ".ninja_together":
            raise OSError(28, "No space left on device", str(path))
        return real(path, *words, **more)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    assert {outcome.state for outcome in build_together(*small(3)).values()} == {"built"}
    assert len(runs) == 3


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_the_middle_of_a_batch_leaves_nothing(cache, tmp_path, monkeypatch, sign):
    put_compiler(tmp_path, monkeypatch, 'case "$*" in *wrapper.cc*) sleep 5;; esac')
    code = "import builds, jitload, signal; from test_prebuild_batches import small\n"
    code += "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
    code += f"jitload.prebuild(small({MANY}), jobs=1, progress=False)"
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    process = subprocess.Popen(python_command(code), env=python_env(), stderr=subprocess.PIPE, text=True)
    _await(lambda: len(list(cache.glob(".work/k*/wrapper.cc"))) >= 2 and _sleepers(cache))
    process.send_signal(sign)
    said = process.communicate(timeout=30)[1]
    assert re.search("prebuild[(][)] was interrupted with 2[34] requests left: [01] built, 0 reused, 0 failed", said)
    assert work_dirs(cache) == []
    assert _sleepers(cache) == []


def _sleepers(cache: Path) -> list[str]:
    """Return the compilers that are at work below the cache."""
    return [command for command in _commands() if str(cache) in command and "wrapper.cc" in command]


def _commands() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue


def test_the_seconds_of_a_batch_are_those_of_its_builds(cache, patient):
    started = time.monotonic()
    outcomes = build_together(*small(6))
    spent = time.monotonic() - started
    assert sum(outcome.seconds for outcome in outcomes.values()) == pytest.approx(spent, rel=0.2)
