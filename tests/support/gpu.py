"""What the GPU tests share: when they are skipped, and programs that run in a process of their own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip a test that needs a GPU where there is none.

    The question is asked late: torch's answer loads the driver, whose place the stub of other tests may take.
    """
    try:
        loaded = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        loaded = None
    if hasattr(loaded, "stub_reset"):
        pytest.skip("the stub driver has the place of the CUDA driver in this process; run pytest -m gpu by itself")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture(scope="session")
def two_gpus(gpu: None) -> None:
    """Skip a test that needs two devices where there is one."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs, and there is one")


@pytest.fixture(scope="session")
def hopper(gpu: None) -> None:
    """Skip a test of what only Hopper has on other GPUs."""
    import torch

    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        pytest.skip(f"needs a Hopper GPU (compute capability 9.0), and this is {capability[0]}.{capability[1]}")


def run_program(text: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a Python program in a process of its own and return what it prints; it must exit with 0."""
    search = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        env={**os.environ, "PYTHONPATH": search, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
