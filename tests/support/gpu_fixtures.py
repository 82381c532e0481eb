"""What tests need of a machine, as pytest fixtures that a conftest imports: GPUs, and nvJitLink for PTX."""

import ctypes
import os
from pathlib import Path

import pytest

import jitload
from jitload.model import Cubin
from jitload.settings import read_settings
from jitload.toolchain.libraries import find_nvjitlink

from .ptx import compile_to


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip a test that needs a GPU where there is none.

    The question is asked late: torch's answer loads the driver, whose place the stub of other tests may take.
    """
    try:
        loaded = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        loaded = None
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU")
    if hasattr(loaded, "stub_reset"):
        pytest.skip("the stub driver has the place of the CUDA driver in this process; run pytest -m gpu by itself")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Run a test on the CPU and, where there is one, on the GPU."""
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return str(request.param)


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


@pytest.fixture(scope="session")
def ptx() -> str:
    if find_nvjitlink(read_settings()) is None:
        pytest.skip("needs nvJitLink: pip install nvidia-nvjitlink")
    return compile_to("PTX", "--gpu-architecture=compute_80").rstrip(b"\0").decode()


@pytest.fixture(scope="session")
def cubin(ptx: str) -> Cubin:
    return jitload.compile_cubin(ptx, arch="sm_90a")
