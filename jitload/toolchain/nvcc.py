"""Finds nvcc, which compiles sources that launch kernels with `<<<…>>>`, nvdisasm and compute-sanitizer."""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from jitload.errors import ToolchainError
from jitload.settings import Settings
from jitload.toolchain.cuda import DEFAULT_HOME, Nvcc, toolkit_include_dirs
from jitload.toolchain.fingerprints import file_state, remembered
from jitload.toolchain.host import package_dirs, run_tool

_WITHOUT_NVCC = (
    "There are two ways without nvcc: name only kernels in functions= and declare their launches, "
    "functions={'f': Launch(grid=…, block=…)}; or compile the kernels with compile_cubin() and launch them from C++ of "
    "your own, with embed_cubin=."
)
_INSTALL = "pip install 'jitload[cu13,nvcc]'"
# The wheels that nvcc consists of, and a file of each wheel below `nvidia/cu13`.
_PARTS = {
    "nvidia_cuda_nvcc": "bin/nvcc",
    "nvidia_nvvm": "nvvm/bin/cicc",
    "nvidia_cuda_crt": "include/crt/host_config.h",
    "nvidia_cuda_runtime": "include/cuda_runtime.h",
}
_HEADERS = (_PARTS["nvidia_cuda_crt"], _PARTS["nvidia_cuda_runtime"], "include/cccl/cuda/std/type_traits")
_PART = re.compile(r"(nvidia_(?:cuda_(?:nvcc|crt|runtime|cccl)|nvvm))-([\d.]+)\.dist-info$")
_PROGRAMS = ("bin/nvcc", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "bin/nvlink", "bin/bin2c", "nvvm/bin/cicc")


def find_nvcc(settings: Settings, cache_dir: Path, *, name: str) -> Nvcc:
    """Return the first nvcc found in `JITLOAD_NVCC`, `CUDA_HOME`, `CUDA_PATH`, wheels, the PATH and /usr/local/cuda.

    The version of nvcc is kept in the cache. A cache hit only checks whether nvcc's files have changed.

    Raises:
        ToolchainError: There is no nvcc, or its wheels are incomplete or of different releases. The message says what
            to install.
    """
    nvcc = _find_in_settings(settings, cache_dir) or _find_in_wheels(cache_dir) or _find_installed(settings, cache_dir)
    if nvcc is None:
        raise ToolchainError(
            f"module {name!r} launches kernels from C++, which needs nvcc, and nvcc was not found. Install it with: "
            f"{_INSTALL}  (CUDA 12's wheels have no nvcc: install a toolkit of CUDA 12 and set CUDA_HOME to it, or "
            f"JITLOAD_NVCC to its nvcc). {_WITHOUT_NVCC}"
        )
    flags = " ".join(settings.nvcc_flags).strip()
    return nvcc._replace(identity=f"{nvcc.identity} {flags}") if flags else nvcc


def _find_in_settings(settings: Settings, cache_dir: Path) -> Nvcc | None:
    if settings.nvcc:
        path = Path(settings.nvcc).expanduser()
        for program in (path, path / "bin" / "nvcc"):
            if _is_program(program):
                return _describe(program, cache_dir)
        raise ToolchainError(f"JITLOAD_NVCC={settings.nvcc}: no nvcc there. Name its file, or the toolkit's directory.")
    programs = (Path(home) / "bin" / "nvcc" for home in settings.toolkits)
    return next((_describe(program, cache_dir) for program in programs if _is_program(program)), None)


def _find_installed(settings: Settings, cache_dir: Path) -> Nvcc | None:
    program = shutil.which("nvcc", path=settings.path) or shutil.which("nvcc", path=f"{DEFAULT_HOME}/bin")
    return _describe(Path(program), cache_dir) if program else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


# ---- NVIDIA's wheels ---------------------------------------------------------------------------------------------


def _find_in_wheels(cache_dir: Path) -> Nvcc | None:
    homes = [root / "cu13" for root in package_dirs("nvidia")]
    home = next((home for home in homes if (home / "bin" / "nvcc").is_file()), None)
    if home is None:
        return None
    versions = _check_parts(home, tuple(homes))
    nvcc = _describe(home / "bin" / "nvcc", cache_dir, home)
    if not all((home / header).is_file() for header in _HEADERS):  # nvcc finds only the headers beside itself
        added = tuple(path for other in homes if other != home for path in toolkit_include_dirs(other))
        nvcc = nvcc._replace(include_dirs=(*nvcc.include_dirs, *added), added_include_dirs=added)
    return nvcc._replace(identity=f"{nvcc.identity} {versions}")


@functools.lru_cache(maxsize=4)
def _check_parts(home: Path, homes: tuple[Path, ...]) -> str:
    """Return the names and versions of nvcc's wheels, after checking that they are complete and of one CUDA release."""
    for part, file in _PARTS.items():
        if not any((directory / file).is_file() for directory in (homes if "include/" in file else (home,))):
            wheel = part.replace("_", "-")
            raise ToolchainError(f"the nvcc in {home} also needs the wheel {wheel}, which was not found: {_INSTALL}")
    names = [name for other in (*reversed(homes), home) for name in os.listdir(other.parents[1])]
    wheels = {match[1]: match[2] for match in filter(None, map(_PART.fullmatch, names))}
    releases = {part: version.split(".")[:2] for part, version in wheels.items() if part in _PARTS}
    # Other packages, such as torch, depend on one release of the runtime, so the command keeps the runtime.
    kept = releases.get("nvidia_cuda_runtime") or releases.get("nvidia_cuda_nvcc")
    if wrong := [part for part, release in releases.items() if release != kept]:
        found = ", ".join(f"{part.replace('_', '-')} {wheels[part]}" for part in releases)
        release = ".".join(kept or ())
        command = " ".join(f"'{part.replace('_', '-')}=={release}.*'" for part in sorted(wrong))
        raise ToolchainError(
            f"the wheels {found} do not work together, because they are of different releases of CUDA: "
            f"pip install {command}"
        )
    _make_executable(home)
    return " ".join(f"{part}-{version}" for part, version in sorted(wheels.items()))


def _make_executable(home: Path) -> None:
    """Mark the programs in wheels as executable, because some installers do not."""
    for path in (home / program for program in _PROGRAMS):
        if path.is_file() and not os.access(path, os.X_OK):
            try:
                path.chmod(path.stat().st_mode | 0o111)
            except OSError as error:
                raise ToolchainError(f"{path} was installed without permission to run it: chmod +x {path}") from error


# ---- an nvcc -----------------------------------------------------------------------------------------------------


def _describe(path: Path, cache_dir: Path, home: Path | None = None) -> Nvcc:
    """Return the `Nvcc` for the program at `path`. If its toolkit's directory, `home`, is None, find the directory."""
    program = path if home else path.resolve()
    states = [file_state(program)]
    if home is None:
        home = program.parent.parent
        if not _is_machine_code(program):  # the nvcc of a distribution is a script that knows where the toolkit is
            home = Path(remembered(("home", *states), cache_dir, lambda: _ask_home(program)))
            states += [file_state(nvcc) for nvcc in (home / "bin" / "nvcc",) if nvcc.is_file()]
    release = remembered(("release", *states), cache_dir, lambda: _ask_release(program))
    version = tuple(map(int, re.findall(r"\d+", release)))
    return Nvcc(
        major=version[0],
        version=version,
        path=program,
        include_dirs=toolkit_include_dirs(home),
        identity=f"nvcc {release}",
    )


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


def run_nvcc(command: Sequence[str], *, directory: Path | None = None) -> str:
    """Run an nvcc command, and return what it prints on both streams, whatever its exit status."""
    result = run_tool(command, f"nvcc {command[0]}", directory=directory)
    return result.stdout + result.stderr


# ---- nvdisasm and compute-sanitizer ---------------------------------------------------------------------------------

_INSTALL_NVDISASM = "pip install 'jitload[inspect]'"
_INSTALL_SANITIZER = (
    "pip install nvidia-cuda-sanitizer-api  (for drivers of CUDA 12: apt-get install cuda-sanitizer-12-9, from "
    "NVIDIA's repository)"
)


def find_nvdisasm(settings: Settings) -> Path:
    """Return the first nvdisasm found in `CUDA_HOME`, `CUDA_PATH`, wheels, the PATH, /usr/local/cuda and Triton."""
    return _find_program("nvdisasm", settings, "showing machine code", _INSTALL_NVDISASM)


def find_compute_sanitizer(settings: Settings) -> Path:
    """Return the first compute-sanitizer found in `CUDA_HOME`, `CUDA_PATH`, wheels, the PATH and /usr/local/cuda."""
    return _find_program("compute-sanitizer", settings, "checking a call on a GPU", _INSTALL_SANITIZER)


def _find_program(name: str, settings: Settings, purpose: str, command: str) -> Path:
    for path in _candidates(settings, name):
        if _is_program(path):
            return path
    raise ToolchainError(f"{purpose} needs {name}, which was not found. Install it with: {command}")


def _candidates(settings: Settings, name: str) -> Iterator[Path]:
    yield from (Path(home) / "bin" / name for home in settings.toolkits)
    for root in package_dirs("nvidia"):
        yield from (root / directory / "bin" / name for directory in ("cu13", "cuda_nvdisasm"))
    if program := shutil.which(name, path=f"{settings.path}{os.pathsep}{DEFAULT_HOME}/bin"):
        yield Path(program)
    yield from (root / "backends" / "nvidia" / "bin" / name for root in package_dirs("triton"))


def run_nvdisasm(program: Path, options: Sequence[str], cubin_path: Path) -> str:
    """Run nvdisasm on a cubin and return its listing."""
    result = run_tool((str(program), *options, str(cubin_path)), f"nvdisasm {program}")
    if result.returncode != 0:
        raise ToolchainError(
            f"nvdisasm {program} failed:\n{(result.stdout + result.stderr).strip()}\n"
            f"If it does not know the architecture, install a newer one: {_INSTALL_NVDISASM}"
        )
    return result.stdout
