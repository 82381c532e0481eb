"""The workers of `prebuild`: those that die, Ctrl-C, a process pool, and clusters of Dask, Ray and MPI."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from builds import python_command, python_env, work_dirs
from test_prebuild import request, states

import jitload
from jitload.errors import CompileError

# Kills the nearest Python above it: the worker that builds a module called "victim".
_KILLER = """#!/bin/sh
victim() {{ [ -e source0.cu ] && grep -q victim source0.cu && [ "$(wc -l < "{log}")" -lt {times} ]; }}
case "$*" in *wrapper.cc*) if victim; then
  echo x >> "{log}"
  parent=$PPID
  while case "$(cat /proc/$parent/comm)" in python*|pt_main*|Dask*|dask*|ray*) false;; *) true;; esac; do
    parent=$(sed 's/.*) . \\([0-9]*\\) .*/\\1/' /proc/$parent/stat)
  done
  kill -9 $parent
fi;; esac
exec {real} "$@"
"""


@pytest.fixture
def killer(tmp_path, monkeypatch):
    """Put a compiler in place that kills workers, as often as is said; return the file that counts."""

    def install(times: int) -> Path:
        script, log = tmp_path / "c++-that-kills", tmp_path / "killed"
        log.touch()
        script.write_text(_KILLER.format(log=log, times=times, real=shutil.which("c++")))
        script.chmod(0o755)
        monkeypatch.setenv("JITLOAD_CXX", str(script))
        return log

    return install


def put_compiler(tmp_path: Path, monkeypatch, script: str) -> None:
    """Let a shell script stand before the C++ compiler; what it does not end goes on to the compiler."""
    compiler = tmp_path / "other-c++"
    compiler.write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("c++")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("JITLOAD_CXX", str(compiler))


def test_a_compile_that_fails_costs_itself_and_its_words_are_kept(cache, tmp_path, monkeypatch):
    script = "grep -qs 'void victim' source0.cu && echo wrapper.cc:7:1: error: no >&2 && exit 1"
    put_compiler(tmp_path, monkeypatch, script)
    done = jitload.prebuild([request(name) for name in ("a", "victim", "b")], progress=False, jobs=1)
    assert states(done) == ["built", "failed", "built"]
    with pytest.raises(CompileError) as caught:
        jitload.build_inline(**request("victim"))
    assert done.failed[0].error == str(caught.value).splitlines()[0]
    assert "wrapper.cc:7: no" in done.failed[0].error
    assert len(work_dirs(cache)) == 2  # the failures, kept for a look
    assert all(name.startswith("victim-") for name in work_dirs(cache))


class Unreadable:
    """What can be sent, and not be made anew where it arrives."""

    def __reduce__(self):
        return int, ("none",)


def test_a_request_that_cannot_be_read_where_it_arrives_costs_itself(cache, capfd):
    requests = [request(f"k{number}") for number in range(4)]
    for number in (0, 3):
        requests[number]["functions"] = Unreadable()
    done = jitload.prebuild(requests, progress=False, jobs=1)
    assert states(done) == ["failed", "built", "built", "failed"]
    problem = "the request cannot be read in another process: ValueError: invalid literal for int()"
    assert all(outcome.error.startswith(problem) for outcome in done.failed)
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_dies_once_costs_a_retry(cache, killer):
    log = killer(1)
    done = jitload.prebuild([request("one"), request("victim"), request("two")], progress=False, jobs=2)
    assert states(done) == ["built"] * 3
    assert log.read_text() == "x\n"


def test_a_request_that_kills_its_workers_is_the_only_one_that_fails(cache, killer):
    log = killer(99)
    names = ["one", "victim", "two", "three", "four"]
    done = jitload.prebuild(map(request, names), progress=False, jobs=2)
    assert states(done) == ["built", "failed", "built", "built", "built"]
    assert done.failed[0].error == "3 workers died while they built the request; the last one was ended by SIGKILL"
    assert log.read_text() == "x\n" * 3


@pytest.mark.parametrize("program", ["/nowhere/python", ""])
def test_a_worker_that_cannot_be_started_is_an_error_of_its_request(cache, monkeypatch, program):
    monkeypatch.setattr(sys, "executable", program)
    done = jitload.prebuild([request("one"), request("two")], progress=False, jobs=2)
    assert states(done) == ["failed"] * 2
    assert all(outcome.error.startswith("a worker cannot be started: ") for outcome in done.outcomes)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_leaves_no_process(cache, tmp_path, monkeypatch, sign):
    put_compiler(tmp_path, monkeypatch, 'case "$*" in *wrapper.cc*) sleep 3;; esac')
    code = "import builds, jitload; from test_prebuild import request\n"
    code += "jitload.prebuild([request(f'f{i}') for i in range(6)], jobs=2, progress=False)"
    process = subprocess.Popen(python_command(code), env=python_env(), stderr=subprocess.PIPE, text=True)
    started = time.monotonic()
    while len(_started_builds(cache)) < 2 and time.monotonic() < started + 30:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(sign)
    said = process.communicate(timeout=30)[1]
    if sign == signal.SIGINT:
        assert "prebuild() was interrupted with 6 requests left: 0 built, 0 reused, 0 failed" in said
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert work_dirs(cache) == []
    deadline = time.monotonic() + 15  # what a dead parent's workers still do, they finish
    while (left := _processes_of(cache)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert len(list(cache.glob("f*-*/*/manifest.json"))) <= 2


def _started_builds(cache: Path) -> list[Path]:
    return list(cache.glob(".work/f*/wrapper.cc"))


def _processes_of(cache: Path) -> list[str]:
    """Return the commands of living processes of that cache."""
    variable = f"JITLOAD_CACHE_DIR={cache}".encode()
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and variable in (process / "environ").read_bytes().split(b"\0"):
                commands.append((process / "cmdline").read_text())
        except OSError:
            continue
    return commands


def test_a_process_pool_whose_worker_dies_loses_no_request(cache, killer):
    log = killer(1)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        done = jitload.prebuild([request("before"), request("victim"), request("after")], executor, progress=False)
    assert log.read_text() == "x\n"
    assert [outcome.state == "failed" for outcome in done.outcomes] == [False] * 3, str(done)


# The executor of each kind, which a program makes and closes in a `with` statement.
EXECUTORS = {
    "distributed": """
from distributed import Client, LocalCluster

@contextlib.contextmanager
def make_executor():
    options = dict(n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=sys.argv[1])
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client.get_executor()
""",
    "ray": """
import ray

class RayExecutor(Executor):
    def submit(self, function, /, *args, **kwargs):
        return ray.remote(function).remote(*args, **kwargs).future()

@contextlib.contextmanager
def make_executor():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield RayExecutor()
    ray.shutdown()
""",
    "mpi4py": "from mpi4py.futures import MPIPoolExecutor as make_executor",
}
PROGRAM = """
import contextlib, json, sys
from concurrent.futures import Executor

import jitload
from test_prebuild import request
{executor}
if __name__ == "__main__":
    requests = [request(name) for name in ("one", "two", "victim")] + [request("bad", cuda_sources="__global__ !")]
    with make_executor() as executor:
        done = jitload.prebuild(requests, executor, progress=False)
        again = jitload.prebuild(requests, executor, progress=False)
    print(json.dumps([[[o.state, o.error] for o in each.outcomes] for each in (done, again)]))
"""


def run(kind: str, tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip(kind, reason=f"no {kind}: its executor is not tested")
    (tmp_path / "program.py").write_text(PROGRAM.format(executor=EXECUTORS[kind]))
    words = [*(command or [sys.executable]), str(tmp_path / "program.py"), str(tmp_path / "workers")]
    return subprocess.run(words, env=python_env(), capture_output=True, text=True, check=False, timeout=240)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    first, again = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[[[")))
    assert [state for state, _ in first] == ["built"] * 3 + ["failed"], done.stderr
    assert [state for state, _ in again] == ["reused"] * 3 + ["failed"]
    for rows in (first, again):
        assert rows[-1][1].startswith("NVRTC could not compile 'bad.cu' for sm_90a")


def mpiexec() -> str:
    near = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(near) if near.is_file() else shutil.which("mpiexec")
    return mpiexec or pytest.skip("no mpiexec: MPI is not tested")


@pytest.mark.parametrize("kind", ["distributed", "ray"])
def test_what_a_killed_worker_left_is_built_again(cache, killer, tmp_path, kind):
    log = killer(1)
    check(run(kind, tmp_path))
    assert log.read_text() == "x\n"


@pytest.mark.parametrize("ranks", [["-n", "3"], ["-n", "1", "-usize", "3"]], ids=["started-together", "spawned"])
def test_mpi_builds_and_reuses(cache, tmp_path, ranks):
    together = ["-m", "mpi4py.futures"] if "3" in ranks[1] else []
    check(run("mpi4py", tmp_path, mpiexec(), *ranks, sys.executable, *together))


def test_a_killed_rank_ends_the_program_of_mpi_and_the_next_one_goes_on(cache, killer, tmp_path):
    command = [mpiexec(), "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    killer(1)
    assert run("mpi4py", tmp_path, *command).returncode != 0
    done = run("mpi4py", tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert list(cache.glob("victim-*/*/manifest.json"))
