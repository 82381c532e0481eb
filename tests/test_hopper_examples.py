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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_compiles_and_its_maps_fit(path: Path, tmp_path: Path) -> None:
    names = runpy.run_path(str(path))
    cubin = jitload.compile_cubin(names["SOURCE"], name=path.stem, arch="sm_90a")
    assert cubin.log == ""  # ptxas would say that it serialises wgmma
    assert cubin.kernels[0].local_bytes == 0
    library = tmp_path / f"{path.stem}.so"
    functions = {path.stem: names["LAUNCH"]}
    jitload.build_inline(path.stem, cuda_sources=names["SOURCE"], functions=functions, arch="sm_90a", output=library)
    assert library.is_file()
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
