"""The examples for Hopper: NVRTC compiles them without a warning, and on such a GPU they check themselves."""

from __future__ import annotations

import itertools
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


def instances(launch: jitload.Launch) -> list[str]:
    """Return the template instances of all variants."""
    assert launch.kernel is not None
    assert launch.tune is not None
    names, columns = zip(*launch.tune.values, strict=True)
    rows = (dict(zip(names, row, strict=True)) for row in itertools.product(*columns))
    return sorted({launch.kernel.format(**row) for row in rows})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_compiles_and_its_maps_fit(path: Path) -> None:
    names = runpy.run_path(str(path))
    source, launch = names["SOURCE"], names["LAUNCH"]
    mod = jitload.load_inline(path.stem, cuda_sources=source, functions={path.stem: launch}, arch="sm_90a")
    assert callable(mod[path.stem])
    cubin = jitload.compile_cubin(source, name=path.stem, arch="sm_90a", kernels=instances(launch))
    assert cubin.log == ""  # ptxas would say that it serializes wgmma, or that it ignores setmaxnreg
    assert len(cubin.kernels) == len(instances(launch))
    assert not any(kernel.local_bytes for kernel in cubin.kernels)
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
