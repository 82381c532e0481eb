"""`prebuild` on Ray and on MPI, for real: several processes, one directory, and a worker killed in the middle."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builds import python_env
from test_prebuild_workers import killer  # noqa: F401  a fixture

_RAY = """
import json
from concurrent.futures import Executor

import jitload
import ray
from test_prebuild import request


class RayExecutor(Executor):
    def submit(self, function, /, *args, **kwargs):
        return ray.remote(function).remote(*args, **kwargs).future()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    requests = [request(name) for name in ("one", "two", "victim")] + [request("bad", cuda_sources="__global__ !")]
    done = jitload.prebuild(requests, RayExecutor(), progress=False)
    again = jitload.prebuild(requests, RayExecutor(), progress=False)
    print(json.dumps([[[o.state, o.error] for o in each.outcomes] for each in (done, again)]))
    ray.shutdown()
"""
_MPI = """
import json

import jitload
from mpi4py.futures import MPIPoolExecutor
from test_prebuild import request

if __name__ == "__main__":
    requests = [request(name) for name in ("one", "two", "victim")] + [request("bad", cuda_sources="__global__ !")]
    with MPIPoolExecutor() as executor:
        done = jitload.prebuild(requests, executor, progress=False)
        again = jitload.prebuild(requests, executor, progress=False)
    print(json.dumps([[[o.state, o.error] for o in each.outcomes] for each in (done, again)]))
"""


def run(command: list[str], tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(text)
    words = [*command, str(tmp_path / "program.py")]
    return subprocess.run(words, env=python_env(), capture_output=True, text=True, check=False, timeout=240)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    first, again = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[[[")))
    assert [state for state, _ in first] == ["built"] * 3 + ["failed"], done.stderr
    assert [state for state, _ in again] == ["reused"] * 3 + ["failed"]
    for rows in (first, again):
        assert rows[-1][1].startswith("NVRTC could not compile 'bad.cu' for sm_90a")


def mpiexec() -> str:
    pytest.importorskip("mpi4py", reason="no mpi4py: MPI is not tested")
    near = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(near) if near.is_file() else shutil.which("mpiexec")
    return mpiexec or pytest.skip("no mpiexec: MPI is not tested")


def test_ray_builds_again_what_a_killed_worker_left(cache, killer, tmp_path):  # noqa: F811
    pytest.importorskip("ray", reason="no ray: a cluster of Ray's is not tested")
    log = killer(1)
    check(run([sys.executable], tmp_path, _RAY))
    assert log.read_text() == "x\n"


@pytest.mark.parametrize("ranks", [["-n", "3"], ["-n", "1", "-usize", "3"]], ids=["started-together", "spawned"])
def test_mpi_builds_and_reuses(cache, tmp_path, ranks):
    together = ["-m", "mpi4py.futures"] if "3" in ranks[1] else []
    check(run([mpiexec(), *ranks, sys.executable, *together], tmp_path, _MPI))


def test_a_killed_rank_ends_the_program_of_mpi_and_the_next_one_goes_on(cache, killer, tmp_path):  # noqa: F811
    command = [mpiexec(), "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    killer(1)
    assert run(command, tmp_path, _MPI).returncode != 0
    done = run(command, tmp_path, _MPI)
    assert done.returncode == 0, done.stderr
    assert list(cache.glob("victim-*/*/manifest.json"))
