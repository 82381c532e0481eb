"""Finds the host's C++ compiler, ninja and headers, and takes the fingerprints that are part of the cache key.

The fingerprints of the compiler, of the processor and of jitload itself do not depend on where these are installed.
Small private files in the cache keep the output of tools for later processes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jitload.errors import ToolchainError
from jitload.settings import Settings, absolute_search_path

if TYPE_CHECKING:
    import subprocess

# In every cache key, this number stands for jitload's code. Raise it if libraries built by an earlier release must not
# be used any more. `tests/test_abi.py` notices changes that may need this.
ABI = 2
_PACKAGE = Path(__file__).parents[1]
INCLUDE_DIR = _PACKAGE / "include"  # jitload's own headers
# Variables that change only what ninja and compilers print (colours, links, the language), and variables that `make`
# sets for the programs that it runs.
_OUTPUT_VARIABLES = """
 CLICOLOR_FORCE CLICOLOR FORCE_COLOR NINJA_STATUS NINJAFLAGS GCC_COLORS GCC_URLS TERM_URLS GCC_EXTRA_DIAGNOSTIC_OUTPUT
 DEPENDENCIES_OUTPUT SUNPRO_DEPENDENCIES MAKEFLAGS MFLAGS CUDAFLAGS LANGUAGE LC_ALL LC_MESSAGES
 """.replace("\n", " ")
_PROGRAM = re.compile(r' "?(/[^"\s]+)"? -')  # in the output of `-v`: the path of the compiler proper


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


def find_compiler(settings: Settings, *, needs_gcc: bool = False) -> Compiler:
    """Return the C++ compiler: `JITLOAD_CXX` or `CXX`, else `c++`, `g++` or `clang++` on the PATH.

    If there is none, the error advises only what works. Kernels on the CPU need g++.
    """
    return _find_compiler(settings.cxx, settings.path, settings.environment, needs_gcc=needs_gcc)


@functools.lru_cache(maxsize=8)
def _find_compiler(
    requested: str, search_path: str, environment: tuple[str, ...], *, needs_gcc: bool = False
) -> Compiler:
    for command in [split_command(requested)] if requested else [["c++"], ["g++"], ["clang++"]]:
        if command and (program := shutil.which(command[0], path=search_path)):
            return Compiler(command=(program, *command[1:]), path=Path(program).resolve(), environment=environment)
    names = f"{requested!r} (from JITLOAD_CXX or CXX)" if requested else "c++, g++ or clang++"
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


def find_ninja(settings: Settings) -> Path:
    """Return the ninja binary: the one in this Python environment, or else the one on the PATH."""
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


# ---- fingerprints for the cache key ------------------------------------------------------------------------------


def compiler_identity(compiler: Compiler, cache_dir: Path) -> str:
    """Return the compiler's version and target, its options, and the environment variables that it reads.

    The version and target are what the compiler prints. They are kept in the cache with the state of each program that
    the command runs: size, modification time and inode. A cache hit only compares the states, even for a script or
    ccache.
    """
    if identity := recall_compiler_identity(compiler, cache_dir):
        return identity
    memory = _compiler_memory_file(compiler, cache_dir)
    words, programs = _ask_compiler(compiler)
    files = [(path, state) for path in programs if (state := _state_of_file(path))]
    _answers[memory] = {"identity": words, "files": files}
    save_json(memory, _answers[memory])
    return _identity_of(compiler, words)


def recall_compiler_identity(compiler: Compiler, cache_dir: Path) -> str | None:
    """Return the cached result of `compiler_identity`, or None if it is missing or out of date. Start no compiler."""
    memory = _compiler_memory_file(compiler, cache_dir)
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        answer = _answers.get(memory) or load_json(memory)
        if all(_state_of_file(path) == state for path, state in answer["files"]):
            _answers[memory] = answer
            return _identity_of(compiler, answer["identity"])
    return None


_answers: dict[Path, dict[str, Any]] = {}  # path of a file in the cache -> its contents: what a compiler printed


def _identity_of(compiler: Compiler, words: str) -> str:
    return "\n".join((words, *map(repr, (*compiler.command[1:], *compiler.environment))))


def _compiler_memory_file(compiler: Compiler, cache_dir: Path) -> Path:
    state = _state_of_file(compiler.path)
    if state is None:
        raise ToolchainError(f"the C++ compiler {compiler.path} no longer exists")
    return _memory_file((*compiler.command, state, *compiler.environment), cache_dir)


def _state_of_file(path: str | Path) -> str | None:
    try:
        return file_state(path)
    except OSError:
        return None


def file_state(path: str | Path, status: os.stat_result | None = None) -> str:
    """Return a text that changes if another file replaces this one: its path, size, modification time and inode."""
    status = status or os.stat(path)
    return f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"


def _memory_file(words: Iterable[str], cache_dir: Path) -> Path:
    return cache_dir / ".tools" / hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:32]


def remembered(words: Iterable[str], cache_dir: Path, compute: Callable[[], str]) -> str:
    """Return the cached result for these words, or else call `compute` and cache its result.

    The result of `compute` must depend on the words alone.
    """
    memory = _memory_file(words, cache_dir)
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return str(load_json(memory)["identity"])
    identity = compute()
    save_json(memory, {"identity": identity})
    return identity


def _ask_compiler(compiler: Compiler) -> tuple[str, list[str]]:
    """Return the version and target that the compiler prints, and the paths of the programs that it runs."""
    command = [*compiler.command, "-v", "-E", "-x", "c++", os.devnull]
    process = run_tool(command, f"the C++ compiler {' '.join(compiler.command)}")
    if process.returncode != 0:
        raise ToolchainError(
            f"the C++ compiler {' '.join(compiler.command)} does not work:\n{process.stderr.rstrip()}\n"
            "Repair it, or set JITLOAD_CXX to another."
        )
    # The lines that say where the compiler is installed are left out.
    lines = process.stderr.splitlines()
    words = [line for line in lines if line.startswith("Target:") or " version " in line]
    if not words:
        raise ToolchainError(
            f"{' '.join(compiler.command)} (from JITLOAD_CXX or CXX) does not seem to be a C++ compiler: "
            "`-v` prints neither a version nor a target. Name another, JITLOAD_CXX=g++."
        )
    programs = [match[1] for line in lines if (match := _PROGRAM.match(line))]
    return "\n".join(words), list(dict.fromkeys(programs))


def run_tool(
    command: Sequence[str],
    description: str,
    *,
    directory: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a tool for its output, and return the output and the exit status.

    Raises:
        ToolchainError: The tool cannot be run, or runs longer than 120 seconds.
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
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{description} cannot be run: {error}") from error


@functools.lru_cache(maxsize=1)
def cpu_identity() -> str:
    """Return a digest of the processor's model and features, which `-march=native` depends on."""
    with suppress(OSError):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            first = lines.read(16384).partition("\n\n")[0]
        rows = [
            line for line in first.splitlines() if line.lower().startswith(("model name", "flags", "features", "cpu "))
        ]
        return hashlib.sha256("\n".join(line for line in rows if "MHz" not in line).encode()).hexdigest()
    import platform

    return platform.machine()


@functools.lru_cache(maxsize=16)
def own_identity(cache_dir: Path) -> str:
    """Return what identifies jitload in every cache key: `ABI`, and in a checkout also a digest of its files.

    The digest lets a developer's edit take effect at once. It is kept in the cache, and computed again if a file
    changes.
    """
    if os.path.isdir(f"{_PACKAGE}/templates"):  # an installed wheel, whose files do not change
        return f"ABI {ABI}"
    roots = [str(_PACKAGE), str(_PACKAGE.parent / "templates")]
    states = [state for root in roots if os.path.isdir(root) for state in _states_below(root)]
    digest = remembered(states, cache_dir, lambda: _digest_files(state.partition("\0")[0] for state in states))
    return f"ABI {ABI} (a checkout) {digest}"


def _states_below(directory: str) -> list[str]:
    """Return the `file_state` of each file below a directory. Scanning by descriptor is twice as fast as by path."""
    states, directories = [], []
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for entry in os.scandir(handle):
            if not entry.is_dir():
                states.append(file_state(f"{directory}/{entry.name}", entry.stat()))
            elif entry.name != "__pycache__":
                directories.append(f"{directory}/{entry.name}")
    finally:
        os.close(handle)
    return sorted(states) + [state for below in sorted(directories) for state in _states_below(below)]


def _digest_files(paths: Iterable[str]) -> str:
    """Return a digest of the files' names and contents.

    A name is the last two parts of a path, because there are both `nvrtc/assert.h` and `cpu/assert.h`.
    """
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        digest.update(f"{'/'.join(path.rsplit('/', 2)[1:])}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


# ---- private files ---------------------------------------------------------------------------------------------------


def make_private_dir(directory: Path) -> None:
    """Create a directory and its missing parents. Only this user can access them, whatever the umask."""
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        make_private_dir(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)


def save_json(path: Path, value: object) -> None:
    """Write a value to a small file, atomically. Errors are ignored: later processes can work without the file."""
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}")  # a process id is not unique on a shared disk
    with suppress(OSError):
        make_private_dir(path.parent)
        try:
            temporary.write_text(json.dumps(value), encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def load_json(path: Path) -> Any:
    """Return the value in a file that `save_json` wrote.

    Raises:
        OSError, ValueError, RecursionError: The file does not exist, is not a regular file, or does not contain JSON. A
            pipe, for example, is not read, because reading it might never end.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a regular file")
        return json.load(file)
