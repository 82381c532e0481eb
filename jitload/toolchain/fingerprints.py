"""Takes the fingerprints of the compiler, of the processor and of jitload itself, which are part of the cache key.

The fingerprints do not depend on where these are installed. Small private files in the cache keep the output of tools
for later processes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitload.errors import ToolchainError
from jitload.toolchain.host import Compiler, run_tool
from jitload.toolchain.private_files import load_json, save_json

# In every cache key, this number stands for jitload's code. Raise it if libraries built by an earlier release must not
# be used any more. `tests/test_abi.py` notices changes that may need this.
ABI = 9
_PACKAGE = Path(__file__).parents[1]
_PROGRAM = re.compile(r'^ "?(/[^"\s]+)"? -', re.MULTILINE)  # in the output of `-v`: the path of the compiler proper


def compiler_identity(compiler: Compiler, cache_dir: Path) -> str:
    """Return the compiler's version and target, its options, and the environment variables that it reads.

    The version and target are what the compiler prints. A cache hit only compares the states of the programs that the
    command runs, even for a script or ccache.
    """
    state = find_file_state(compiler.path)
    if state is None:
        raise ToolchainError(f"the C++ compiler {compiler.path} no longer exists")
    words = (*compiler.command, state, *compiler.environment)
    output = remembered(words, cache_dir, lambda: _ask_compiler(compiler), files=_PROGRAM.findall)
    return "\n".join((*_version_lines(output), *map(repr, (*compiler.command[1:], *compiler.environment))))


def _version_lines(output: str) -> list[str]:
    """Return the lines about the version, the target, and the options that a script adds, but not those with paths."""
    starts = ("Target:", "COLLECT_GCC_OPTIONS=")
    return [line for line in output.splitlines() if line.startswith(starts) or " version " in line]


def _ask_compiler(compiler: Compiler) -> str:
    """Return what the compiler prints about itself and about the programs that it runs."""
    name = " ".join(compiler.command)
    process = run_tool([*compiler.command, "-v", "-E", "-x", "c++", os.devnull], f"the C++ compiler {name}")
    if process.returncode != 0:
        raise ToolchainError(
            f"the C++ compiler {name} does not work:\n{process.stderr.rstrip()}\n"
            "Repair it, or set JITLOAD_CXX to another."
        )
    if not _version_lines(process.stderr):
        raise ToolchainError(
            f"{name} (from JITLOAD_CXX or CXX) does not seem to be a C++ compiler: "
            "`-v` prints neither a version nor a target. Name another, JITLOAD_CXX=g++."
        )
    return process.stderr


def find_file_state(path: str | Path) -> str | None:
    """Return `file_state(path)`, or None if there is no such file."""
    try:
        return file_state(path)
    except OSError:
        return None


def file_state(path: str | Path, status: os.stat_result | None = None) -> str:
    """Return a text that changes if another file replaces this one: its path, size, modification time and inode."""
    status = status or os.stat(path)
    return f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"


_answers: dict[Path, dict[str, Any]] = {}  # path of a file in the cache -> its contents: what a tool printed


def remembered(
    words: Iterable[str],
    cache_dir: Path,
    compute: Callable[[], str],
    *,
    files: Callable[[str], Iterable[str]] = lambda _output: (),
) -> str:
    """Return the cached result for these words, or else call `compute` and cache its result.

    The result of `compute` must depend only on the words, and on the files whose paths `files` finds in the result.
    """
    name = hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:32]
    memory = cache_dir / ".tools" / name
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        answer = _answers.get(memory) or load_json(memory)
        if all(find_file_state(path) == state for path, state in answer["files"]):
            _answers[memory] = answer
            return str(answer["output"])
    output = compute()
    states = [(path, state) for path in dict.fromkeys(files(output)) if (state := find_file_state(path))]
    _answers[memory] = {"output": output, "files": states}
    save_json(memory, _answers[memory])
    return output


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
    changes. It leaves out `native/`, which is compiled from the other files, perhaps by another process at this moment.
    """
    if not is_checkout():
        return f"ABI {ABI}"
    roots = [str(_PACKAGE), str(_PACKAGE.parent / "templates")]
    states = [state for root in roots if os.path.isdir(root) for state in _states_below(root)]
    digest = remembered(states, cache_dir, lambda: _digest_files(state.partition("\0")[0] for state in states))
    return f"ABI {ABI} (a checkout) {digest}"


def is_checkout() -> bool:
    """Return whether this is a checkout, whose files may change, and not an installed wheel."""
    return not os.path.isdir(f"{_PACKAGE}/templates")  # a wheel has the templates within the package


def _states_below(directory: str) -> list[str]:
    """Return the `file_state` of each file below a directory. Scanning by descriptor is twice as fast as by path."""
    states, directories = [], []
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for entry in os.scandir(handle):
            if not entry.is_dir():
                states.append(file_state(f"{directory}/{entry.name}", entry.stat()))
            elif entry.name not in ("__pycache__", "native"):
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
