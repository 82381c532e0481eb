"""Measuring variants: what is built, checked and left out, the table, the file and the plots; examples/tuning."""

import dataclasses
import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builds import ROOT, run_python

import jitload
from jitload import Launch, Tune
from jitload.cli import main
from jitload.errors import JitLoadError, LaunchSpecError, warn_once
from jitload.measuring.tuning import Tuning
from jitload.prebuilding.files import read_requests
from jitload.request.rows import Row
from jitload.tuning.jobs import gpu_executor, tune_requests
from jitload.tuning.tuner import tune as real_tune

SOURCE = r"""
template <class T, int V> __global__ void scale(const T* x, T* y, int n) {
    static_assert(V < 8, "too many elements");
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    for (int j = i; j < i + V && j < n; ++j) y[j] = V == 4 ? T(float(x[j]) * 3) : T(float(x[j]) * 2);
}"""
LAUNCH = {"kernel": "scale<{x.dtype}, {V}>", "grid": "ceil_div(n, B * V)", "block": "B", "args": {"n": "x.numel()"}}
LAUNCH["dtypes"] = "float32"
FAST: dict[str, Any] = {"seconds": 0.05, "progress": False}


def load(arch: str = "cpu", tuned: Any = None, **tune: Any) -> jitload.Module:
    space = {"B": (32, 64, 2048), "V": (1, 2, 4, 8), "key": "n", **tune}
    functions = {"scale": Launch(**LAUNCH, tune=Tune(**space))}
    return jitload.load_inline("tuner", cuda_sources=SOURCE, functions=functions, arch=arch, tuned=tuned)


def arguments(n: int = 1000, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, device=device) + 0.5, torch.zeros(n, device=device)


def double(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.fixture(scope="module")
def tuning() -> Tuning:
    x, y = arguments()
    y += 7
    result = load().scale.tune(x, y, reference=double, **FAST)
    assert torch.equal(y, torch.full_like(y, 7)), "tuning has changed the argument"
    return result


def test_variants_that_are_wrong_or_cannot_run_have_reasons(tuning):
    assert len(tuning.rows) == 12
    reasons = {row.label: row.reason for row in tuning.rows}
    for label in ("B=32 V=1", "B=32 V=2", "B=64 V=1", "B=64 V=2"):
        assert reasons.pop(label) == ""
    for block in (32, 64):
        reason = reasons.pop(f"B={block} V=4")
        assert reason.startswith("is wrong: its 'y' differs from that of the reference at 1000 of")
        assert reasons.pop(f"B={block} V=8").endswith(": static assertion failed: too many elements")
    assert set(reasons.values()) == {"block: must be from 1 to 1024, got 2048"}
    assert tuning.best.label in ("B=32 V=1", "B=32 V=2", "B=64 V=1", "B=64 V=2")
    lines = str(tuning).splitlines()
    assert lines[0] == "scale, x: float32, n = 1000 on cpu, eager"
    assert lines[1].split() == ["median", "µs", "p10", "p90", "GB/s", "time", "note"]
    assert sum(line.endswith("*") for line in lines) == 1
    assert any(line.startswith("B=32 V=8: the C++ compiler could not compile 'tuner'") for line in lines)
    assert tuning._repr_html_().count("<tr>") == 13


def test_without_a_reference_the_first_variant_is_right():
    mod = load(B=32, V=(1, 4))
    tuning = mod.scale.tune(*arguments(), **FAST)
    assert [bool(row.reason) for row in tuning.rows] == [False, True]
    assert tuning.rows[1].reason.startswith("'B=32 V=4' and 'B=32 V=1' disagree: 'y' differs from that of")
    exact = mod.scale.tune(*arguments(), rtol=1, exact=True, **FAST)
    assert exact.rows[1].reason == "is not exact: bits of its 'y' differ from those of B=32 V=1"
    assert exact.best.mode == "eager, exact"
    loose = mod.scale.tune(*arguments(), rtol=1, **FAST)
    assert [row.reason for row in loose.rows] == ["", ""]
    wrong = mod.scale.tune(*arguments(), reference=lambda x, _: -x, **FAST)
    assert wrong.choices == ()
    right = load(B=32, V=(1, 4), tuned=wrong).scale.tune(*arguments(), reference=double, **FAST)
    assert right.best.label == "B=32 V=1"


def test_the_file_freezes_the_choice_and_new_values_alone_are_measured(tuning, tmp_path, monkeypatch):
    path = tuning.save(tmp_path / "new" / "scale.json")
    assert Tuning.load(path).rows == tuning.rows
    mod = load(tuned=path)
    assert mod.scale.variant(*arguments()).values == dict(tuning.best.values)
    assert mod.scale.variant(*arguments(5)).how == "first"
    monkeypatch.setattr("jitload.tuning.tuner._measure", None)
    again = mod.scale.tune(*arguments(), reference=double, **FAST)
    assert again.rows == tuning.rows
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # other variants would be admitted
        mod.scale.tune(*arguments(), exact=True, **FAST)
    monkeypatch.undo()
    measured = []
    real = jitload.tuning.tuner._build

    def build(part: Any, rows: Any, built: Any) -> None:
        measured.extend(rows[name].label for name, _ in part.functions)
        real(part, rows, built)

    monkeypatch.setattr("jitload.tuning.tuner._build", build)
    more = load(tuned=path, V=(1, 2, 3)).scale.tune(*arguments(), reference=double, **FAST)
    assert {"B=32 V=3", "B=64 V=3"} <= set(measured) <= {"B=32 V=3", "B=64 V=3", tuning.best.label, "B=32 V=1"}
    assert [row.label for row in more.rows[:4]] == ["B=32 V=1", "B=32 V=2", "B=32 V=3", "B=64 V=1"]
    assert [row.number for row in more.rows] == list(range(9))


def test_files_add_up(tuning, tmp_path):
    rows = json.loads(tuning.to_json())["rows"]
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"format": 1, "rows": [{**row, "gpu": "NVIDIA H100"} for row in rows]}))
    both = Tuning.load(path) | tuning
    assert len(both.rows) == 24
    assert [row.gpu for row in both.choices] == ["NVIDIA H100", "cpu"]
    with pytest.raises(JitLoadError, match=r"there are 2 choices: see .choices"):
        _ = both.best
    tuning.save(path)
    assert Tuning.load(path).rows == both.rows
    assert [p.name for p in tmp_path.iterdir()] == ["other.json"]
    with pytest.raises(JitLoadError, match=r"none.json' cannot be read: No such file"):
        Tuning.load(tmp_path / "none.json")


_SAVERS = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from jitload.measuring.tuning import Tuning
from jitload.request.rows import Row, read_rows
from jitload.request.tune import Tuned

def save(first):
    for n in range(first, first + 10):
        row = Row(function="f", gpu="cpu", key=(("n", n),), values=(("B", 1),), number=0, median_us=1.0)
        Tuning([row]).save(sys.argv[1])

for first in (0, 20):
    if not os.fork():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(save, (first, first + 10)))
        os._exit(0)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""


def test_processes_and_threads_save_to_one_file(tmp_path):
    path = tmp_path / "shared.json"
    done = run_python(_SAVERS, arguments=[path])
    assert (done.returncode, done.stderr) == (0, "")
    assert len(Tuning.load(path).rows) == 40
    assert [p.name for p in tmp_path.iterdir()] == ["shared.json"]


def test_what_cannot_be_tuned_says_why(tmp_path):
    mod = jitload.load_inline("plain", cuda_sources="__global__ void f(float* x) {}", arch="sm_90a")
    with pytest.raises(LaunchSpecError, match=r"kernel 'f', tune: has no variants: declare them, Launch\(tune=Tune"):
        mod.f.tune()
    path = jitload.build_inline("plain", cuda_sources="__global__ void f(float* x) {}", arch="sm_90a")
    with pytest.raises(JitLoadError, match=r"f\(\) cannot be tuned: its source is not at hand\. Load it with load_inl"):
        jitload.load_module(path).f.tune()
    with pytest.raises(TypeError, match=r"tune\(\) takes a function of a module, mod.f, got function"):
        jitload.tune(double)


def test_what_a_call_of_the_tuner_cannot_mean_is_refused(caplog):
    tune, (x, y) = load(B=32, V=(1, 2)).scale.tune, arguments(10)
    for option, error, message in (
        ({"exact": "no"}, TypeError, "exact='no': it must be True or False"),
        ({"graph": 2}, TypeError, "graph=2: it must be True or False"),
        ({"flush_l2": None}, TypeError, "flush_l2=None: it must be True or False"),
        ({"reference": "torch:relu"}, TypeError, "reference= must be a function of the same arguments, got str"),
        ({"outputs": []}, ValueError, r"outputs=\[\]: name an argument, or leave outputs= out"),
    ):
        with pytest.raises(error, match=message):
            tune(x, y, **FAST, **option)
    source = "__device__ int count; __global__ void quiet(int n) { if (blockDim.x == n) __trap(); count = n; }"
    launch = Launch(grid=1, block="B", tune=Tune(B=(16, 32)))
    quiet = jitload.load_inline("quiet", cuda_sources=source, functions={"quiet": launch}, arch="cpu").quiet
    with pytest.raises(ValueError, match="outputs='n': 'n' is not a tensor"):
        quiet.tune(32, outputs="n", **FAST)
    tuning = quiet.tune(32, **FAST)
    assert caplog.messages == ["tune() compared nothing: quiet() writes to no tensor of the call"]
    assert [row.reason for row in tuning.rows] == ["", "__trap() in block (0, 0, 0), thread (0, 0, 0)"]


def test_first_calls_measure_each_key_once_and_in_turn(monkeypatch):
    tuned: list[int] = []
    running: list[int] = []

    def tune(function: Any, *args: Any, **options: Any) -> Tuning:
        assert not running, "two threads measure at the same time"
        running.append(1)
        tuned.append(len(args[0]))
        try:
            return real_tune(function, *args, seconds=0.02, **options)
        finally:
            running.pop()

    monkeypatch.setattr("jitload.tuning.tuner.tune", tune)
    mod = load(B=32, V=(2, 1), measure="first call")
    sizes = (100, 100, 200)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: mod["scale"](*arguments(n)), sizes))
    for n in sizes:
        x, y = arguments(n)
        mod.scale(x, y)
        assert torch.equal(y, 2 * x)
        assert mod.scale.variant(x, y).how == "tuned"
    assert sorted(tuned) == [100, 200]
    with pytest.raises(TypeError, match=r"argument 'y' must be a float32 CPU tensor, got int"):
        mod.scale(x, 3)
    with pytest.raises(LaunchSpecError, match="measure: must be 'first call' or None, got 'always'"):
        load(measure="always")


def test_a_configuration_is_never_replaced_by_what_is_tuned():
    mod = load(B=32, V=(2, 1), measure="first call", when="B * V < 100")
    x, y = torch.ones(1000), torch.zeros(1000)
    mod.scale(x, y)
    for _ in range(2):
        mod.scale[3, None](x, y.zero_())  # neither measures nor launches what was measured
        assert (mod.scale[3, None].variant(x, y).how, torch.count_nonzero(y)) == ("first", 3 * 32 * 2)
    with pytest.raises(JitLoadError, match=r"scale\[5, None\]\(.*with a configuration: call scale\.tune"):
        mod.scale[5, None].tune(x, y)


REQUESTS = """
from jitload import Launch, Tune

source = "__global__ void twice(float* x, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= 2; }"
launch = Launch(grid=1, block="B", args={"n": "x.numel()"}, tune=Tune(B=(32, 64), key="n"))
jobs = [{"function": "twice", "args": [size]} for size in ("float32[100]", "float32[7, 2]")]
common = {"name": "twice", "arch": "cpu", "tuned": "tuned.json"}
REQUESTS = [{**common, "cuda_sources": source, "functions": {"twice": launch}, "tune": jobs}]
"""


@pytest.fixture
def requests_file(tmp_path, monkeypatch):
    """Write a file of requests to the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "requests_to_tune.py"
    path.write_text(REQUESTS)
    yield path
    sys.modules.pop(path.stem, None)


def test_the_command_runs_the_jobs_of_requests(requests_file, tmp_path, capsys, caplog):
    warn_once.cache_clear()
    file, output = requests_file, tmp_path / "tuned.json"
    assert main(["tune", str(file), "--seconds", "0.02", "-o", str(output)]) == 0
    assert f"2 choices, saved in {output}" in capsys.readouterr().out
    assert not [message for message in caplog.messages if "no measurements" in message]
    assert [row.key for row in Tuning.load(output).choices] == [(("n", 14),), (("n", 100),)]
    assert next(iter(json.loads(output.read_text())["rows"][0])) == "function"
    assert main(["prebuild", str(file), "-q"]) == 0
    request = read_requests(str(file))[0]
    both = tmp_path / "others.json"
    with ThreadPoolExecutor(1) as executor:
        wrong = {"function": "twice", "args": ["float32[5]"], "reference": "no"}
        jobs = [*request["tune"], {"function": "none"}, wrong]
        with pytest.raises(JitLoadError, match=r"^2 of 4 jobs failed") as caught:
            tune_requests([{**request, "tuned": None, "tune": jobs}], executor, output=both, seconds=0.02)
    failed = {line.partition("(")[0] for line in str(caught.value).splitlines()[1:3]}
    assert failed == {"twice, none", "twice, twice"}
    assert len(Tuning.load(both).choices) == 2
    for arg in ("real[3]", "x"):
        request = {**request, "tune": [{"function": "twice", "args": [arg]}]}
        with pytest.raises(JitLoadError, match="a tensor is written"):
            tune_requests([request])
    with pytest.raises(JitLoadError, match="no request has jobs"):
        tune_requests([{}])
    with pytest.raises(JitLoadError, match="reference='no:such': the module no cannot be imported"):
        tune_requests([{**request, "tune": [{"function": "twice", "reference": "no:such"}]}])


def test_each_process_of_the_executor_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")  # the third is not there
    with gpu_executor() as executor:
        facts = "(os := __import__('os')).getpid(), os.environ['CUDA_VISIBLE_DEVICES']"
        seen = set(executor.map(eval, [facts] * 20))
    assert len(seen) == len(dict(seen)) == len({gpu for _, gpu in seen})
    assert {gpu for _, gpu in seen} <= {"GPU-a", "GPU-b"}
    assert gpu_executor()._max_workers == 2


def synthetic(count: int, *names: str) -> Tuning:
    return Tuning(
        Row(function="f", gpu="NVIDIA H200", values=tuple((name, n // 10**k % 10) for k, name in enumerate(names)),
            number=n, median_us=10.0 + n % 17, p10_us=9.0, p90_us=30.0, registers=32, spill_bytes=8, occupancy=0.5,
            bytes=10**6, peak_gb_per_s=4800.0, flop=1e6)
        for n in range(count)
    )  # fmt: skip


def test_plots_of_few_and_of_many_variants(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    for tuning in (synthetic(10, "B"), synthetic(100, "B", "V"), synthetic(200, "B", "V", "W")):
        figure = tuning.plot()
    figure.savefig(tmp_path / "plot.png")
    assert Path(tmp_path / "plot.png").stat().st_size > 5000
    texts = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert texts == ["B=0 V=0 W=0", *texts[1:]]
    assert len(texts) == 3
    with pytest.raises(JitLoadError, match="no variant was measured, so there is nothing to plot"):
        Tuning([]).plot()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(JitLoadError, match=r"pip install 'jitload\[plot\]'"):
        tuning.plot()
    assert max(map(len, str(tuning).splitlines())) <= 110


def test_a_data_frame_has_a_column_for_each_value(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    frame = synthetic(20, "B", "V").to_pandas()
    assert list(frame[3])[:3] == ["B", "V", "median_us"]
    assert (frame[3]["B"], frame[3]["gb_per_s"]) == (3, 1e6 / 13 / 1000)
    assert [record["B"] for record in frame if record["is_chosen"]] == [0]


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_tuning_on_a_gpu(tmp_path):
    mod = load("native")
    x, y = arguments(1 << 20, "cuda")
    for options in ({}, {"graph": True}, {"flush_l2": True, "exact": True}):
        tuning = mod.scale.tune(x, y, reference=double, seconds=0.3, progress=False, **options)
        labels = {row.label for row in tuning.rows if not row.reason}
        assert labels == {"B=32 V=1", "B=32 V=2", "B=64 V=1", "B=64 V=2"}
        assert all(row.registers and row.occupancy and row.median_us for row in tuning.rows if not row.reason)
        assert tuning.best.gpu == torch.cuda.get_device_name()
    path = tuning.save(tmp_path / "scale.json")
    frozen = load("native", tuned=path)
    assert frozen.scale.variant(x, y).values == dict(tuning.best.values)
    graph = torch.cuda.CUDAGraph()
    frozen.scale(x, y)
    with torch.cuda.graph(graph):
        frozen.scale(x, y)
    y.zero_()
    graph.replay()
    assert torch.equal(y, 2 * x)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_a_process_with_a_gpu_runs_the_jobs(requests_file, tmp_path):
    output = tmp_path / "tuned.json"
    requests_file.write_text(REQUESTS.replace('"arch": "cpu"', '"arch": "native"'))
    assert main(["tune", str(requests_file), "--seconds", "0.1", "--all-gpus", "-o", str(output)]) == 0
    assert {row.gpu for row in Tuning.load(output).choices} == {torch.cuda.get_device_name()}


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_what_the_cubin_says_cannot_launch_is_not_launched():
    source = r"""
template <int R> __global__ void __launch_bounds__(256) heavy(float* x) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[threadIdx.x ^ R];
}"""
    tune = Tune(R=(0, 1), B=(256, 512), S=(4096, 240_000, 300_000))
    launch = Launch(kernel="heavy<{R}>", grid=1, block="B", shared_bytes="S", tune=tune)
    mod = jitload.load_inline("heavy", cuda_sources=source, functions={"heavy": launch})
    tuning = mod.heavy.tune(torch.zeros(512, device="cuda"), **FAST)
    reasons = {row.label: row.reason for row in tuning.rows}
    assert reasons["R=0 B=256 S=4096"] == ""
    assert reasons["R=0 B=512 S=4096"] == "block=512: a block of this kernel has 1 to 256 threads"
    assert reasons["R=0 B=256 S=300000"] == "shared_bytes: must be from 0 to 232448, got 300000"
    assert reasons["R=0 B=256 S=240000"]


EXAMPLES = ("elementwise", "reduction", "transpose", "stencil", "gemm")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "tuning")
    return importlib.import_module("run")


def test_each_builds_for_a_gpu(run):
    assert run.NAMES == EXAMPLES
    for name in EXAMPLES:
        example = importlib.import_module(name)
        (function,) = example.FUNCTIONS
        options = {"functions": example.FUNCTIONS, "extra_cuda_cflags": example.OPTIONS, "arch": "sm_90a"}
        path = jitload.build_inline(name, cuda_sources=example.SOURCE, **options)
        assert list(jitload.load_module(path)) == [function]


def test_the_program_saves_and_checks(run, monkeypatch, tmp_path, capsys):
    example = importlib.import_module("reduction")
    launch = dataclasses.replace(example.FUNCTIONS["row_sum"], tune=Tune(B=32, V=(1, 2), key="columns"))
    monkeypatch.setattr(example, "FUNCTIONS", {"row_sum": launch})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run.main(["reduction", "--seconds", "0.02", "--results", str(tmp_path)])
    assert "reduction: 1 choices in" in capsys.readouterr().out
    assert (tmp_path / "reduction.txt").read_text().startswith("row_sum, columns = 100 on cpu, eager")
    assert len(jitload.Tuning.load(tmp_path / "reduction.json").rows) == 2


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_is_tuned_on_a_gpu(run, name, tmp_path):
    run.main([name, "--seconds", "0.2", "--results", str(tmp_path)])
