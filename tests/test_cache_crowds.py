"""Crowds: many threads and processes that want one new key, builders killed at random, random acts on a cache."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import ROOT, build, kernel, python_command, python_env, run_python, work_dirs
from cheap import get, make_key
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import jitload
from jitload.cache.listing import check_leaf, list_entries
from jitload.cache.locks import host_tag
from jitload.cache.prune import prune
from jitload.cache.store import sweep_work_dirs


@pytest.fixture
def counted(tmp_path, monkeypatch) -> Path:
    """A file in which each run of NVRTC and of ninja, in any process, leaves a line."""
    log = tmp_path / "runs"
    log.touch()
    monkeypatch.setenv("JITLOAD_TEST_RUNS", str(log))
    return log


# Counts what is run, by the functions that run it, in each process of the crowd.
COUNTING = """
import os, sys
import jitload, jitload.kernels.compilation, jitload.cuda.nvrtc, jitload.building.ninja
def count(module, name):
    real = getattr(module, name)
    def counting(*given, **options):
        with open(os.environ["JITLOAD_TEST_RUNS"], "a") as log:
            log.write(name + "\\n")
        return real(*given, **options)
    setattr(module, name, counting)
count(jitload.kernels.compilation, "run_nvrtc")
count(jitload.building.ninja, "run_ninja")
"""
PROCESS = f"""{COUNTING}
import builds
print("ready", flush=True)
sys.stdin.readline()
print(builds.build(builds.ADD), flush=True)
"""
THREADS = f"""{COUNTING}
import builds, threading
paths = []
start = threading.Barrier(int(sys.argv[1]))
def one():
    start.wait()
    paths.append(builds.build(builds.ADD))
threads = [threading.Thread(target=one) for _ in range(int(sys.argv[1]))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(paths), len(set(paths)))
"""


def runs(log: Path) -> dict[str, int]:
    lines = log.read_text().split()
    return {name: lines.count(name) for name in sorted(set(lines))}


@pytest.mark.parametrize("count", [4, pytest.param(64, marks=pytest.mark.soak)])
def test_processes_that_want_one_new_key_build_it_once(cache, counted, count):
    build(kernel("first"))  # what all libraries share
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    crowd = [subprocess.Popen(python_command(PROCESS), env=python_env(), **pipes) for _ in range(count)]
    for process in crowd:
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        process.stdin.write("\n")
        process.stdin.flush()
    (path,) = {process.communicate()[0].strip() for process in crowd}
    assert list(jitload.load_module(path)) == ["add"]
    assert runs(counted) == {"run_ninja": 1, "run_nvrtc": 1}
    assert work_dirs(cache) == []


def test_64_threads_that_want_one_new_key_build_it_once(cache, counted):
    done = run_python(THREADS, arguments=[64])
    assert done.stdout == "64 1\n", done.stderr
    assert runs(counted) == {"run_ninja": 1, "run_nvrtc": 1}


VICTIM = f"""
import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import pathlib, os, cheap
cache = pathlib.Path(sys.argv[1])
def make(work):
    for number in range(20):
        (work.dir / f"part{{number}}").write_bytes(os.urandom(20000))
cheap.get(cache.with_name("warm"), cheap.make_key("warm", sys.argv[2]), make)  # imports what builds need
print("ready", flush=True)
number = 0
while True:
    cheap.get(cache, cheap.make_key(f"m{{number % 7}}", sys.argv[2], str(number)), make)
    number += 1
"""


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.soak)])
def test_builders_killed_at_random_points_leave_whole_entries(cache, kills):
    chance = random.Random(1)  # the moments are the machine's anyway
    for round_ in range(kills):
        command = [sys.executable, "-c", VICTIM, str(cache), str(round_)]
        with subprocess.Popen(command, env=python_env(), stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(chance.uniform(0, 0.03))
            deadline = time.monotonic() + 20
            while round_ == kills - 1 and not list(list_entries(cache)) and time.monotonic() < deadline:
                time.sleep(0.01)  # on a busy machine, no builder may have finished so far
            process.send_signal(signal.SIGKILL)
    entries = list(list_entries(cache))
    assert entries
    for entry in entries:
        check_leaf(entry.dir)
    get(cache, make_key("after"))
    assert work_dirs(cache) == []
    assert not list(cache.rglob("*.bad"))


NUMBERS = strategies.integers(0, 3)


class CacheMachine(RuleBasedStateMachine):
    """A cache whose entries are made from a header, against what a caller may expect: always today's header's text."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="jitload-machine-"))
        self.cache = self.root / "cache"
        self.headers = [self.root / f"h{number}.h" for number in range(4)]
        self.mapped: dict[str, bytes] = {}  # what this process may have loaded under a path

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def entries(self) -> Iterator[Path]:
        return (path.parent for path in sorted(self.cache.glob("m*-*/*/manifest.json")) if path.parent.suffix != ".bad")

    @rule(number=NUMBERS)
    def ask(self, number: int) -> None:
        header = self.headers[number]
        entry = get(self.cache, make_key(f"m{number}"), headers=(header,))
        text = header.read_text() if header.is_file() else ""
        data = entry.product.read_bytes()
        assert data.decode() == f"{make_key(f'm{number}').digest} {text}"
        assert self.mapped.setdefault(str(entry.product), data) == data  # no name comes back with other content

    @rule(number=NUMBERS, text=strategies.sampled_from(["", "one", "two", "three"]))
    def edit(self, number: int, text: str) -> None:
        self.headers[number].write_text(text)

    @rule(number=NUMBERS)
    def remove_header(self, number: int) -> None:
        self.headers[number].unlink(missing_ok=True)

    @precondition(lambda self: any(self.entries()))
    @rule(data=strategies.data())
    def damage(self, data: strategies.DataObject) -> None:
        leaf = data.draw(strategies.sampled_from(list(self.entries())))
        name = data.draw(strategies.sampled_from(["product", "manifest.json"]))
        how = data.draw(strategies.sampled_from(["truncate", "flip", "remove", "grow"]))
        path = leaf / name
        if not path.is_file():
            return
        content = bytearray(path.read_bytes())
        if how == "truncate":
            path.write_bytes(content[: len(content) // 2])
        elif how == "flip" and content and name == "product":  # in a manifest a space may change and nothing with it
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        elif how == "remove":
            path.unlink()
        elif how == "grow":
            path.write_bytes(content + b"}")

    @rule(size=strategies.sampled_from([0, 1000, 5000]))
    def prune(self, size: int) -> None:
        if self.cache.is_dir():
            prune(self.cache, max_size=size)

    @rule()
    def remove_all(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)
        self.mapped.clear()  # and with it the knowledge of the names that were used

    @precondition(lambda self: any(self.entries()))
    @rule(data=strategies.data())
    def another_process_removes_an_entry(self, data: strategies.DataObject) -> None:
        leaf = data.draw(strategies.sampled_from(list(self.entries())))
        if leaf.is_dir():
            shutil.rmtree(leaf)

    @rule()
    def a_dead_builder_leaves_its_directory(self) -> None:
        if self.cache.is_dir():
            (self.cache / ".work").mkdir(mode=0o700, exist_ok=True)
            (self.cache / ".work" / f"m-{host_tag()}-1-{os.urandom(6).hex()}").mkdir(mode=0o700)

    @rule()
    def sweep(self) -> None:
        sweep_work_dirs(self.cache)
        assert work_dirs(self.cache) == []


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=int(os.environ.get("JITLOAD_TEST_EXAMPLES", "30")),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
