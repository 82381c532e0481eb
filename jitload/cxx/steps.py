"""Hand-written C++ in, the files and commands of its build out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jitload.building.ninja import Step, compile_step
from jitload.cxx.embedding import assembler_text
from jitload.cxx.nvcc import nvcc_step
from jitload.cxx.precompiled import Precompiled
from jitload.cxx.text import unit_text
from jitload.request.request import HostSource, Request, Unit
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.host import Compiler, own_include_dir, tvm_ffi_include_dirs

STANDARD = "-std=c++17"
FLAGS = ("-O2", "-pipe", "-fPIC", "-fvisibility=hidden", "-DJITLOAD_LAUNCHER_LINKED")
# Bound when it is loaded, so that an unknown symbol is an error then and not at the first call; and never unloaded.
_LINK_FLAGS = ("-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,noexecstack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What the steps of a build share."""

    request: Request
    host: HostSource
    kit: CudaToolchain | Nvcc | None
    compiler: Compiler
    cubins: tuple[str, ...]
    link_flags: tuple[str, ...]
    precompiled: Mapping[str, Precompiled] = field(default_factory=dict)  # by the unit's file


def write_host_sources(request: Request, host: HostSource, work_dir: Path) -> None:
    """Write the C++, the cubins, and the assembler text that embeds them."""
    exporting = next((unit for unit in host.units if not unit.is_file), None)
    for unit in host.units:
        exports = (request.functions or ()) if unit is exporting else ()
        text = unit_text(unit, tuple((name, launch.doc or "") for name, launch in exports))
        (work_dir / unit.file).write_text(text, encoding="utf-8", newline="")
    for name, data in host.cubins:
        (work_dir / f"{name}.cubin").write_bytes(data)
    if host.cubins:
        (work_dir / "cubins.s").write_text(assembler_text([name for name, _ in host.cubins]), encoding="utf-8")


def compile_steps(build: Build) -> tuple[Step, ...]:
    """Return the commands that make objects: of each unit, and of the cubins."""
    command = build.compiler.command
    steps = [_unit_step(build, unit) for unit in build.host.units]
    if build.cubins:
        reads = tuple(f"{name}.cubin" for name in build.cubins)
        steps.append(compile_step(command, (), "cubins.s", "cubins.o", reads=reads))
    return tuple(steps)


def _unit_step(build: Build, unit: Unit) -> Step:
    if isinstance(build.kit, Nvcc) and unit.is_mixed:
        dirs = include_flags((), build.request.include_dirs)  # nvcc knows its own
        return nvcc_step(build.kit, build.compiler, unit, build.request.archs, dirs)
    header = build.precompiled.get(unit.file)
    first = ("-include", str(header.path)) if header else ()
    flags = (*first, *_unit_flags(build, unit), "-MD", "-MF", f"{unit.file}.d")
    return compile_step(build.compiler.command, flags, unit.file, f"{unit.file}.o")


def link_objects(build: Build, compiles: Sequence[Step], launcher: Path | None) -> Step:
    """Return the command that links them with the launcher."""
    shared = () if launcher is None else (str(launcher),)
    objects = (*(step.output for step in compiles), *shared, *build.host.objects)
    product = f"{build.request.slug}.so"
    command = (*build.compiler.command, *objects, *_LINK_FLAGS, "-o", product, *build.link_flags)
    return Step(output=product, command=command, inputs=objects)


def _unit_flags(build: Build, unit: Unit) -> tuple[str, ...]:
    """Return the options of a unit."""
    return (
        *(("-x", "c") if unit.file.endswith(".c") else (STANDARD,)),
        *FLAGS,
        *unit.flags,
        *build.host.flags,
        *include_flags(build.kit.include_dirs if build.kit else (), build.request.include_dirs),
    )


def include_flags(cuda_dirs: Sequence[Path], user_dirs: Sequence[str]) -> tuple[str, ...]:
    """Return where headers are: ours come before tvm-ffi's of the same names, the user's before CUDA's."""
    own = own_include_dir().parent
    return (
        *(f"-I{path}" for path in (own / "upstream", own, *user_dirs)),
        *(word for path in (*tvm_ffi_include_dirs(), *cuda_dirs) for word in ("-isystem", str(path))),
    )


def driver_step(text: str, build: Build, work_dir: Path) -> Step:
    """Write C text that finds functions of the driver, and return the command that compiles it."""
    (work_dir / "driver_calls.c").write_text(text, encoding="utf-8")
    return compile_step(build.compiler.command, ("-x", "c", *FLAGS), "driver_calls.c", "driver_calls.c.o")
