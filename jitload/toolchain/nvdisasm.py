"""Finds nvdisasm, NVIDIA's disassembler of machine code for GPUs, and runs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from jitload.errors import ToolchainError
from jitload.settings import Settings
from jitload.toolchain.cuda import DEFAULT_HOME
from jitload.toolchain.host import package_dirs, run_tool

_INSTALL = "pip install 'jitload[inspect]'"


def find_nvdisasm(settings: Settings) -> Path:
    """Return nvdisasm: that of `CUDA_HOME` or `CUDA_PATH`, of NVIDIA's wheel, on the PATH, of a toolkit, of Triton.

    Raises:
        ToolchainError: There is none.
    """
    if program := next((path for path in _candidates(settings) if path.is_file() and os.access(path, os.X_OK)), None):
        return program
    raise ToolchainError(f"nvdisasm was not found, which disassembles machine code. Install it with: {_INSTALL}")


def _candidates(settings: Settings) -> Iterator[Path]:
    yield from (Path(home) / "bin" / "nvdisasm" for home in settings.toolkits)
    for root in package_dirs("nvidia"):
        yield from (root / directory / "bin" / "nvdisasm" for directory in ("cu13", "cuda_nvdisasm"))
    if program := shutil.which("nvdisasm", path=f"{settings.path}{os.pathsep}{DEFAULT_HOME}/bin"):
        yield Path(program)
    yield from (root / "backends" / "nvidia" / "bin" / "nvdisasm" for root in package_dirs("triton"))


def run_nvdisasm(program: Path, options: Sequence[str], cubin_path: Path) -> str:
    """Return the listing of a cubin.

    Raises:
        ToolchainError: nvdisasm cannot be run, or does not know the architecture.
    """
    result = run_tool((str(program), *options, str(cubin_path)), f"nvdisasm {program}")
    if result.returncode != 0:
        raise ToolchainError(
            f"nvdisasm {program} failed:\n{(result.stdout + result.stderr).strip()}\n"
            f"If it does not know the architecture, install a newer one: {_INSTALL}"
        )
    return result.stdout
