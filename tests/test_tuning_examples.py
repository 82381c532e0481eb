"""The kernels of examples/tuning: each builds for a GPU, and is tuned where there is one."""

import dataclasses
import importlib

import pytest
from builds import ROOT

import jitload
from jitload import Tune

pytest_plugins = ["support.gpu_fixtures"]

NAMES = ("elementwise", "reduction", "transpose", "stencil", "gemm")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "tuning")
    return importlib.import_module("run")


def test_each_builds_for_a_gpu(run):
    assert run.NAMES == NAMES
    for name in NAMES:
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
@pytest.mark.parametrize("name", NAMES)
def test_each_is_tuned_on_a_gpu(run, name, tmp_path):
    run.main([name, "--seconds", "0.2", "--results", str(tmp_path)])
