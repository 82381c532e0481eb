"""Hand-written wrappers of `tests/launcher/`, compiled as a build of a user's own would do it."""

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jitload.building import runtime
from jitload.building.runtime import COMPILE_FLAGS
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_headers as jitload_headers
from jitload.toolchain.host import find_compiler

SOURCES = Path(__file__).parent.parent / "launcher"
INCLUDE = Path(__file__).parent.parent.parent / "jitload" / "include"

_EMBED = """
.section .rodata, "a"
.balign 16
.globl __tvm_ffi__cubin_{name}
__tvm_ffi__cubin_{name}:
.incbin "{name}.cubin"
{end}
.byte 0
.section .note.GNU-stack, "", @progbits
"""
_END = ".globl __tvm_ffi__cubin_{name}_end\n__tvm_ffi__cubin_{name}_end:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """How to compile one source.

    Attributes:
        source: Its name without suffix.
        cubins: The cubins to embed, by name.
        unsized: Those to embed without the symbol of their end.
        bytes_of: A cubin that the source includes as a list of numbers, `#include CUBIN_BYTES`.
        flags: For the compiler.
        has_cuda: Whether CUDA's headers are on the include path.
        is_linked: Whether the launcher is linked as an object instead of compiled in.
    """

    source: str
    cubins: Mapping[str, bytes] = field(default_factory=dict)
    unsized: Sequence[str] = ()
    bytes_of: bytes | None = None
    flags: Sequence[str] = ()
    has_cuda: bool = False
    is_linked: bool = False


def find_cuda_headers() -> Path | None:
    """Return the directory of `cuda_runtime.h` and `crt/` among the installed wheels."""
    toolchain = jitload_headers(read_settings())
    directories = toolchain.include_dirs if toolchain else ()
    return next((path for path in directories if (path / "crt" / "host_config.h").exists()), None)


def build_wrapper(wrapper: Wrapper, directory: Path) -> Path:
    """Compile a wrapper in an empty directory and return the library."""
    inputs = [str(SOURCES / f"{wrapper.source}.cc")]
    flags = ["-std=c++17", "-O0", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", *wrapper.flags]
    directory.mkdir(parents=True)
    for name, cubin in wrapper.cubins.items():
        (directory / f"{name}.cubin").write_bytes(cubin)
        end = "" if name in wrapper.unsized else _END.format(name=name)
        (directory / f"{name}.s").write_text(_EMBED.format(name=name, end=end), encoding="utf-8")
        inputs.append(f"{name}.s")
    if wrapper.bytes_of is not None:
        (directory / "bytes.inc").write_text(",".join(map(str, wrapper.bytes_of)), encoding="utf-8")
        flags.append('-DCUBIN_BYTES="bytes.inc"')
    if wrapper.is_linked:
        flags.append("-DJITLOAD_LAUNCHER_LINKED")
        inputs.append(str(INCLUDE / "jitload" / "launcher.cc"))
    library = directory / f"{wrapper.source}.so"
    run_compiler([*flags, *include_flags(has_cuda=wrapper.has_cuda), *inputs, "-shared", "-o", str(library)], directory)
    return library


def include_flags(*, has_cuda: bool) -> list[str]:
    """Return the include options of a user's own build; ours come before tvm-ffi's."""
    from tvm_ffi import libinfo

    system = [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    if has_cuda:
        system.append(str(find_cuda_headers()))
    return [f"-I{INCLUDE / 'upstream'}", f"-I{INCLUDE}", "-I.", *(f"-isystem{path}" for path in system)]


def run_compiler(arguments: Sequence[str], directory: Path) -> None:
    """Run the C++ compiler, and fail with its words."""
    command = [*find_compiler(read_settings()).command, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{done.stderr}\nCommand: {shlex.join(command)}")


def compile_strictly(directory: Path, flags: Sequence[str], output: Path) -> None:
    """Compile the generated wrapper of an entry, and fail with the compiler's words if it warns."""
    own_flags = [flag for flag in COMPILE_FLAGS if flag != "-w"]
    strict = ["-Wall", "-Wextra", "-Werror", *own_flags, *runtime.include_flags(), *flags]
    run_compiler([*strict, "-c", "wrapper.cc", "-o", str(output)], directory)


def load(library: Path) -> Any:
    """Load a library with tvm-ffi."""
    import tvm_ffi

    return tvm_ffi.load_module(str(library))


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return `<type>: <text>` of the exception that a call raises."""
    with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
        call(*arguments, **options)
    return f"{caught.type.__name__}: {caught.value}"


def undefined_symbols(library: Path) -> set[str]:
    """Return what a library asks of others."""
    return _symbols(library, "--undefined-only")


def exported_symbols(library: Path) -> set[str]:
    """Return what a library offers to others."""
    return _symbols(library, "--defined-only")


def _symbols(library: Path, which: str) -> set[str]:
    done = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}
