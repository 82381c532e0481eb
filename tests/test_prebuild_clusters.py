"""`prebuild` on Dask, Ray and MPI, for real: several processes, one directory, and a worker killed in the middle."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builds import python_env
from test_prebuild_workers import killer  # noqa: F401  a fixture

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
def test_what_a_killed_worker_left_is_built_again(cache, killer, tmp_path, kind):  # noqa: F811
    log = killer(1)
    check(run(kind, tmp_path))
    assert log.read_text() == "x\n"


@pytest.mark.parametrize("ranks", [["-n", "3"], ["-n", "1", "-usize", "3"]], ids=["started-together", "spawned"])
def test_mpi_builds_and_reuses(cache, tmp_path, ranks):
    together = ["-m", "mpi4py.futures"] if "3" in ranks[1] else []
    check(run("mpi4py", tmp_path, mpiexec(), *ranks, sys.executable, *together))


def test_a_killed_rank_ends_the_program_of_mpi_and_the_next_one_goes_on(cache, killer, tmp_path):  # noqa: F811
    command = [mpiexec(), "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    killer(1)
    assert run("mpi4py", tmp_path, *command).returncode != 0
    done = run("mpi4py", tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert list(cache.glob("victim-*/*/manifest.json"))
