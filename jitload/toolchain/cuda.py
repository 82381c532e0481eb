"""Finds NVRTC and the CUDA headers, and chooses a release that the driver can run."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from jitload.errors import ToolchainError
from jitload.settings import Settings
from jitload.toolchain.arch import driver_version
from jitload.toolchain.host import INCLUDE_DIR, first_file, package_dirs

_NVRTC_FILE = re.compile(r"libnvrtc\.so\.(\d+)(?:\.(\d+))?(?:\.(\d+))?$")
_CUDA_WHEEL = re.compile(r"nvidia_cu(?:da_(?:nvrtc|runtime|crt|cccl|nvcc)|rand)(?:_cu\d+)?-([\d.]+)\.dist-info$")
# Directories below `nvidia/` by CUDA's major version: first the directory of NVRTC, then those of its headers.
_WHEEL_DIRS = {
    13: ("cu13/lib", "cu13/include", "cu13/include/cccl"),
    12: ("cuda_nvrtc/lib", "cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include", "curand/include"),
}
# One header of each group of CUDA's headers. Wheels often bring NVRTC without some groups: torch's have only the first.
_HEADER_GROUPS = ("cuda_fp16.h", "crt/host_config.h", "cuda/std/type_traits", "nv/target")
_RELEASE_MACRO = re.compile(rb"#define CUDART_VERSION +(\d+)")
DEFAULT_HOME = "/usr/local/cuda"  # where NVIDIA's installer puts a toolkit
_TARGETS = {"x86_64": ("x86_64-linux",), "aarch64": ("sbsa-linux", "aarch64-linux")}


class CudaToolchain(NamedTuple):
    """An NVRTC library and the headers of its CUDA release. NVRTC must not be used with headers of another release.

    Attributes:
        major: CUDA's major version.
        version: NVRTC's version, (13, 4, 92).
        nvrtc_path: The library.
        include_dirs: The directories with CUDA's headers.
        identity: The names and versions of the wheels or the toolkit, for the cache key. Paths are left out, because
            they differ between machines. A file outside known wheels adds its size, modification time and inode.
    """

    major: int
    version: tuple[int, ...]
    nvrtc_path: Path
    include_dirs: tuple[Path, ...]
    identity: str


class Nvcc(NamedTuple):
    """An nvcc, which compiles sources that launch kernels from C++, and the headers of its toolkit.

    Attributes:
        major: CUDA's major version.
        version: nvcc's version, (13, 0, 88).
        path: The program.
        include_dirs: The directories with the toolkit's headers.
        identity: The versions of nvcc and its wheels, and nvcc's flags in the environment, for the cache key.
        added_include_dirs: The directories in `include_dirs` that nvcc does not search by itself.
    """

    major: int
    version: tuple[int, ...]
    path: Path
    include_dirs: tuple[Path, ...]
    identity: str
    added_include_dirs: tuple[Path, ...] = ()


def find_cuda_toolchain(settings: Settings) -> CudaToolchain:
    """Return the NVRTC to use and its headers.

    Wheels on `sys.path` are preferred to toolkits, and newer releases to older ones. A release that the driver cannot
    run is chosen only if there is no other. `JITLOAD_NVRTC` overrides this choice with a path or a major version.
    Headers that the wheels lack are taken from a toolkit of the same release, if there is one.

    Raises:
        ToolchainError: There is no NVRTC, or not the one that `JITLOAD_NVRTC` names.
    """
    return _find_cuda_toolchain(settings.nvrtc, settings.toolkits, settings.path, tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _find_cuda_toolchain(
    requested: str, homes: tuple[str, ...], path: str, _search_path: tuple[str, ...]
) -> CudaToolchain:
    if requested and not requested.isdigit():
        return _requested_toolchain(Path(requested).expanduser())
    toolchains = list(_wheel_toolchains()) or list(_toolkits(homes))
    if requested:
        toolchains = [toolchain for toolchain in toolchains if toolchain.major == int(requested)]
    if not toolchains:
        name = f"NVRTC {requested} (JITLOAD_NVRTC={requested})" if requested else "NVRTC"
        raise ToolchainError(f"{name} was not found: compiling CUDA source needs it. {_how_to_get_nvrtc(requested)}")
    return _add_toolkit_headers(_newest_for_driver(toolchains), homes, path)


def _how_to_get_nvrtc(requested: str) -> str:
    older = "" if requested == "12" else "  (or 'jitload[cu12]' for a driver older than CUDA 13)"
    major = int(requested) if requested.isdigit() else 13
    return f"Install it with: pip install {extra_of(major)}{older}, or point JITLOAD_NVRTC to a CUDA toolkit."


def extra_of(major: int) -> str:
    """Return what to install with pip for a CUDA version: `'jitload[cu12]'` for 12, else `'jitload[cu13]'`."""
    return f"'jitload[cu{12 if major == 12 else 13}]'"


def _newest_for_driver(toolchains: list[CudaToolchain]) -> CudaToolchain:
    toolchains.sort(key=lambda toolchain: toolchain.version, reverse=True)
    if len({toolchain.major for toolchain in toolchains}) > 1 and (driver := driver_version()):
        return next((toolchain for toolchain in toolchains if toolchain.major <= driver[0]), toolchains[-1])
    return toolchains[0]


# ---- NVIDIA's wheels -------------------------------------------------------------------------------------------


def _wheel_toolchains() -> Iterator[CudaToolchain]:
    """Yield a toolchain for each major version of CUDA in NVIDIA's wheels. The wheels may be in several directories."""
    roots = package_dirs("nvidia")
    wheels = sorted({wheel for root in roots for wheel in _cuda_wheels(root.parent)})
    for major, (library_dir, *include_dirs) in _WHEEL_DIRS.items():
        libraries = [path for root in roots for path in _nvrtc_files(root / library_dir, major)]
        if libraries:
            yield CudaToolchain(
                major=major,
                version=_nvrtc_wheel_version(wheels, major),
                nvrtc_path=libraries[0],
                include_dirs=_existing_dirs(root / include_dir for root in roots for include_dir in include_dirs),
                identity=" ".join(wheel for wheel in wheels if ("_cu12-" in wheel) == (major == 12))
                or f"wheel {major} {_file_state(libraries[0])}",
            )


def _cuda_wheels(site_dir: Path) -> Iterator[str]:
    """Yield the name and version of each of CUDA's wheels in a directory, as one str: `nvidia_cuda_nvrtc-13.5.37`."""
    for name in os.listdir(site_dir):
        if name[:9] == "nvidia_cu" and _CUDA_WHEEL.match(name):
            yield name.removesuffix(".dist-info")


def _nvrtc_wheel_version(wheels: list[str], major: int) -> tuple[int, ...]:
    prefix = "nvidia_cuda_nvrtc_cu12-" if major == 12 else "nvidia_cuda_nvrtc-"
    version = next((wheel.removeprefix(prefix) for wheel in wheels if wheel.startswith(prefix)), f"{major}.0")
    return _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in version.split(".") if part.isdecimal()
    )  # compiling a regex would slow a hit down


def _nvrtc_files(directory: Path, major: int | None = None) -> list[Path]:
    """Return the NVRTC libraries in a directory, longest names first: these have the most complete versions."""
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [match for name in names if (match := _NVRTC_FILE.match(name))]
    matches = [match for match in matches if major is None or int(match[1]) == major]
    return [directory / match[0] for match in sorted(matches, key=lambda match: len(match[0]), reverse=True)]


def _existing_dirs(directories: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(directory for directory in directories if directory.is_dir()))


def _file_state(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


# ---- CUDA toolkits ---------------------------------------------------------------------------------------------


def _toolkits(homes: tuple[str, ...]) -> Iterator[CudaToolchain]:
    yield from filter(None, map(_toolkit, _toolkit_homes(homes)))


def _toolkit_homes(homes: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the directories that may be toolkits: `homes`, which come from the environment, and the usual ones."""
    return tuple(dict.fromkeys(map(Path, (*homes, sys.prefix, DEFAULT_HOME))))


def _add_toolkit_headers(toolchain: CudaToolchain, homes: tuple[str, ...], path: str) -> CudaToolchain:
    """Return the toolchain. Add the CUDA headers that it lacks from a toolkit of the same release, if there is one."""
    missing = [header for header in _HEADER_GROUPS if not _has_header(toolchain.include_dirs, header)]
    if not missing:
        return toolchain
    nvcc = shutil.which("nvcc", path=path)
    release = toolchain.version[:2]
    defaults = (DEFAULT_HOME, "{}-{}.{}".format(DEFAULT_HOME, *release))
    candidates = (*homes, *([str(Path(nvcc).resolve().parents[1])] if nvcc else ()), *defaults)
    for home in dict.fromkeys(map(Path, candidates)):
        include_dirs = toolkit_include_dirs(home)
        marker = first_file(directory / "cuda_runtime_api.h" for directory in include_dirs)
        if marker and _release_of(marker) == release and any(_has_header(include_dirs, name) for name in missing):
            return toolchain._replace(
                include_dirs=(*toolchain.include_dirs, *include_dirs),
                identity=f"{toolchain.identity} toolkit headers {_file_state(marker)}",
            )
    return toolchain


def _has_header(include_dirs: Iterable[Path], header: str) -> bool:
    return first_file(directory / header for directory in include_dirs) is not None


def _release_of(runtime_header: Path) -> tuple[int, int]:
    """Return the CUDA release, (13, 0), that `cuda_runtime_api.h` defines near its beginning."""
    with runtime_header.open("rb") as file:
        match = _RELEASE_MACRO.search(file.read(1 << 14))
    number = int(match[1]) if match else 0
    return number // 1000, number % 1000 // 10


def toolkit_include_dirs(home: Path) -> tuple[Path, ...]:
    """Return the directories with a toolkit's headers."""
    return _existing_dirs(
        directory for include in _platform_dirs(home, "include") for directory in (include, include / "cccl")
    )


def _toolkit(home: Path, nvrtc_path: Path | None = None) -> CudaToolchain | None:
    library_dirs = toolkit_library_dirs(home)
    files = [nvrtc_path] if nvrtc_path else [path for directory in library_dirs for path in _nvrtc_files(directory)]
    if not files:
        return None
    version = next((_numbers(match[0]) for path in files if (match := _NVRTC_FILE.search(path.resolve().name))), (0,))
    return CudaToolchain(
        major=version[0],
        version=version,
        nvrtc_path=files[0],
        include_dirs=toolkit_include_dirs(home),
        identity=f"toolkit {'.'.join(map(str, version))} {_file_state(files[0])}",
    )


def toolkit_library_dirs(home: Path) -> tuple[Path, ...]:
    """Return the directories that may contain a toolkit's libraries."""
    return (home / "lib64", *_platform_dirs(home, "lib"))


def _platform_dirs(home: Path, name: str) -> tuple[Path, ...]:
    return (home / name, *(home / "targets" / target / name for target in _TARGETS.get(platform.machine(), ())))


def _requested_toolchain(path: Path) -> CudaToolchain:
    """Return the toolchain at a path: a libnvrtc file, or a toolkit's directory."""
    if path.is_file():
        home = path.parent.parent
        toolchain = _toolkit(home if (home / "include").is_dir() else home.parent, path)
    else:
        toolchain = _toolkit(path)
    if toolchain is None:
        raise ToolchainError(
            f"JITLOAD_NVRTC={path}: no libnvrtc.so there. Name a CUDA toolkit or a libnvrtc.so, or unset the variable "
            f"and install NVRTC with: pip install {extra_of(13)}"
        )
    return toolchain


# ---- headers ---------------------------------------------------------------------------------------------------


def find_cuda_headers(settings: Settings) -> CudaToolchain | None:
    """Return the toolchain whose headers host code may include, or None if there is none.

    A missing toolchain is not an error, because hand-written wrappers do not need CUDA's headers.

    Raises:
        ToolchainError: `JITLOAD_NVRTC` is set but does not name a toolchain.
    """
    try:
        return find_cuda_toolchain(settings)
    except ToolchainError:
        if settings.nvrtc:
            raise
        return None


def nvrtc_include_dirs(toolchain: CudaToolchain, user_dirs: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return the header directories for device code, in the order in which NVRTC is to search them.

    jitload's directory comes before the user's directories, because these often include /usr/include, and glibc's
    headers do not work in NVRTC. jitload's short headers are not in a directory: they are passed in memory, see
    `cuda/headers.py`.
    """
    return (INCLUDE_DIR / "nvrtc", *user_dirs, *toolchain.include_dirs)
