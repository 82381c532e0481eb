"""Finds the host's C++ compiler, ninja, and the headers of tvm-ffi and of jitload itself."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from jitload.errors import ToolchainError
from jitload.settings import Settings

_INCLUDE_DIR = Path(__file__).parents[1] / "include"


# Variables that change only what ninja and compilers print (colours, links, the language), or that a `make` sets.
_OUTPUT_VARIABLES = frozenset(
    (
        *(
            "CLICOLOR_FORCE",
            "CLICOLOR",
            "FORCE_COLOR",
            "NINJA_STATUS",
            "NINJAFLAGS",
            "GCC_COLORS",
            "GCC_URLS",
            "TERM_URLS",
        ),
        *(
            "GCC_EXTRA_DIAGNOSTIC_OUTPUT",
            "DEPENDENCIES_OUTPUT",
            "SUNPRO_DEPENDENCIES",
            "MAKEFLAGS",
            "MFLAGS",
            "CUDAFLAGS",
        ),
        *("LANGUAGE", "LC_ALL", "LC_MESSAGES"),
    )
)


class Compiler(NamedTuple):
    """The host's C++ compiler: its command, the executable behind it, and the variables that it reads."""

    command: tuple[str, ...]
    path: Path
    environment: tuple[str, ...] = ()


def find_compiler(settings: Settings) -> Compiler:
    """Return the C++ compiler: `JITLOAD_CXX` or `CXX`, else `c++`, `g++` or `clang++` on the PATH.

    Raises:
        ToolchainError: There is none.
    """
    return _find_compiler(settings.cxx, settings.path, settings.environment)


@functools.lru_cache(maxsize=8)
def _find_compiler(requested: str, search_path: str, environment: tuple[str, ...]) -> Compiler:
    try:
        commands = [shlex.split(requested)] if requested else [["c++"], ["g++"], ["clang++"]]
    except ValueError as error:
        raise ToolchainError(f"JITLOAD_CXX or CXX is {requested!r}, which is not a command: {error}") from error
    for command in commands:
        if command and (program := shutil.which(command[0], path=search_path)):
            return Compiler(command=(program, *command[1:]), path=Path(program).resolve(), environment=environment)
    names = f"{requested!r} (from JITLOAD_CXX or CXX)" if requested else "c++, g++ or clang++"
    raise ToolchainError(
        f"no C++ compiler: {names} is not on the PATH. Install one (apt install g++, or dnf install gcc-c++), or "
        "without root: pip install ziglang, and set JITLOAD_CXX='python -m ziglang c++'."
    )


def tool_environment() -> dict[str, str]:
    """Return the environment for ninja and compilers, in which they print plain English that jitload can read.

    Notebooks set `CLICOLOR_FORCE`, for example, and ninja then colours its output. A user's locale still decides about
    characters: `LC_ALL` becomes `LC_CTYPE`.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _OUTPUT_VARIABLES}
    if locale := os.environ.get("LC_ALL"):
        variables["LC_CTYPE"] = locale
    return variables | {"LC_MESSAGES": "C"}


def find_ninja(settings: Settings) -> Path:
    """Return the ninja binary: the one in this Python environment, or else the one on the PATH.

    Raises:
        ToolchainError: There is none.
    """
    return _find_ninja(settings.path)


@functools.lru_cache(maxsize=8)
def _find_ninja(search_path: str) -> Path:
    packages = package_dirs("ninja")
    own_dirs = (
        sysconfig.get_path("scripts"),
        str(Path(sys.executable).parent),
        *(str(directory) for root in packages for directory in (root / "data" / "bin", root.parent / "bin")),
    )
    if program := shutil.which("ninja", path=os.pathsep.join(own_dirs)) or shutil.which("ninja", path=search_path):
        return Path(program)
    raise ToolchainError("ninja was not found. Install it with: pip install ninja")


def tvm_ffi_include_dirs() -> tuple[Path, ...]:
    """Return the directories of tvm-ffi's C headers and DLPack's, without importing tvm-ffi.

    Raises:
        ToolchainError: tvm-ffi is not installed.
    """
    for root in package_dirs("tvm_ffi"):
        include_dirs = (root / "include", root / "3rdparty" / "dlpack" / "include")
        if (include_dirs[0] / "tvm" / "ffi" / "c_api.h").is_file():
            return tuple(directory for directory in include_dirs if directory.is_dir())
    raise ToolchainError("tvm-ffi's headers were not found. Install it with: pip install apache-tvm-ffi")


@functools.lru_cache(maxsize=1)
def tvm_ffi_version() -> str:
    """Return tvm-ffi's version from its metadata, because `TVMFFIGetVersion` is one ahead in post releases."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("apache-tvm-ffi")
    except PackageNotFoundError:
        return ""


def own_include_dir() -> Path:
    """Return the directory of jitload's own headers for the host compiler."""
    return _INCLUDE_DIR / "jitload"


def package_dirs(name: str) -> list[Path]:
    """Return the directories of an installed package, without importing it."""
    spec = find_spec(name)
    return [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
