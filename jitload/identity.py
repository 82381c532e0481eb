"""What a tool, or jitload itself, is: a text that is the same wherever the same thing is installed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from jitload.errors import ToolchainError
from jitload.toolchain import Compiler

_PACKAGE = Path(__file__).parent


def compiler_identity(compiler: Compiler, cache_dir: Path) -> str:
    """Return the compiler's own words on its version and target.

    They are remembered in the cache by the file's path, size, time and inode, so that a hit only looks at the file.
    """
    found = os.stat(compiler.path)
    words = (*compiler.command, str(compiler.path), str(found.st_size), str(found.st_mtime_ns), str(found.st_ino))
    return _remembered(compiler, words, cache_dir)


@functools.lru_cache(maxsize=16)
def _remembered(compiler: Compiler, words: tuple[str, ...], cache_dir: Path) -> str:
    memory = cache_dir / ".tools" / hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(memory.read_text())["identity"])
    identity = _ask(compiler)
    with suppress(OSError):  # a read-only cache: asked again by the next process
        memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = memory.with_name(f"{memory.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"identity": identity, "file": str(compiler.path)}))
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


@functools.lru_cache(maxsize=1)
def own_identity() -> str:
    """Return a digest of jitload's code, headers and templates: what they generate is part of every key."""
    digest = hashlib.sha256()
    for directory in (_PACKAGE, _PACKAGE / "include" / "jitload", *_template_dirs()):
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if entry.is_file() and not entry.name.endswith((".pyc", ".typed")):
                data = Path(entry.path).read_bytes()
                digest.update(f"{entry.name}\0{len(data)}\0".encode())
                digest.update(data)
    return digest.hexdigest()


def _template_dirs() -> tuple[Path, ...]:
    return tuple(path for path in (_PACKAGE / "templates", _PACKAGE.parent / "templates") if path.is_dir())[:1]
