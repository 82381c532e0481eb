"""Choices among the configurations of an autotuned Triton kernel, read from its decorator and frozen."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import ARCH
from support.arrays import CudaArray
from support.triton import aligned_array

import jitload
from jitload.errors import LaunchSpecError
from jitload.request.variants import source_digest

pytest.importorskip("triton")
from triton_tuned import tuned_add

pytest_plugins = ["support.gpu_fixtures"]

SIGNATURE = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}


def write(path: Path, choices: dict[int, int]) -> Path:
    module = jitload.load_triton("t", tuned_add, signature=SIGNATURE, variants="all", grid=GRID, arch=ARCH)
    values = [row["values"] for row in module.tuned_add._jitload_facts["tune"]["variants"].values()]
    rows = [
        {"function": "tuned_add", "gpu": "Stub GPU 0", "key": {"n": n}, "values": values[number], "number": number,
         "median_us": 1.0}
        for n, number in choices.items()
    ]  # fmt: skip
    path.write_text(json.dumps({"format": 1, "rows": rows}))
    return path


GRID = "ceil_div(n, BLOCK)"


def load(**options: Any) -> jitload.Module:
    options = {"signature": SIGNATURE, "variants": "all", "grid": GRID, "arch": ARCH, **options}
    return jitload.load_triton("t", tuned_add, **options)


def test_the_key_of_the_decorator_chooses_a_configuration(tmp_path, stub_driver):
    mod = load(tuned=write(tmp_path / "add.json", {1000: 1, 2000: 0}), nearest="log2")
    x = aligned_array()
    for n, block, how in ((1000, 1024, "tuned"), (1400, 1024, "nearest"), (10**6, 512, "nearest")):
        mod.tuned_add(x, x, x, n)
        assert stub_driver.launches()[-1].block == (block // 4, 1, 1)
        assert stub_driver.launches()[-1].grid == (-(-n // block), 1, 1)
        chosen = mod.tuned_add.variant(x, x, x, n)
        assert (chosen.values["BLOCK"], chosen.how, chosen.key) == (block, how, {"n": n})
    elsewhere = mod.tuned_add.variant(CudaArray(np.zeros(4, np.float32), device=1), x, x, 1000)
    assert (elsewhere.values["BLOCK"], elsewhere.how) == (1024, "nearest")  # a GPU that the file does not have


def test_the_choice_is_in_the_key_of_the_library(tmp_path):
    paths = {
        str(load(tuned=tuned).tuned_add._jitload_library.origin)
        for tuned in (None, write(tmp_path / "a.json", {7: 1}), write(tmp_path / "b.json", {7: 0}))
    }
    assert len(paths) == 3


def test_a_file_for_another_source_of_the_kernel_causes_a_warning(tmp_path, caplog):
    function = load(tuned=write(tmp_path / "add.json", {7: 1})).tuned_add
    digest = source_digest(function._jitload_library.request, "tuned_add", None)
    for source, warned in (("", 0), (digest, 0), ("old", 1)):
        path = write(tmp_path / f"{len(source)}.json", {7: 1})
        path.write_text(path.read_text().replace('"median_us"', f'"source": "{source}", "median_us"'))
        load(tuned=path)
        messages = [text for text in caplog.messages if "was measured with another source" in text]
        assert len(messages) == warned


def test_a_file_for_one_configuration_is_refused(tmp_path):
    with pytest.raises(LaunchSpecError, match="there is only one: pass variants='all'"):
        load(tuned=write(tmp_path / "add.json", {7: 1}), variants=None, config={"BLOCK": 512})


def test_the_decorator_builds_the_best_configurations_of_its_model(monkeypatch, caplog):
    monkeypatch.setattr(tuned_add, "perf_model", lambda *, n, BLOCK, **_: abs(BLOCK - n))
    monkeypatch.setattr(tuned_add, "configs_top_k", 1)
    example = torch.empty(64, device="meta")
    words = {"variants": "all", "grid": GRID, "arch": ARCH}
    for n, block in ((512, 512), (1024, 1024)):
        mod = jitload.load_triton("p", tuned_add, example, example, example, n=n, **words)
        assert mod.tuned_add._jitload_facts["triton"]["constexprs"]["BLOCK"] == block
        assert mod.tuned_add._jitload_facts["triton"]["variants"] == ["tuned_add"]
    assert not caplog.messages
    load()
    assert caplog.messages == ["tuned_add: prune_configs_by is not used, because there are no example arguments"]


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_configurations_are_tuned_on_a_gpu(tmp_path):
    mod = jitload.load_triton("g", tuned_add, signature=SIGNATURE, variants="all", grid=GRID)
    x, y = torch.rand(2, 1 << 20, device="cuda")
    out = torch.empty_like(x)
    options = {"reference": lambda x, y, out, n: x + y, "outputs": ["out_ptr"], "seconds": 0.2, "progress": False}
    tuning = mod.tuned_add.tune(x, y, out, x.numel(), **options)
    assert [row.reason for row in tuning.rows] == ["", ""]
    assert all(row.registers and row.occupancy for row in tuning.rows)
    path = tuning.save(tmp_path / "add.json")
    frozen = jitload.load_triton("g", tuned_add, signature=SIGNATURE, variants="all", grid=GRID, tuned=path)
    frozen.tuned_add(x, y, out, x.numel())
    assert torch.equal(out, x + y)
    assert frozen.tuned_add.variant(x, y, out, x.numel()).values == dict(tuning.best.values)
