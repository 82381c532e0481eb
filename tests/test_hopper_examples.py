"""The examples for Hopper: NVRTC compiles them without a warning, and on such a GPU they check themselves."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.gpu import ROOT

import jitload

pytest_plugins = ["support.gpu_fixtures"]

EXAMPLES = sorted((ROOT / "examples" / "hopper").glob("*.py"))


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_compiles_and_its_maps_fit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = runpy.run_path(str(path))
    mod = jitload.load_inline(path.stem, cuda_sources=names["SOURCE"], functions=names["FUNCTIONS"], arch="sm_90a")
    assert caplog.text == ""  # ptxas would say that it serializes wgmma, or that it ignores setmaxnreg
    assert {mod[name].kernels["sm_90a"].local_bytes for name in names["FUNCTIONS"]} == {0}
    assert len(path.read_text().splitlines()) < 200


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    assert torch.cuda.is_available()
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to torch's result" in done.stdout
