"""PTX and a cubin made of it, as pytest fixtures; a test module names this one in `pytest_plugins`."""

import pytest

import jitload
from jitload.model import Cubin
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_nvjitlink

from .ptx import compile_to


@pytest.fixture(scope="session")
def ptx() -> str:
    if find_nvjitlink(read_settings()) is None:
        pytest.skip("needs nvJitLink: pip install nvidia-nvjitlink")
    return compile_to("PTX", "--gpu-architecture=compute_80").rstrip(b"\0").decode()


@pytest.fixture(scope="session")
def cubin(ptx: str) -> Cubin:
    return jitload.compile_cubin(ptx, arch="sm_90a")
