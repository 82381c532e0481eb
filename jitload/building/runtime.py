"""Gives builds jitload's own machine code (`native`), and describes the commands that make a library from a wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from jitload.building.native import NATIVE_DIR, NativeName, build_native, find_native, native_file
from jitload.building.ninja import Step, compile_step, link_step
from jitload.errors import ToolchainError
from jitload.request.request import RECORD_FILE
from jitload.settings import Settings
from jitload.toolchain.host import INCLUDE_DIR, Compiler, find_compiler, tvm_ffi_include_dirs

_RUNTIME_DIR = Path(__file__).parent.parent / "runtime"
COMPILE_FLAGS = ("-O0", "-pipe", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-w")
# libc is not linked, because the process has loaded it already, and linking it would take as long as the rest of the
# link. libgcc.a has what GCC calls by itself, such as its functions for atomic operations on aarch64.
LINK_OPTIONS = ("-s", "-nostartfiles", "-nodefaultlibs", "-lgcc")


def find_objects(names: Iterable[NativeName], settings: Settings) -> tuple[Path, ...]:
    """Return the paths of jitload's object files with the given names. In a checkout, build those that are missing.

    The object files are for:

    - `runtime`: every library with a generated wrapper, the C++ through which Python calls kernels
    - `cpu_runtime`: kernels on the CPU
    - `cpu_watched`: kernels on the CPU with `sanitize=` or `debug=`
    - `triton_runtime`: Triton kernels
    - `launcher`: hand-written C++
    - `torch_runtime`: C++ that is written for torch

    `shared` is the runtime as a library of its own, for kernels that are launched from memory.

    Raises:
        ToolchainError: A file is missing, and cannot be built here.
    """
    wanted = tuple(names)
    if missing := [name for name in wanted if find_native(name) is None]:
        _build(missing, settings)
    return tuple(NATIVE_DIR / native_file(name) for name in wanted)


def _build(names: Sequence[NativeName], settings: Settings) -> None:
    from filelock import FileLock

    command = find_compiler(settings).command
    try:
        NATIVE_DIR.mkdir(exist_ok=True)
        with FileLock(NATIVE_DIR / ".lock"):
            if still_missing := [name for name in names if find_native(name) is None]:
                build_native(still_missing, command, NATIVE_DIR)
    except OSError as error:
        raise ToolchainError(
            f"jitload's machine code is missing in {NATIVE_DIR}, and cannot be built there: {error}. Install jitload "
            "again: pip install --force-reinstall jitload"
        ) from error


def library_steps(
    compiler: Compiler,
    objects: Iterable[str | Path],
    product: str,
    options: Sequence[str] = LINK_OPTIONS,
) -> tuple[Step, Step]:
    """Return the steps that compile the wrapper and link it with objects."""
    inputs = ("wrapper.o", *map(str, objects))
    return wrapper_step(compiler), link_step(compiler.command, inputs, product, options)


def wrapper_step(compiler: Compiler) -> Step:
    """Return the step that compiles the generated file `wrapper.cc`, which embeds the record."""
    flags = (*COMPILE_FLAGS, *include_flags())
    return compile_step(compiler.command, flags, "wrapper.cc", "wrapper.o", reads=(RECORD_FILE,))


def include_flags() -> tuple[str, ...]:
    """Return the `-I` options for the headers of generated wrappers."""
    return tuple(f"-I{path}" for path in (_RUNTIME_DIR, INCLUDE_DIR, *tvm_ffi_include_dirs()))
