"""Builds jitload's own machine code: the runtime that launches kernels, and the object files that libraries need.

A wheel contains the results, in `jitload/native/`. The build back end makes them, also for an editable install. In a
checkout, they are made again if a source has changed. This module imports little, because a cache hit asks it for the
runtime, and because the build back end's environment has few packages.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from jitload.errors import ToolchainError
from jitload.toolchain.fingerprints import is_checkout
from jitload.toolchain.host import INCLUDE_DIR, run_tool, tvm_ffi_include_dirs
from jitload.toolchain.private_files import replace_file

NativeName = Literal["runtime", "cpu_runtime", "cpu_watched", "triton_runtime", "torch_runtime", "launcher", "shared"]

_PACKAGE = Path(__file__).parents[1]
NATIVE_DIR = _PACKAGE / "native"
_SOURCE_DIRS = (_PACKAGE / "runtime", INCLUDE_DIR / "jitload", INCLUDE_DIR / "torch_light")
_FLAGS = ("-O2", "-pipe", "-fPIC", "-fvisibility=hidden", "-w")
_PLAIN = (*_FLAGS, "-fno-exceptions", "-fno-rtti")
_CXX17 = ("-std=c++17", *_PLAIN)
_FOR_TORCH = ("-std=c++17", *_FLAGS)
_CORE = (
    *("arguments", "argument_errors", "call", "choice", "driver", "expression", "host_call", "launch_errors", "loader"),
    *("python", "tensor_map"),
)
_TORCH = ("errors", "functions", "library", "operators", "tensor", "values")
# For each name, the sources in `runtime/` and their options.
_SOURCES: dict[NativeName, dict[str, tuple[str, ...]]] = {
    "runtime": dict.fromkeys((*(f"core/{name}" for name in _CORE), "cpu/launch"), _PLAIN),
    "cpu_runtime": {"cpu/run": _CXX17},
    "cpu_watched": {"cpu/run": (*_CXX17, "-DJITLOAD_CPU_WATCHES=1")},
    "triton_runtime": {"triton/call": _CXX17},
    "torch_runtime": dict.fromkeys((f"torch/{name}" for name in _TORCH), _FOR_TORCH),
    "launcher": {"../include/jitload/launcher": _CXX17},
}
NAMES: tuple[NativeName, ...] = (*_SOURCES, "shared")
# The runtime as a library of its own, for kernels that are launched from memory. libc is not linked, because the
# process has loaded it already. libgcc.a has what GCC calls by itself, such as its functions for atomic operations.
_SHARED_PARTS: tuple[NativeName, ...] = ("runtime", "triton_runtime")
_LINK_FLAGS = ("-shared", "-s", "-Wl,-z,now,-z,nodelete,-z,noexecstack", "-nostartfiles", "-nodefaultlibs", "-lgcc")


def native_file(name: NativeName) -> str:
    """Return the file name of a part of jitload's machine code."""
    return "jitload_runtime.so" if name == "shared" else f"{name}.o"


def find_native(name: NativeName) -> Path | None:
    """Return the path of a part of jitload's machine code, or None if it has to be built first."""
    path = NATIVE_DIR / native_file(name)
    if not is_checkout():
        return path if path.is_file() else None
    try:
        return path if path.with_suffix(".stamp").read_text() == _source_stamp() and path.is_file() else None
    except OSError:
        return None


def build_native(names: Iterable[NativeName], compiler: Sequence[str], directory: Path) -> None:
    """Build parts of jitload's machine code into a directory. Each file appears there at once.

    Raises:
        ToolchainError: The compiler failed, or cannot be started.
        OSError: The directory cannot be written.
    """
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    wanted = dict.fromkeys(part for name in names for part in ((*_SHARED_PARTS, name) if name == "shared" else (name,)))
    directory.mkdir(exist_ok=True)
    stamp = _source_stamp()
    with tempfile.TemporaryDirectory(prefix=".", dir=directory) as work:
        commands = [command for name in wanted for command in _compile_commands(name, compiler, Path(work))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        for name in wanted:
            _run(_join_command(name, compiler, Path(work)))
        for name in wanted:
            path = directory / native_file(name)
            os.replace(Path(work) / path.name, path)
            replace_file(path.with_suffix(".stamp"), stamp.encode())


def _compile_commands(name: NativeName, compiler: Sequence[str], work: Path) -> Iterator[list[str]]:
    includes = [f"-I{path}" for path in (_PACKAGE / "runtime", INCLUDE_DIR, *tvm_ffi_include_dirs())]
    for source, flags in _SOURCES.get(name, {}).items():
        path = _PACKAGE / "runtime" / f"{source}.cc"
        yield [*compiler, *flags, *includes, "-c", str(path), "-o", str(_object(name, source, work))]


def _object(name: NativeName, source: str, work: Path) -> Path:
    return work / f"{name}-{Path(source).name}.o"


def _join_command(name: NativeName, compiler: Sequence[str], work: Path) -> list[str]:
    output = str(work / native_file(name))
    if name == "shared":
        return [*compiler, *(str(work / native_file(part)) for part in _SHARED_PARTS), "-o", output, *_LINK_FLAGS]
    objects = (str(_object(name, source, work)) for source in _SOURCES[name])
    return [*compiler, "-r", "-nostdlib", *objects, "-o", output]


def _run(command: Sequence[str]) -> None:
    done = run_tool(command, "the C++ compiler", timeout_s=None)
    if done.returncode != 0:
        raise ToolchainError(f"jitload's own C++ cannot be compiled. {' '.join(command)} failed:\n{done.stderr}")


@functools.lru_cache(maxsize=1)
def _source_stamp() -> str:
    """Return a text that changes with the sources and the options: with the files' names, sizes, modification times."""
    trees = (os.walk(directory) for directory in _SOURCE_DIRS)
    paths = [f"{root}/{name}" for tree in trees for root, _, names in tree for name in names]
    rows = []
    for path in (*paths, __file__):  # this file has the options
        status = os.stat(path)
        rows.append(f"{path}\0{status.st_size}\0{status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()
