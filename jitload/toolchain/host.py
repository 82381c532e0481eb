"""Finds the host's C++ compiler, ninja and the headers of tvm-ffi, and runs tools."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jitload.errors import ToolchainError
from jitload.settings import Settings, absolute_search_path

if TYPE_CHECKING:
    import subprocess

INCLUDE_DIR = Path(__file__).parents[1] / "include"  # jitload's own headers
# Variables that change only what ninja and compilers print (colours, links, the language), and variables that `make`
# sets for the programs that it runs.
_OUTPUT_VARIABLES = """
 CLICOLOR_FORCE CLICOLOR FORCE_COLOR NINJA_STATUS NINJAFLAGS GCC_COLORS GCC_URLS TERM_URLS GCC_EXTRA_DIAGNOSTIC_OUTPUT
 DEPENDENCIES_OUTPUT SUNPRO_DEPENDENCIES MAKEFLAGS MFLAGS CUDAFLAGS LANGUAGE LC_ALL LC_MESSAGES
 """.replace("\n", " ")


class Compiler(NamedTuple):
    """The host's C++ compiler.

    Attributes:
        command: The program and its options.
        path: The program's file, without symbolic links.
        environment: The environment variables that the compiler reads, as `NAME=value`.
    """

    command: tuple[str, ...]
    path: Path
    environment: tuple[str, ...] = ()


@functools.lru_cache(maxsize=8)
def find_compiler(settings: Settings, *, needs_gcc: bool = False) -> Compiler:
    """Return the C++ compiler: `JITLOAD_CXX` or `CXX`, else `c++`, `g++` or `clang++` on the PATH.

    If there is none, the error advises only what works. Kernels on the CPU need g++.
    """
    for command in [split_command(settings.cxx)] if settings.cxx else [["c++"], ["g++"], ["clang++"]]:
        if command and (program := shutil.which(command[0], path=settings.path)):
            path = Path(program).resolve()
            return Compiler(command=(program, *command[1:]), path=path, environment=settings.environment)
    names = f"{settings.cxx!r} (from JITLOAD_CXX or CXX)" if settings.cxx else "c++, g++ or clang++"
    advice = "Install one (apt install g++, or dnf install gcc-c++). Without root: pip install ziglang, and set "
    advice += "JITLOAD_CXX='python -m ziglang c++'."
    if needs_gcc:
        advice = "Kernels on the CPU need g++: apt install g++, or dnf install gcc-c++."
    raise ToolchainError(f"no C++ compiler: {names} is not on the PATH. {advice}")


def split_command(command: str) -> list[str]:
    """Return the words of the compiler's command, or raise ToolchainError if its quotes do not match."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ToolchainError(f"JITLOAD_CXX or CXX is {command!r}, which is not a command: {error}") from error


def tool_environment() -> dict[str, str]:
    """Return an environment in which ninja and compilers print plain English, so that jitload can read it.

    Search paths such as `CPATH` are made absolute. Variables such as `CLICOLOR_FORCE`, which notebooks set to get
    coloured output, are left out. The user's locale still determines the character encoding: `LC_ALL` becomes
    `LC_CTYPE`.
    """
    variables = {
        name: absolute_search_path(name, value)
        for name, value in os.environ.items()
        if f" {name} " not in _OUTPUT_VARIABLES
    }
    if locale := os.environ.get("LC_ALL"):
        variables["LC_CTYPE"] = locale
    return variables | {"LC_MESSAGES": "C"}


@functools.lru_cache(maxsize=8)
def find_ninja(settings: Settings) -> Path:
    """Return the ninja binary: the one in this Python environment, or else the one on the PATH."""
    packages = package_dirs("ninja")
    own_dirs = (
        sysconfig.get_path("scripts"),
        str(Path(sys.executable).parent),
        *(str(directory) for root in packages for directory in (root / "data" / "bin", root.parent / "bin")),
    )
    if program := shutil.which("ninja", path=os.pathsep.join(own_dirs)) or shutil.which("ninja", path=settings.path):
        return Path(program)
    raise ToolchainError("ninja was not found. Install it with: pip install ninja")


def tvm_ffi_include_dirs() -> tuple[Path, ...]:
    """Return the directories of the C headers of tvm-ffi and DLPack, without importing tvm-ffi."""
    for root in package_dirs("tvm_ffi"):
        include_dirs = (root / "include", root / "3rdparty" / "dlpack" / "include")
        if (include_dirs[0] / "tvm" / "ffi" / "c_api.h").is_file():
            return tuple(directory for directory in include_dirs if directory.is_dir())
    raise ToolchainError("tvm-ffi's headers were not found. Install it with: pip install apache-tvm-ffi")


@functools.lru_cache(maxsize=1)
def tvm_ffi_version() -> str:
    """Return tvm-ffi's version from its metadata, because `TVMFFIGetVersion` is one version ahead in post releases."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("apache-tvm-ffi")
    except PackageNotFoundError:
        return ""


def package_dirs(name: str) -> list[Path]:
    """Return the directories of an installed package, without importing it."""
    spec = find_spec(name)
    return [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []


def first_file(paths: Iterable[Path]) -> Path | None:
    """Return the first of the paths at which there is a file, or None."""
    return next((path for path in paths if path.is_file()), None)


def run_tool(
    command: Sequence[str],
    description: str,
    *,
    directory: Path | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float | None = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a tool for its output, and return the output and the exit status.

    Raises:
        ToolchainError: The tool cannot be run, or runs longer than `timeout_s`.
    """
    import subprocess  # imported here, because a cache hit starts no process

    try:
        return subprocess.run(
            command,
            cwd=directory,
            env=tool_environment() | dict(variables or {}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{description} cannot be run: {error}") from error


def read_macros(command: Sequence[str], text: str, directory: Path) -> dict[str, str]:
    """Return the macros that are defined behind a text, each with its parameters and its definition.

    `command` is the C++ compiler with its options. If it cannot read the text, the result is empty.
    """
    source = directory / "macros.cc"
    source.write_text(text)
    result = run_tool((*command, "-E", "-dM", source.name), "the C++ compiler", directory=directory)
    return dict(re.findall(r"^#define (\w+)(.*)", result.stdout, re.MULTILINE))
