"""What a tool, or jitload itself, is: a text that is the same wherever the same thing is installed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jitload.errors import ToolchainError
from jitload.files import load_text, save_text
from jitload.toolchain import Compiler

_PACKAGE = Path(__file__).parent
_PROGRAM = re.compile(r' "?(/[^"\s]+)"? -')  # in what `-v` writes: the compiler proper, and its path


def compiler_identity(compiler: Compiler, cache_dir: Path) -> str:
    """Return the compiler's own words on its version and target, and what it reads of the environment.

    The words are remembered in the cache with the size, time and inode of the files that stand behind the command, so
    that a hit only looks at the files: those of a compiler behind a script or behind ccache, too.
    """
    identity = recall_compiler_identity(compiler, cache_dir)
    return _ask_and_remember(compiler, cache_dir) if identity is None else identity


def recall_compiler_identity(compiler: Compiler, cache_dir: Path) -> str | None:
    """Return what `compiler_identity` returns, or None if the compiler would have to be started for it."""
    state = _compiler_state(compiler)
    known = _compilers.get((compiler.command, state, cache_dir))
    if known is None or any(_state_at(path) != its for path, its in known.files):
        known = _recall_compiler(compiler, state, cache_dir)
    if known is None:
        return None
    _compilers[compiler.command, state, cache_dir] = known
    return _identity(compiler, known)


def _compiler_state(compiler: Compiler) -> str:
    state = _state_at(compiler.path)
    if state is None:
        raise ToolchainError(f"the C++ compiler {compiler.path} is gone")
    return state


def _identity(compiler: Compiler, known: _Known) -> str:
    return "\n".join((known.words, *map(repr, (*compiler.command[1:], *compiler.environment))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A compiler's words, and the files behind it as they were when it said them."""

    words: str
    files: tuple[tuple[str, str], ...]


_compilers: dict[tuple[tuple[str, ...], str, Path], _Known] = {}


def _state_at(path: str | Path) -> str | None:
    try:
        return state_of(str(path), os.stat(path))
    except OSError:
        return None


def _recall_compiler(compiler: Compiler, state: str, cache_dir: Path) -> _Known | None:
    """Return what the cache remembers of a compiler, if the files behind it are as they were."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        kept = json.loads(load_text(_compiler_memory(compiler, state, cache_dir)))
        files = tuple((str(path), str(its)) for path, its in kept["files"])
        if all(_state_at(path) == its for path, its in files):
            return _Known(words=str(kept["identity"]), files=files)
    return None


def _ask_and_remember(compiler: Compiler, cache_dir: Path) -> str:
    state = _compiler_state(compiler)
    words, paths = _ask(compiler)
    files = tuple((path, its) for path in paths if (its := _state_at(path)))
    memory = json.dumps({"identity": words, "file": str(compiler.path), "files": files})
    save_text(_compiler_memory(compiler, state, cache_dir), memory)
    known = _compilers[compiler.command, state, cache_dir] = _Known(words=words, files=files)
    return _identity(compiler, known)


def _compiler_memory(compiler: Compiler, state: str, cache_dir: Path) -> Path:
    return _memory((*compiler.command, state, *compiler.environment), cache_dir)


def state_of(path: str, found: os.stat_result) -> str:
    """Return what tells a file from another that takes its place."""
    return f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"


def _memory(words: Iterable[str], cache_dir: Path) -> Path:
    return cache_dir / ".tools" / hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:32]


def remembered(words: Iterable[str], what: str, cache_dir: Path, find_out: Callable[[], str]) -> str:
    """Return what was found out once of something, kept in the cache.

    Args:
        words: What it depends on.
        what: Its name, for whoever looks into the cache.
        cache_dir: The cache.
        find_out: Finds it out.
    """
    memory = _memory(words, cache_dir)
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(load_text(memory))["identity"])
    identity = find_out()
    save_text(memory, json.dumps({"identity": identity, "file": what}))
    return identity


def _ask(compiler: Compiler) -> tuple[str, list[str]]:
    """Return what the compiler says of itself, and the programs that it says it runs."""
    import subprocess

    command = [*compiler.command, "-v", "-E", "-x", "c++", os.devnull]
    try:
        process = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"the C++ compiler {' '.join(compiler.command)} does not run: {error}") from error
    if process.returncode != 0:
        raise ToolchainError(f"the C++ compiler {' '.join(compiler.command)} does not work:\n{process.stderr.rstrip()}")
    # Version and target, without the lines that say where things are installed.
    lines = process.stderr.splitlines()
    words = [line for line in lines if line.startswith("Target:") or " version " in line]
    if not words:
        raise ToolchainError(
            f"{' '.join(compiler.command)} (from JITLOAD_CXX or CXX) does not say that it is a C++ compiler: "
            "`-v` gives neither a version nor a target. Name another, JITLOAD_CXX=g++."
        )
    programs = [found[1] for line in lines if (found := _PROGRAM.match(line))]
    return "\n".join(words), list(dict.fromkeys(programs))


@functools.lru_cache(maxsize=1)
def cpu_identity() -> str:
    """Return what `-march=native` means on this machine: machines that share a home differ in it."""
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
    """Return a digest of jitload's code, headers and templates: what they generate is part of every key.

    An installed wheel has it in its RECORD; the two hundred files of a checkout are digested, and looked at each time.
    """
    from jitload import __version__

    if os.path.isdir(f"{_PACKAGE}/templates"):
        with suppress(OSError), open(f"{_PACKAGE.parent}/jitload-{__version__}.dist-info/RECORD", "rb") as record:
            rows = [row for row in record.read().splitlines() if row[:8] == b"jitload/" and b"sha256=" in row]
            return hashlib.sha256(b"\n".join(sorted(rows))).hexdigest()
    roots = [str(_PACKAGE), str(_PACKAGE.parent / "templates")]
    states = [state for root in roots if os.path.isdir(root) for state in _states_below(root)]
    return remembered(
        states, str(_PACKAGE), cache_dir, lambda: _digest_files(state.partition("\0")[0] for state in states)
    )


def _states_below(directory: str) -> list[str]:
    """Return what tells each file from another; by a handle, or half the time would go into finding each path anew."""
    found, directories = [], []
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for entry in os.scandir(handle):
            if not entry.is_dir():
                found.append(state_of(f"{directory}/{entry.name}", entry.stat()))
            elif entry.name != "__pycache__":
                directories.append(f"{directory}/{entry.name}")
    finally:
        os.close(handle)
    return sorted(found) + [state for below in sorted(directories) for state in _states_below(below)]


def _digest_files(paths: Iterable[str]) -> str:
    """Digest names and contents; the name's last two parts tell `nvrtc/assert.h` from `cpu/assert.h`."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as opened:
            data = opened.read()
        digest.update(f"{'/'.join(path.rsplit('/', 2)[1:])}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
