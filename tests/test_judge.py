"""Verdicts on candidates that work, break, hang and cheat, on the CPU target."""

import json
import pickle
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from builds import python_command, python_env
from hostile_candidates import FAMILIES, KERNELS, MARK, Hostile, hostile_candidates, make_judge

import jitload
from jitload.building.child_process import ChildPool
from jitload.judging import judge as judge_module
from jitload.judging import processes
from jitload.judging.judge import Judge

pytest_plugins = ["support.judging"]
pytestmark = pytest.mark.usefixtures("shared_template")
RIGHT = "def f(x, y):\n    y.numpy()[:] = x.numpy() + 1\n"


@pytest.fixture(scope="module")
def judge(shared_template: None) -> Iterator[Judge]:
    jitload.build_inline("hostile", cuda_sources=KERNELS, arch="cpu")
    with make_judge(timeout=120) as judge:
        assert judge.run(RIGHT).ok
        yield judge


@pytest.fixture(scope="module")
def hasty(judge: Judge) -> Iterator[Judge]:
    """Give a judge for candidates that may hang. On a busy machine, others may take longer than it waits."""
    with make_judge(timeout=3) as hasty:
        yield hasty


def left_behind() -> list[str]:
    """Return the commands of the processes that candidates have started."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in lines if MARK in line and "sleep" in line]


def check(judge: Judge, candidates: Sequence[Hostile], directory: Path) -> None:
    items = [{"candidate": c.source, "name": c.name} for c in candidates]
    verdicts = [*judge.map(items, workers=2, progress=False)]
    assert [v.name for v in verdicts] == [c.name for c in candidates]
    wrong = [str(v) for v, c in zip(verdicts, candidates, strict=True) if v.stage not in c.stages]
    assert not wrong, "\n".join(wrong)
    assert all(verdict.reason or verdict.ok for verdict in verdicts)
    assert left_behind() == []
    assert len([*directory.iterdir()]) == 1  # that of a process that waits for a candidate


@pytest.mark.parametrize("count", [2 * len(FAMILIES), pytest.param(1000, marks=pytest.mark.soak)])
def test_hostile_candidates_have_verdicts_and_leave_nothing_behind(judge, hasty, tmp_path, monkeypatch, count):
    candidates = [*hostile_candidates(count)]
    monkeypatch.setattr(judge_module, "START_S", 3)  # how long `hasty` waits for a candidate to be loaded
    for chosen, may_hang in ((judge, False), (hasty, True)):
        directory = tmp_path / str(may_hang)
        directory.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        check(chosen, [c for c in candidates if ("hang" in c.stages) is may_hang], directory)


_LEAVES_ALL = f"""import subprocess, time
def f(x, y):
    subprocess.Popen(["sleep", "{MARK}"], start_new_session=True)
    open("started", "w").close()
    time.sleep(9999)
"""
_IS_KILLED = f"""import os, signal, sys, tempfile, threading, time
from pathlib import Path
from support.judging import make_judge
tempfile.tempdir = sys.argv[1]
judge = make_judge(timeout=600)
threading.Thread(target=judge.run, args=({_LEAVES_ALL!r},)).start()
while not [*Path(sys.argv[1]).glob("*/started")]:
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.soak
def test_a_judge_that_is_killed_leaves_nothing_behind(tmp_path):
    command = python_command("import numpy, torch\n" + _IS_KILLED)
    run = subprocess.run([*command, str(tmp_path)], env=python_env(), check=False, timeout=300)
    assert run.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while (left := [*left_behind(), *tmp_path.iterdir()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


_ENDS_PARENT = """import os, signal, time
def f(x, y):
    os.killpg(os.getppid(), signal.SIGKILL)
    time.sleep(99)
"""
_ENDS_TEMPLATE = """import os, signal
def f(x, y):
    status = open(f"/proc/{os.getppid()}/status").read()
    if (template := int(status.partition("PPid:")[2].split()[0])) > 1 and not os.path.exists("done"):
        open("done", "w").close()
        os.kill(template, signal.SIGKILL)
    y.numpy()[:] = x.numpy() + 1
"""


def test_a_candidate_that_ends_its_parent_or_the_template_costs_only_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fast = "from jitload.judging import processes; processes._import_modules = int; processes."
    before, _, after = processes._PROGRAM.partition("from jitload.judging.processes import serve; ")
    monkeypatch.setattr(processes, "_PROGRAM", before + fast + after)
    monkeypatch.setattr(processes, "ChildPool", ChildPool)
    with make_judge(timeout=60) as judge:
        verdicts = [*judge.map([_ENDS_PARENT, RIGHT, _ENDS_TEMPLATE, RIGHT, RIGHT], workers=2, progress=False)]
    assert [verdict.stage for verdict in verdicts] == ["launch", "ok", "ok", "ok", "ok"]
    assert verdicts[0].reason == "its process ended its parent"
    assert [*tmp_path.glob("jitload-judge-*")] == []


_ENDS_SIBLINGS = """import os
def f(x, y):
    status = open(f"/proc/{os.getppid()}/status").read()
    template = int(status.partition("PPid:")[2].split()[0])
    for pid in open(f"/proc/{template}/task/{template}/children").read().split():
        if int(pid) != os.getppid() and os.path.exists(f"/proc/{pid}"):  # that of an earlier candidate may have ended
            os.kill(int(pid), 9)
    y.numpy()[:] = x.numpy() + 1
"""
_STOPS_PARENT = RIGHT.replace("    y", "    import os\n    os.kill(os.getppid(), 19)\n    y")


@pytest.mark.parametrize("text", [_ENDS_SIBLINGS, _STOPS_PARENT], ids=["ends siblings", "stops the parent"])
def test_a_candidate_that_signals_other_processes_does_not_stop_the_judge(judge, text):
    verdicts = [judge.run(text), judge.run(RIGHT)]
    assert [verdict.stage for verdict in verdicts] == ["ok", "ok"], verdicts


def test_the_time_of_a_process_that_only_sends_is_limited(shared_template):
    answers = "while True: os.write(800, b'{}')"
    slow = "while True: os.write(800, b' '), time.sleep(0.01)"
    texts = [f"import os, time\ndef f(x, y):\n    {body}" for body in (answers, slow)]
    with make_judge(timeout=1) as judge:
        assert [verdict.stage for verdict in judge.map(texts, workers=2, progress=False)] == ["wrong", "cheat"]


def test_compiling_and_loading_has_a_limit_of_its_own(judge, monkeypatch):
    stages, begin = [], processes.CandidateProcess.begin

    def note(process: processes.CandidateProcess, stage: str, limit_s: float) -> None:
        stages.append((stage, limit_s))
        begin(process, stage, limit_s)

    monkeypatch.setattr(processes.CandidateProcess, "begin", note)
    monkeypatch.setattr(judge, "_timeout", 50)
    assert judge.run(RIGHT).ok
    assert judge.run(ADD.replace("1.0f", "one"), LAUNCH).stage == "compile"
    assert [s for s in stages if s[0] != "start"] == [("load", 120), ("launch", 50), ("load", 120)]


ADD = """extern "C" __global__ void add_one(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}"""
LAUNCH = {"add_one": jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})}


def test_kernels_are_judged_and_measured(patient):
    verdict = patient.run(ADD, LAUNCH, name="add")
    assert (verdict.ok, verdict.stage, verdict.median_us > 0) == (True, "ok", True), verdict
    assert verdict.speedup == verdict.reference_us / verdict.median_us
    fields = json.loads(verdict.to_json())
    assert (fields["name"], fields["ok"], fields["speedup"]) == ("add", True, verdict.speedup)
    verdict = patient.run(ADD.replace("1.0f", "2.0f"), LAUNCH)
    assert verdict.stage == "wrong"
    assert "its 'result 0' differs from that of the reference at 1000 of 1000 elements" in verdict.reason
    verdict = patient.run(ADD.replace("1.0f", "one"), LAUNCH)
    assert verdict.stage == "compile"
    assert "one" in verdict.reason
    assert "candidate.cu:3" in verdict.diagnostics


FOR_TORCH = """#include <torch/extension.h>
torch::Tensor run(torch::Tensor x, torch::Tensor y) {
    auto z = torch::empty_like(x);
    for (int64_t i = 0; i < x.numel(); ++i) z.data_ptr<float>()[i] = x.data_ptr<float>()[i] + 1;
    return z;
}"""


@pytest.mark.parametrize("error", ['ValueError("\\1" * 40_000)', 'type("x" * 300_000, (Exception,), {})'])
def test_errors_that_are_long_as_messages(judge, error):
    verdict = judge.run(f"import os\nraise {error}")
    assert verdict.stage == "load"
    assert verdict.reason.startswith(("ValueError: \1\1", "xxxx"))


@contextmanager
def client_of_dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed", reason="no distributed: Dask is not tested")
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0") as client:
        yield client.get_executor()


@pytest.mark.parametrize("make_executor", [lambda: ThreadPoolExecutor(1), client_of_dask], ids=["threads", "dask"])
def test_executors_judge_models_in_the_form_of_kernelbench(tmp_path, monkeypatch, make_executor):
    monkeypatch.chdir(tmp_path)
    problem = Path("problem.py")
    problem.write_text(
        textwrap.dedent("""
        import torch
        class Model(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(n))
            def forward(self, x):
                return x * self.weight
        def get_inputs():
            return [torch.rand(4, 8)]
        def get_init_inputs():
            return [8]
        """)
    )
    answer = problem.read_text().replace("Model", "ModelNew")
    numpy = "torch.from_numpy(x.cpu().numpy() * self.weight.cpu().numpy()).to(x.device)"
    answers = [answer.replace("x * self.weight", text) for text in (numpy, "x + self.weight", "x * self.weight")]
    with make_executor() as executor:
        for _ in range(3):
            judge = jitload.Judge(reference=problem, seconds=0, timeout=60)
            copies = [pickle.loads(pickle.dumps(judge)) for _ in range(2)]
            assert copies[0] is copies[1]  # what a process of an executor keeps
            verdicts = judge.map(answers, executor=executor, progress=False)
            monkeypatch.chdir("/")  # as where a worker runs
            right, wrong, same = verdicts
            monkeypatch.chdir(tmp_path)
            assert right.ok, right
            assert wrong.stage == "wrong"
            assert same.stage == "cheat"
            assert "the operators of torch of the reference: mul" in same.reason


def test_answers_that_compile_with_torch(patient):
    """They are built as jitload builds them, so that one that is killed leaves no lock behind."""
    text = f"import torch, torch.utils.cpp_extension as e\nf = e.load_inline('f', {FOR_TORCH!r}, functions=['run']).run"
    text += "\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, y):\n        return f(x, y)"
    assert patient.run(text).ok
    assert patient.run(FOR_TORCH, functions="run").ok
    verdict = patient.run(text.replace("+ 1", "+ one"))
    assert verdict.stage == "compile"
    assert "one" in verdict.reason
    verdict = patient.run(text.replace("ModelNew", "_Model").replace("f =", "_f ="))
    assert "it has 0 functions (none)" in verdict.reason


def test_a_candidate_that_hung_is_not_run_again(hasty, tmp_path, monkeypatch):
    monkeypatch.setattr(hasty, "_hangs", tmp_path / "cache")
    monkeypatch.setattr(judge_module, "START_S", 4)
    assert hasty.run("import time\ntime.sleep(99)").reason == "its process is not done after 4 s"
    assert not (tmp_path / "cache").exists()  # another time, it may take less
    endless = "def f(x, y):\n    while True: pass"
    assert hasty.run(endless).stage == "hang"
    again = hasty.run(endless)
    assert (again.stage, again.seconds) == ("hang", 0)
    assert again.reason == "it was not done after 3 s in an earlier run, so it was not run again"
    assert [path.name[:5] for path in (tmp_path / "cache").iterdir()] == ["hang-"]


def test_arguments_are_checked():
    with pytest.raises(jitload.JitLoadError, match="without setting a seed"):
        jitload.Judge(reference=lambda x: x + 1, inputs=lambda: torch.ones(3))
    with pytest.raises(jitload.JitLoadError, match="changes no argument"):
        jitload.Judge(reference=lambda x: None, inputs=lambda: torch.rand(3))
    with pytest.raises(jitload.JitLoadError, match="memory='much'"):
        make_judge(memory="much")
    with pytest.raises(jitload.JitLoadError, match="a text, a Path or a mapping, got int"):
        make_judge().run(5)


def test_the_command_judges_a_directory_and_ends_with_the_code_of_the_first_failure(tmp_path, capfd):
    from jitload.cli import main

    reference = "import torch\ndef reference(x):\n    return x + 1\ndef inputs():\n    return torch.rand(100)\n"
    (tmp_path / "reference.py").write_text(reference)
    candidates = tmp_path / "candidates"
    candidates.mkdir()
    assert main(["judge", str(candidates), "--against", str(tmp_path / "reference.py")]) == 1
    assert "there are no candidates, which are files named .cu, .cpp or .py" in capfd.readouterr().err
    right = "import torch\ndef f(x):\n    return torch.from_numpy(x.numpy() + 1)\n"
    (candidates / "a_right.py").write_text(right)
    (candidates / "b_wrong.py").write_text(right.replace("+ 1", "+ 2"))
    (candidates / "c_exits.py").write_text("import os\ndef f(x):\n    os._exit(1)\n")
    arguments = ["--against", str(tmp_path / "reference.py"), "--workers", "1", "--json"]
    assert main(["judge", str(candidates), *arguments]) == 14
    output = capfd.readouterr()
    verdicts = [json.loads(line) for line in output.out.splitlines()]
    stages = {verdict["name"]: verdict["stage"] for verdict in verdicts}
    assert stages == {"a_right": "ok", "b_wrong": "wrong", "c_exits": "launch"}
    assert output.err.splitlines()[-1] == f"b_wrong: wrong: {verdicts[1]['reason']}"
