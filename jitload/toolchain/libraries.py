"""Finds CUDA's libraries, such as cuBLAS, and CUTLASS, for C++ that includes their headers or calls them.

The libraries are in wheels, which torch installs, or in a toolkit. A library is linked by its path. If the process has
already loaded a library of this name, the dynamic loader uses that copy, because it looks libraries up by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jitload.settings import Settings
from jitload.toolchain.cuda import DEFAULT_HOME, CudaToolchain, Nvcc, find_cuda_headers, toolkit_library_dirs
from jitload.toolchain.cutlass import cutlass_dirs, cutlass_hint
from jitload.toolchain.host import first_file, package_dirs
from jitload.words import Argument, Words

# The directory of each library's wheel below `nvidia/`. For CUDA 13, the wheels share the directory `cu13`.
_DIRECTORIES = {
    "cublasLt": "cublas",
    "cublas": "cublas",
    "cudnn": "cudnn",
    "cufft": "cufft",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusparseLt": "cusparselt",
    "cusparse": "cusparse",
    "nccl": "nccl",
    "nvrtc": "cuda_nvrtc",
    "nvJitLink": "nvjitlink",
    "cudart": "cuda_runtime",
}
_SEPARATE = ("cudnn", "cusparselt", "nccl")  # directories of wheels that are separate for CUDA 13, too
LIBRARIES = tuple(_DIRECTORIES)
_FUNCTION = re.compile(rf"(?:({'|'.join(LIBRARIES)})|(?:__)?cuda)[A-Z]\w*")
_MISSING_HEADER = re.compile(r"error: ([\w./+-]+): No such file|cannot open source file \"([\w./+-]+)\"")
_TEMPLATES = re.compile(r"(?:cub|thrust|cuda/std|cuda|nv)/.*")


def library_include_dirs(cuda: CudaToolchain | Nvcc | None) -> tuple[Path, ...]:
    """Return the header directories of CUDA's libraries and CUTLASS in wheels. A compiler is to search these last."""
    names = _wheel_directories(cuda.major) if cuda else ()
    dirs = [root / name / "include" for root in package_dirs("nvidia") for name in names]
    return (*(path for path in dirs if path.is_dir() and not (cuda and path in cuda.include_dirs)), *cutlass_dirs())


def _wheel_directories(major: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_DIRECTORIES.values())) if major < 13 else (f"cu{major}", *_SEPARATE)


def library_of(function: str) -> str:
    """Return the CUDA library that a function belongs to: `cublas` for `cublasCreate`. Return "" for none."""
    match = _FUNCTION.fullmatch(function)
    return match[1] or "cudart" if match else ""


def find_library(library: str, cuda: CudaToolchain | Nvcc) -> Path | None:
    """Return the path of a library, or None. Search wheels, then the toolkit, then the libraries of this process.

    A wheel's CUDA runtime is preferred to the toolkit's, because torch loads it, and the dynamic loader then uses the
    same file for the built library.
    """
    name = f"lib{library}.so" + (f".{cuda.major}" if library == "cudart" else "")  # others have versions of their own
    for directory in (*_wheel_library_dirs(cuda.major), *library_dirs(cuda)):
        if paths := sorted(directory.glob(f"{name}*")):
            return paths[0]
    return next(_loaded(name), None)


def _loaded(name: str) -> Iterator[Path]:
    with suppress(OSError):
        for match in re.finditer(rf"/\S*/{re.escape(name)}\S*", Path("/proc/self/maps").read_text(errors="replace")):
            yield Path(match[0])


def _wheel_library_dirs(major: int) -> Iterator[Path]:
    return (root / name / "lib" for root in package_dirs("nvidia") for name in _wheel_directories(major))


def library_dirs(cuda: CudaToolchain | Nvcc) -> Iterator[Path]:
    """Return the directories that may contain libraries of the toolkit or wheels to which CUDA's headers belong."""
    return (include.parent / name for include in cuda.include_dirs for name in ("lib", "lib64"))


def find_installed(library: str, major: int, settings: Settings) -> Path | None:
    """Return the path of a library with CUDA's major version: `libcudart.so.13` in a wheel or a toolkit, or None."""
    homes = map(Path, (*settings.toolkits, sys.prefix, DEFAULT_HOME, f"{DEFAULT_HOME}-{major}"))
    toolkits = (directory for home in homes for directory in toolkit_library_dirs(home))
    return first_file(directory / f"lib{library}.so.{major}" for directory in (*_wheel_library_dirs(major), *toolkits))


def find_nvjitlink(settings: Settings) -> Path | None:
    """Return the path of the nvJitLink library with NVRTC's major version, or None. One beside NVRTC is preferred."""
    toolchain = find_cuda_headers(settings)
    if toolchain is None:
        return None
    beside = toolchain.nvrtc_path.with_name(f"libnvJitLink.so.{toolchain.major}")
    return beside if beside.is_file() else find_installed("nvJitLink", toolchain.major, settings)


def library_wheel(library: str, major: int) -> str:
    """Return the name of the wheel that has a library and its headers."""
    directory = _DIRECTORIES[library]
    name = f"nvidia-{directory.replace('_', '-')}"
    return name if major >= 13 and directory not in _SEPARATE else f"{name}-cu{major}"


def header_hint(log: str, major: int) -> str:
    """Return what to do about a header that a compiler's log reports as missing, or "" if none is missing."""
    match = _MISSING_HEADER.search(log)
    if match is None:
        return ""
    header = match[1] or match[2]
    if hint := cutlass_hint(header):
        return hint
    if header in ("cuda_profiler_api.h", "cudaProfiler.h"):
        return f"{header} was not found: pip install nvidia-cuda-profiler-api{'' if major >= 13 else '-cu12'}"
    if _TEMPLATES.fullmatch(header):
        wheel = f"nvidia-cuda-cccl{'' if major >= 13 else '-cu12'}"
        return f"{header} belongs to CUDA's C++ libraries: pip install {wheel}"
    library = next((library for library in LIBRARIES if header.lower().startswith(library.lower())), None)
    if library:
        return f"{header} was not found; it comes with: pip install {library_wheel(library, major)}"
    paths = Argument("extra_include_paths", python="extra_include_paths=[…]")
    return Words(f"{header} was not found: pass its directory in ", paths, ".")
