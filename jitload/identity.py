"""What a tool, or jitload itself, is: a text that is the same wherever the same thing is installed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from jitload.cache import make_private
from jitload.errors import ToolchainError
from jitload.toolchain import Compiler

_PACKAGE = Path(__file__).parent


def compiler_identity(compiler: Compiler, cache_dir: Path) -> str:
    """Return the compiler's own words on its version and target.

    They are remembered in the cache by the file's path, size, time and inode, so that a hit only looks at the file.
    """
    try:
        found = os.stat(compiler.path)
    except OSError as error:
        raise ToolchainError(f"the C++ compiler {compiler.path} is gone: {error.strerror}") from error
    return _compiler_identity(compiler, (*compiler.command, state_of(str(compiler.path), found)), cache_dir)


@functools.lru_cache(maxsize=16)
def _compiler_identity(compiler: Compiler, words: tuple[str, ...], cache_dir: Path) -> str:
    return remembered(words, str(compiler.path), cache_dir, lambda: _ask(compiler))


def state_of(path: str, found: os.stat_result) -> str:
    """Return what tells a file from another that takes its place."""
    return f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"


def remembered(words: Iterable[str], what: str, cache_dir: Path, find_out: Callable[[], str]) -> str:
    """Return what was found out once of something, kept in the cache.

    Args:
        words: What it depends on.
        what: Its name, for whoever looks into the cache.
        cache_dir: The cache.
        find_out: Finds it out.
    """
    memory = cache_dir / ".tools" / hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:32]
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(memory.read_text())["identity"])
    identity = find_out()
    with suppress(OSError):  # a read-only cache: found out again by the next process
        make_private(memory.parent)
        fresh = memory.with_name(f"{memory.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"identity": identity, "file": what}))
        fresh.replace(memory)
    return identity


def _ask(compiler: Compiler) -> str:
    command = [*compiler.command, "-v", "-E", "-x", "c++", os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"the C++ compiler {' '.join(compiler.command)} does not run: {error}") from error
    if done.returncode != 0:
        raise ToolchainError(f"the C++ compiler {' '.join(compiler.command)} does not work:\n{done.stderr.rstrip()}")
    # Version and target, without the lines that say where things are installed.
    lines = [line for line in done.stderr.splitlines() if line.startswith("Target:") or " version " in line]
    return "\n".join(lines)


@functools.lru_cache(maxsize=16)
def own_identity(cache_dir: Path) -> str:
    """Return a digest of jitload's code, headers and templates: what they generate is part of every key.

    An installed wheel has it in its RECORD; the two hundred files of a checkout are digested, and looked at each time.
    """
    from jitload import __version__

    if (_PACKAGE / "templates").is_dir():
        with suppress(OSError):
            record = _PACKAGE.parent / f"jitload-{__version__}.dist-info" / "RECORD"
            rows = sorted(
                row for row in record.read_text().splitlines() if row.startswith("jitload/") and "sha256=" in row
            )
            return hashlib.sha256("\n".join(rows).encode()).hexdigest()
    files = [found for root in (_PACKAGE, _PACKAGE.parent / "templates") for found in _files_below(root)]
    states = (state_of(file.path, file.stat()) for file in files)
    return remembered(states, str(_PACKAGE), cache_dir, lambda: _digest_files(files))


def _files_below(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    if not os.path.isdir(directory):
        return
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files_below(entry.path)
        else:
            yield entry


def _digest_files(files: Iterable[os.DirEntry[str]]) -> str:
    """Digest names and contents; the name's last two parts tell `nvrtc/cuda.h` from `nvrtc_first/cuda.h`."""
    digest = hashlib.sha256()
    for file in files:
        data = Path(file.path).read_bytes()
        digest.update(f"{'/'.join(Path(file.path).parts[-2:])}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
