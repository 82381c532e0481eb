"""Compiles with nvcc the sources that contain both kernels and the C++ that launches them with `<<<…>>>`.

Only such sources need nvcc. To support another compiler for them, replace `find_nvcc` in `toolchain/nvcc.py`, which
the pipeline calls for such a request, and `nvcc_steps`, which returns the commands of the build.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jitload.building.ninja import Step, parse_diagnostics, shell_line
from jitload.errors import CompileError, Diagnostic, ToolchainError
from jitload.host_cpp.dryrun import Template, template_steps
from jitload.request.request import Unit
from jitload.toolchain.arch import capability_of
from jitload.toolchain.cuda import Nvcc
from jitload.toolchain.host import Compiler, first_file
from jitload.toolchain.libraries import library_dirs
from jitload.toolchain.nvcc import run_nvcc

_FLAGS = ("-Xcompiler=-fPIC,-fvisibility=hidden,-pipe", "-DJITLOAD_LAUNCHER_LINKED")
_HOST_COMPILER = "host_compiler"
_DEVICE_LINK = "device_link.o"


def nvcc_options(
    nvcc: Nvcc, compiler: Compiler, unit: Unit, archs: Sequence[str], include_flags: Sequence[str]
) -> tuple[str, ...]:
    """Return the options with which nvcc compiles a source. nvcc calls `compiler` for the host code."""
    return (
        *_targets(compiler, archs, unit.flags),
        *_defaults(unit.flags),
        *_FLAGS,
        *unit.flags,
        *include_flags,
        *(word for path in nvcc.added_include_dirs for word in ("-isystem", str(path))),
    )


def nvcc_steps(
    nvcc: Nvcc, options: Sequence[str], unit: Unit, template: Template | None, header: Path | None
) -> tuple[Step, ...]:
    """Return the steps that compile a source: the commands of nvcc in `template`, or else one call of nvcc.

    `header` is a precompiled header that the commands may use.
    """
    if template:
        return template_steps(template, unit.file, header)
    depfile = ("-MD", "-MF", f"{unit.file}.d")
    command = (str(nvcc.path), *options, *depfile, "-c", unit.file, "-o", f"{unit.file}.o")
    return (Step(output=f"{unit.file}.o", command=command, inputs=(unit.file,)),)


def device_link_step(nvcc: Nvcc, compiler: Compiler, units: Sequence[Unit], archs: Sequence[str]) -> Step:
    """Return the command that links the device code of sources that were compiled with `-rdc=true`."""
    inputs = tuple(f"{unit.file}.o" for unit in units)
    options = (*_targets(compiler, archs), "-Xcompiler=-fPIC")
    command = (str(nvcc.path), *options, "-dlink", *inputs, "-o", _DEVICE_LINK)
    library = device_runtime(nvcc)
    return Step(output=_DEVICE_LINK, command=(*command, f"-L{library.parent}") if library else command, inputs=inputs)


def device_runtime(nvcc: Nvcc) -> Path | None:
    """Return the CUDA device runtime library, or None. Relocatable device code needs this library."""
    return first_file(directory / "libcudadevrt.a" for directory in library_dirs(nvcc))


def _targets(compiler: Compiler, archs: Sequence[str], flags: Sequence[str] = ()) -> Iterator[str]:
    """Yield the options for the architectures, and for the host compiler unless the user's flags name one."""
    if not any(re.match(r"-ccbin(?:=|$)|--compiler-bindir", flag) for flag in flags):
        yield f"-ccbin={compiler.command[0] if len(compiler.command) == 1 else f'./{_HOST_COMPILER}'}"
    for arch in archs:
        number, suffix = capability_of(arch)
        yield f"-gencode=arch=compute_{number}{suffix},code={arch}"


def _defaults(flags: Sequence[str]) -> Iterator[str]:
    """Yield the default C++ standard and optimisation level. Leave out what the user's flags set.

    nvcc warns if an option is given twice.
    """
    if not any(re.match(r"--?std(?:=|$)", flag) for flag in flags):
        yield "-std=c++17"
    if not any(re.match(r"-O\d?$|--optimize", flag) for flag in flags):
        yield "-O2"


def write_host_compiler(compiler: Compiler, work_dir: Path) -> None:
    """Write the host compiler's command to a script if it has several words.

    `-ccbin` takes only one file name.
    """
    if len(compiler.command) > 1:
        script = work_dir / _HOST_COMPILER
        script.write_text(f'#!/bin/sh\nexec {shlex.join(compiler.command)} "$@"\n')
        script.chmod(0o700)


def is_of_nvcc(error: CompileError, steps: Iterable[Step]) -> bool:
    """Return whether the command that failed is the command of one of the steps."""
    return any(shell_line(step.command) in error.command for step in steps)


def nvcc_failure(error: CompileError, nvcc: Nvcc, hint: str = "") -> CompileError | ToolchainError:
    """Return the error to raise after a command of nvcc failed. `error` is the one that `run_ninja` raised.

    If nvcc rejected the architecture or the host compiler's version, advice about this replaces `hint`.
    """
    release = ".".join(map(str, nvcc.version))
    if match := re.search(r"Unsupported gpu architecture '(\w+)'", error.log):
        supported = ", ".join(re.findall(r"\bsm_\w+", run_nvcc([str(nvcc.path), "--list-gpu-code"])))
        return ToolchainError(
            f"this nvcc ({release}) does not know {match[1].replace('compute_', 'sm_')}; it knows {supported}, some "
            "of them with a suffix a or f. Set JITLOAD_NVCC to another nvcc, or name another architecture."
        )
    from jitload.cuda.messages import parse_diagnostics as parse_cuda_diagnostics

    if re.search("unsupported (?:GNU|clang) version", error.log):
        match = re.search(r"gcc versions later than (\d+)", error.log)
        newest, name = (f" than g++ {match[1]}", f"g++-{match[1]}") if match else ("", "g++-12")
        hint = f"nvcc {release} does not support newer host compilers{newest}. Set JITLOAD_CXX={name}, for example."
    # The keys of a dict drop repetitions: nvcc compiles once for each architecture and repeats the messages.
    diagnostics: dict[Diagnostic, None] = dict.fromkeys(
        (*parse_cuda_diagnostics(error.log), *parse_diagnostics(error.log))
    )
    return CompileError(
        stage="nvcc",
        name=error.name,
        log=error.log,
        diagnostics=tuple(diagnostics),
        command=error.command,
        work_dir=error.work_dir,
        hint=hint,
    )
