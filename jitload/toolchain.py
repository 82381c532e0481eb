"""Finds NVRTC, the C++ compiler, ninja, tvm-ffi's headers and the target architecture; knows their versions."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from jitload.errors import ToolchainError
from jitload.gpu import driver_version
from jitload.settings import Settings

_INCLUDE_DIR = Path(__file__).parent / "include"
_NVRTC_FILE = re.compile(r"libnvrtc\.so\.(\d+)(?:\.(\d+))?(?:\.(\d+))?$")
_KIT_WHEEL = re.compile(r"nvidia_cuda_(?:nvrtc|runtime|crt|cccl|nvcc)(?:_cu\d+)?-([\d.]+)\.dist-info$")
# Below `nvidia/`, by CUDA's major version: where NVRTC is, and where its headers are.
_WHEEL_DIRS = {
    13: ("cu13/lib", "cu13/include", "cu13/include/cccl"),
    12: ("cuda_nvrtc/lib", "cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"),
}
_HOW_TO_GET_NVRTC = (
    "Install it with: pip install 'jitload[cu13]'  (or 'jitload[cu12]' for a driver older than CUDA 13), "
    "or point JITLOAD_NVRTC to a CUDA toolkit."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """An NVRTC and the headers of the same CUDA release line, which must not be mixed with another's.

    Attributes:
        major: CUDA's major version.
        version: NVRTC's version, (13, 4, 92).
        nvrtc_path: The library.
        include_dirs: Where its headers are.
        identity: Names and versions of what it is made of, without a path: the same on every machine. Where only the
            file's name tells a version, the file's size, time and inode besides.
    """

    major: int
    version: tuple[int, ...]
    nvrtc_path: Path
    include_dirs: tuple[Path, ...]
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The host's C++ compiler: its command, the file that stands behind it, and what it reads of the environment."""

    command: tuple[str, ...]
    path: Path
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvcc:
    """An nvcc and its toolkit's headers; on the road that needs it, this stands in a kit's place.

    Attributes:
        major: CUDA's major version.
        version: nvcc's version, (13, 0, 88).
        path: The program.
        include_dirs: Where the toolkit's headers are; nvcc finds them by itself.
        identity: Its version, without a path.
    """

    major: int
    version: tuple[int, ...]
    path: Path
    include_dirs: tuple[Path, ...]
    identity: str


# ---- NVRTC -----------------------------------------------------------------------------------------------------


def find_kit(settings: Settings) -> Kit:
    """Return the NVRTC to use and its headers.

    The wheels on `sys.path` come first, a toolkit only where there are none or `JITLOAD_NVRTC` asks for it. Of
    several, the newest that the driver can run; without a driver, the newest.

    Raises:
        ToolchainError: There is none, or `JITLOAD_NVRTC` names none.
    """
    return _find_kit(settings.nvrtc, settings.toolkits, tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _find_kit(asked: str, toolkits: tuple[str, ...], _search_path: tuple[str, ...]) -> Kit:
    if asked and not asked.isdigit():
        return _asked_kit(Path(asked).expanduser())
    kits = list(_wheel_kits()) or list(_toolkit_kits(toolkits))
    if asked:
        kits = [kit for kit in kits if kit.major == int(asked)]
    if not kits:
        which = f"NVRTC {asked} (JITLOAD_NVRTC={asked})" if asked else "NVRTC"
        raise ToolchainError(f"{which} was not found: compiling CUDA source needs it. {_HOW_TO_GET_NVRTC}")
    return _newest_for_driver(kits)


def _newest_for_driver(kits: list[Kit]) -> Kit:
    kits.sort(key=lambda kit: kit.version, reverse=True)
    if len({kit.major for kit in kits}) > 1 and (driver := driver_version()):
        return next((kit for kit in kits if kit.major <= driver[0]), kits[-1])
    return kits[0]


def _wheel_kits() -> Iterator[Kit]:
    """Yield a kit for each CUDA major among NVIDIA's wheels; their files may be spread over several directories."""
    roots = package_dirs("nvidia")
    versions = sorted({name for root in roots for name in _wheel_names(root.parent)})
    for major, (home, *parts) in _WHEEL_DIRS.items():
        libraries = [file for root in roots for file in _nvrtc_files(root / home, major)]
        if libraries:
            yield Kit(
                major=major,
                version=_wheel_version(versions, major),
                nvrtc_path=libraries[0],
                include_dirs=_existing(root / part for root in roots for part in parts),
                identity=" ".join(name for name in versions if ("_cu12-" in name) == (major == 12))
                or f"wheel {major} {_state_of(libraries[0])}",
            )


def package_dirs(name: str) -> list[Path]:
    """Return the directories of an installed package, without importing it."""
    spec = find_spec(name)
    return [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []


def _state_of(path: Path) -> str:
    """Return what tells a file from another that takes its place."""
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _wheel_names(site_dir: Path) -> Iterator[str]:
    for name in os.listdir(site_dir):
        if name[:12] == "nvidia_cuda_" and _KIT_WHEEL.match(name):
            yield name.removesuffix(".dist-info")


def _wheel_version(names: list[str], major: int) -> tuple[int, ...]:
    prefix = "nvidia_cuda_nvrtc_cu12-" if major == 12 else "nvidia_cuda_nvrtc-"
    found = next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), f"{major}.0")
    return _numbers(found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _nvrtc_files(directory: Path, major: int | None = None) -> list[Path]:
    """Return the NVRTC libraries of a directory, the fullest version name first."""
    names = os.listdir(directory) if directory.is_dir() else []
    found = [match for name in names if (match := _NVRTC_FILE.match(name))]
    found = [match for match in found if major is None or int(match[1]) == major]
    return [directory / match[0] for match in sorted(found, key=lambda match: len(match[0]), reverse=True)]


def _existing(directories: Iterator[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(directory for directory in directories if directory.is_dir()))


def _toolkit_kits(toolkits: tuple[str, ...]) -> Iterator[Kit]:
    homes = (*toolkits, sys.prefix, "/usr/local/cuda")
    for home in dict.fromkeys(Path(home) for home in homes):
        if kit := _toolkit_kit(home):
            yield kit


def _toolkit_kit(home: Path, nvrtc_path: Path | None = None) -> Kit | None:
    lib_dirs = (home / "lib64", home / "lib", *home.glob("targets/*/lib"))
    files = [nvrtc_path] if nvrtc_path else [file for lib_dir in lib_dirs for file in _nvrtc_files(lib_dir)]
    if not files:
        return None
    version = next((_numbers(match[0]) for file in files if (match := _NVRTC_FILE.search(file.resolve().name))), (0,))
    includes = (home / "include", *home.glob("targets/*/include"))
    return Kit(
        major=version[0],
        version=version,
        nvrtc_path=files[0],
        include_dirs=_existing(path for include in includes for path in (include, include / "cccl")),
        identity=f"toolkit {'.'.join(map(str, version))} {_state_of(files[0])}",
    )


def _asked_kit(path: Path) -> Kit:
    """Return the kit of a libnvrtc file, or of a toolkit's directory."""
    if path.is_file():
        home = path.parent.parent
        kit = _toolkit_kit(home if (home / "include").is_dir() else home.parent, path)
    else:
        kit = _toolkit_kit(path)
    if kit is None:
        raise ToolchainError(f"JITLOAD_NVRTC={path}: no libnvrtc.so there. {_HOW_TO_GET_NVRTC}")
    return kit


def find_cuda_headers(settings: Settings) -> Kit | None:
    """Return the kit whose headers the host's code may include, or None: hand-written wrappers need none."""
    try:
        return find_kit(settings)
    except ToolchainError:
        if settings.nvrtc:
            raise
        return None


def find_cudart(kit: Kit | Nvcc) -> Path | None:
    """Return the CUDA runtime library of a kit; NVIDIA's wheel has it under its full name only."""
    name = f"libcudart.so.{kit.major}"
    places = (include.parent / lib / name for include in kit.include_dirs for lib in ("lib", "lib64"))
    return next((place for place in places if place.is_file()), None)


def nvrtc_include_dirs(kit: Kit, user_dirs: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return the header directories for device code, in the order in which NVRTC is to search them.

    Ours come before the user's because /usr/include is often among those, and glibc's headers do not work in NVRTC.
    Shorter headers come from memory, `device/nvrtc_headers.py`.
    """
    return (_INCLUDE_DIR / "nvrtc", *user_dirs, *kit.include_dirs)


# ---- the host's tools ------------------------------------------------------------------------------------------


def find_compiler(settings: Settings) -> Compiler:
    """Return the C++ compiler: `JITLOAD_CXX` or `CXX`, else `c++`, `g++` or `clang++` on the PATH.

    Raises:
        ToolchainError: There is none.
    """
    return _find_compiler(settings.cxx, settings.path, settings.environment)


@functools.lru_cache(maxsize=8)
def _find_compiler(asked: str, path: str, environment: tuple[str, ...]) -> Compiler:
    try:
        names = [shlex.split(asked)] if asked else [["c++"], ["g++"], ["clang++"]]
    except ValueError as error:
        raise ToolchainError(f"JITLOAD_CXX or CXX is {asked!r}, which is no command: {error}") from error
    for command in names:
        if command and (found := shutil.which(command[0], path=path)):
            return Compiler(command=(found, *command[1:]), path=Path(found).resolve(), environment=environment)
    wanted = f"{asked!r} (from JITLOAD_CXX or CXX)" if asked else "c++, g++ or clang++"
    raise ToolchainError(
        f"no C++ compiler: {wanted} is not on the PATH. Install one (apt install g++, or dnf install gcc-c++), or "
        "without root: pip install ziglang, and set JITLOAD_CXX='python -m ziglang c++'."
    )


def find_ninja(settings: Settings) -> Path:
    """Return the ninja binary: the one of this Python environment, else the one on the PATH.

    Raises:
        ToolchainError: There is none.
    """
    return _find_ninja(settings.path)


@functools.lru_cache(maxsize=8)
def _find_ninja(path: str) -> Path:
    near = os.pathsep.join((sysconfig.get_path("scripts"), str(Path(sys.executable).parent)))
    inside = package_dirs("ninja")
    near = os.pathsep.join(
        (near, *(str(root / "data" / "bin") for root in inside), *(str(root.parent / "bin") for root in inside))
    )
    if found := shutil.which("ninja", path=near) or shutil.which("ninja", path=path):
        return Path(found)
    raise ToolchainError("ninja was not found. Install it with: pip install ninja")


def tvm_ffi_include_dirs() -> tuple[Path, ...]:
    """Return where tvm-ffi's C headers and DLPack's are, without importing tvm-ffi.

    Raises:
        ToolchainError: tvm-ffi is not installed.
    """
    for root in package_dirs("tvm_ffi"):
        dirs = (root / "include", root / "3rdparty" / "dlpack" / "include")
        if (dirs[0] / "tvm" / "ffi" / "c_api.h").is_file():
            return tuple(directory for directory in dirs if directory.is_dir())
    raise ToolchainError("tvm-ffi's headers were not found. Install it with: pip install apache-tvm-ffi")


@functools.lru_cache(maxsize=1)
def tvm_ffi_version() -> str:
    """Return tvm-ffi's version as it was installed: `TVMFFIGetVersion` is one ahead in post releases."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("apache-tvm-ffi")
    except PackageNotFoundError:
        return ""


def own_include_dir() -> Path:
    """Return the directory of jitload's own headers for the host compiler."""
    return _INCLUDE_DIR / "jitload"
