"""Finds nvcc, which compiles sources that contain kernels and the C++ that launches them with `<<<…>>>`."""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from jitload.errors import ToolchainError
from jitload.settings import Settings
from jitload.toolchain.cuda import Nvcc, toolkit_include_dirs
from jitload.toolchain.host import file_state, remembered, tool_environment

_WITHOUT_NVCC = (
    "There are two ways without nvcc: pass only the kernels in cuda_sources and declare the launch, "
    "functions={'f': Launch(grid=…, block=…)}; or compile them with compile_cubin() and launch them from C++ of your "
    "own, with embed_cubin=."
)


def find_nvcc(settings: Settings, cache_dir: Path, *, name: str) -> Nvcc:
    """Return nvcc: `JITLOAD_NVCC`, else that of `CUDA_HOME` or `CUDA_PATH`, else the one on the PATH.

    Its version is kept in the cache, so that a cache hit checks the state of its files and does not start it.

    Raises:
        ToolchainError: There is none; the message names the module and the alternatives.
    """
    path = _locate(settings.nvcc, settings.toolkits, settings.path)
    if path is None:
        raise ToolchainError(
            f"module {name!r} launches kernels with <<<…>>>, which takes nvcc, and nvcc is neither on the PATH nor in "
            "CUDA_HOME. Install a CUDA toolkit and set CUDA_HOME to it, or JITLOAD_NVCC to its nvcc. " + _WITHOUT_NVCC
        )
    nvcc = _describe(path, cache_dir)
    flags = " ".join(settings.nvcc_flags).strip()
    return nvcc._replace(identity=f"{nvcc.identity} {flags}") if flags else nvcc


def _locate(requested: str, toolkits: Sequence[str], search_path: str) -> Path | None:
    if requested:
        path = Path(requested).expanduser()
        if _is_program(path):
            return path
        if _is_program(path / "bin" / "nvcc"):
            return path / "bin" / "nvcc"
        raise ToolchainError(f"JITLOAD_NVCC={requested}: no nvcc there. Name its file, or the toolkit's directory.")
    for home in toolkits:
        if _is_program(nvcc := Path(home) / "bin" / "nvcc"):
            return nvcc
    program = shutil.which("nvcc", path=search_path)
    return Path(program) if program else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _describe(path: Path, cache_dir: Path) -> Nvcc:
    program = path.resolve()
    home, states = program.parent.parent, [_state(program)]
    if not _is_machine_code(program):  # nvcc of a distribution is a script, which knows where the toolkit is
        home = Path(remembered(("home", *states), str(program), cache_dir, lambda: _ask_home(program)))
        states += [_state(nvcc) for nvcc in (home / "bin" / "nvcc",) if nvcc.is_file()]
    release = remembered(("release", *states), str(program), cache_dir, lambda: _ask_release(program))
    version = tuple(map(int, re.findall(r"\d+", release)))
    return Nvcc(
        major=version[0],
        version=version,
        path=program,
        include_dirs=toolkit_include_dirs(home),
        identity=f"nvcc {release}",
    )


def _state(path: Path) -> str:
    return file_state(str(path), path.stat())


@functools.lru_cache(maxsize=16)
def _is_machine_code(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _ask_home(path: Path) -> str:
    output = run_nvcc([str(path), "--dryrun", "-E", "-x", "cu", os.devnull])
    if match := re.search(r"^#\$ TOP=(.+)$", output, re.MULTILINE):
        return str(Path(match[1]).resolve())
    raise ToolchainError(f"nvcc {path} does not print where its toolkit is:\n{output.rstrip()}")


def _ask_release(path: Path) -> str:
    output = run_nvcc([str(path), "--version"])
    if match := re.search(r"\bV(\d+\.\d+\.\d+)", output):
        return match[1]
    raise ToolchainError(f"nvcc {path} does not print its version:\n{output.rstrip()}")


def run_nvcc(command: Sequence[str]) -> str:
    """Return what an nvcc prints.

    Raises:
        ToolchainError: It cannot be run.
    """
    import subprocess  # a hit starts no process

    try:
        result = subprocess.run(
            command, env=tool_environment(), capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"nvcc cannot be run: {command[0]}: {error}") from error
    return result.stdout + result.stderr
