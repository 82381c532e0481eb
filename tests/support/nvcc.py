"""The nvcc of this machine, for tests that need one."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from jitload.errors import ToolchainError
from jitload.settings import read_settings
from jitload.toolchain.cuda import Nvcc
from jitload.toolchain.nvcc import find_nvcc


@functools.cache
def real_nvcc() -> Nvcc | None:
    """Return the nvcc that jitload finds, or None."""
    with tempfile.TemporaryDirectory() as cache:
        try:
            return find_nvcc(read_settings(), Path(cache), name="test")
        except ToolchainError:
            return None


needs_nvcc = pytest.mark.skipif(real_nvcc() is None, reason="needs nvcc: pip install 'jitload[cu13,nvcc]'")
