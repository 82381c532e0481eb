"""Kernels and the C++ that launches them with `<<<…>>>`, in one text: finds nvcc, and says how it compiles that.

This is the one road that needs a CUDA toolkit. What another tool would need to take its place is `find_nvcc`, which a
request for such a text asks for, and `nvcc_step`, the step of the build that makes an object of it.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jitload.building.ninja import Step, parse_diagnostics
from jitload.errors import CompileError, Diagnostic, ToolchainError
from jitload.request.request import Unit
from jitload.settings import Settings
from jitload.toolchain.arch import capability_of
from jitload.toolchain.cuda import Nvcc, find_cuda_headers, find_cudart
from jitload.toolchain.host import Compiler
from jitload.toolchain.identity import file_state, remembered

_FLAGS = ("-Xcompiler=-fPIC,-fvisibility=hidden", "-DJITLOAD_LAUNCHER_LINKED")
_TARGETS = {"x86_64": ("x86_64-linux",), "aarch64": ("sbsa-linux", "aarch64-linux")}
_HOST_COMPILER = "host_compiler"
_TWO_ROADS = (
    "Two roads need none: leave the kernels alone in cuda_sources and declare the launch, "
    "functions={'f': Launch(grid=…, block=…)}; or compile them with compile_cubin() and launch them from C++ of your "
    "own, with embed_cubin=."
)


# ---- where nvcc is ---------------------------------------------------------------------------------------------


def find_nvcc(settings: Settings, cache_dir: Path, *, name: str) -> Nvcc:
    """Return nvcc: `JITLOAD_NVCC`, else that of `CUDA_HOME` or `CUDA_PATH`, else the one on the PATH.

    What it says of itself is remembered in the cache, so that a hit only looks at its files.

    Raises:
        ToolchainError: There is none; the message names the module and the roads that need none.
    """
    path = _locate(settings.nvcc, settings.toolkits, settings.path)
    if path is None:
        raise ToolchainError(
            f"module {name!r} launches kernels with <<<…>>>, and that takes nvcc, which is not on the PATH nor in "
            "CUDA_HOME. Install a CUDA toolkit and point CUDA_HOME to it, or JITLOAD_NVCC to its nvcc. " + _TWO_ROADS
        )
    found = _describe(path, cache_dir)
    flags = " ".join(settings.nvcc_flags).strip()
    return found._replace(identity=f"{found.identity} {flags}") if flags else found


def _locate(asked: str, toolkits: Sequence[str], path: str) -> Path | None:
    if asked:
        given = Path(asked).expanduser()
        found = next((file for file in (given, given / "bin" / "nvcc") if _is_program(file)), None)
        if found is None:
            raise ToolchainError(f"JITLOAD_NVCC={asked}: no nvcc there. Name its file, or the toolkit's directory.")
        return found
    at_home = next((nvcc for home in toolkits if _is_program(nvcc := Path(home) / "bin" / "nvcc")), None)
    on_path = shutil.which("nvcc", path=path)
    return at_home or (Path(on_path) if on_path else None)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _describe(path: Path, cache_dir: Path) -> Nvcc:
    program = path.resolve()
    home, states = program.parent.parent, [_state(program)]
    if not _is_machine_code(program):  # a script, as distributions have it, says where the toolkit is
        home = Path(remembered(("home", *states), str(program), cache_dir, lambda: _ask_home(program)))
        states += [_state(behind) for behind in (home / "bin" / "nvcc",) if behind.is_file()]
    release = remembered(("release", *states), str(program), cache_dir, lambda: _ask_release(program))
    version = tuple(map(int, re.findall(r"\d+", release)))
    return Nvcc(
        major=version[0],
        version=version,
        path=program,
        include_dirs=tuple(_include_dirs(home)),
        identity=f"nvcc {release}",
    )


def _state(path: Path) -> str:
    return file_state(str(path), path.stat())


@functools.lru_cache(maxsize=16)
def _is_machine_code(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _ask_home(path: Path) -> str:
    done = _run([str(path), "--dryrun", "-E", "-x", "cu", os.devnull])
    if found := re.search(r"^#\$ TOP=(.+)$", done, re.MULTILINE):
        return str(Path(found[1]).resolve())
    raise ToolchainError(f"nvcc {path} does not say where its toolkit is:\n{done.rstrip()}")


def _ask_release(path: Path) -> str:
    done = _run([str(path), "--version"])
    if found := re.search(r"\bV(\d+\.\d+\.\d+)", done):
        return found[1]
    raise ToolchainError(f"nvcc {path} does not say its version:\n{done.rstrip()}")


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"nvcc {command[0]} does not run: {error}") from error
    return done.stdout + done.stderr


def _include_dirs(home: Path) -> Iterator[Path]:
    targets = (home / "targets" / target for target in _TARGETS.get(platform.machine(), ()))
    includes = (root / "include" for root in (home, *targets))
    yield from (path for include in includes for path in (include, include / "cccl") if path.is_dir())


def find_nvcc_cudart(nvcc: Nvcc, settings: Settings) -> Path | None:
    """Return the CUDA runtime library to link: the toolkit's, else a wheel's of the same major version."""
    if found := find_cudart(nvcc):
        return found
    kit = find_cuda_headers(settings)
    return find_cudart(kit) if kit and kit.major == nvcc.major else None


# ---- the step of the build -------------------------------------------------------------------------------------


def nvcc_step(nvcc: Nvcc, compiler: Compiler, unit: Unit, archs: Sequence[str], include_flags: Sequence[str]) -> Step:
    """Return the command that compiles a text with nvcc to an object.

    Args:
        nvcc: What `find_nvcc` found.
        compiler: The host's compiler, which gets what is left when nvcc has taken the device code out.
        unit: The text.
        archs: The architectures, `("sm_80", "sm_90a")`.
        include_flags: The options that say where headers are.
    """
    command = (
        str(nvcc.path),
        f"-ccbin={compiler.command[0] if len(compiler.command) == 1 else f'./{_HOST_COMPILER}'}",
        *_defaults(unit.flags),
        *(f"-gencode=arch=compute_{number}{suffix},code=sm_{number}{suffix}" for number, suffix in _split(archs)),
        *_FLAGS,
        *unit.flags,
        *include_flags,
        *("-MD", "-MF", f"{unit.file}.d"),
        *("-c", unit.file, "-o", f"{unit.file}.o"),
    )
    return Step(output=f"{unit.file}.o", command=command, inputs=(unit.file,))


def _split(archs: Iterable[str]) -> Iterator[tuple[int, str]]:
    return map(capability_of, archs)


def _defaults(flags: Sequence[str]) -> Iterator[str]:
    """Yield the standard and the optimisation, unless the user's flags have them: nvcc warns of two."""
    if not any(re.match(r"--?std(?:=|$)", flag) for flag in flags):
        yield "-std=c++17"
    if not any(re.match(r"-O\d?$|--optimize", flag) for flag in flags):
        yield "-O2"


def write_host_compiler(compiler: Compiler, work_dir: Path) -> None:
    """Write a script for a compiler's command of several words: nvcc takes the name of one file."""
    if len(compiler.command) > 1:
        script = work_dir / _HOST_COMPILER
        script.write_text(f'#!/bin/sh\nexec {shlex.join(compiler.command)} "$@"\n')
        script.chmod(0o700)


def is_of_nvcc(error: CompileError, nvcc: Nvcc) -> bool:
    """Tell whether it was nvcc that failed in a build."""
    return any(str(nvcc.path) in command for command in error.command)


def nvcc_failure(error: CompileError, nvcc: Nvcc) -> CompileError | ToolchainError:
    """Return a failure of nvcc, which `run_ninja` takes for the host's compiler, as what it is."""
    release = ".".join(map(str, nvcc.version))
    if found := re.search(r"Unsupported gpu architecture '(\w+)'", error.log):
        known = ", ".join(re.findall(r"\bsm_\w+", _run([str(nvcc.path), "--list-gpu-code"])))
        return ToolchainError(
            f"this nvcc ({release}) does not know {found[1].replace('compute_', 'sm_')}; it knows {known}, some of "
            "them with a suffix a or f. Point JITLOAD_NVCC to another one, or name another architecture."
        )
    from jitload.cuda.nvrtc import parse_diagnostics as parse_cuda_diagnostics

    hint = ""
    if "unsupported GNU version" in error.log or "unsupported clang version" in error.log:
        hint = f"nvcc {release} does not work with this host compiler: name an older one, JITLOAD_CXX=g++-12."
    # Each architecture's pass repeats what it finds.
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
