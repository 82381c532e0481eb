"""Compiles the headers that builds of tests include once for a test run, and optimises their C++ less."""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from jitload.building.ninja import Step
from jitload.cache.store import claim_entry
from jitload.cpu import build as cpu_build
from jitload.cpu.text import compiler_flags
from jitload.host_cpp import library, precompiled, steps
from jitload.host_cpp.precompiled import HeaderSpec, PrecompiledHeader
from jitload.host_cpp.steps import HostBuild
from jitload.kernels.source import DeviceSource
from jitload.settings import read_settings
from jitload.toolchain.cuda import CudaToolchain
from jitload.toolchain.host import INCLUDE_DIR, find_compiler

HEADER = "jitload_cpu.h"  # of kernels for the CPU
OPTIMIZED = ["-O3"]  # `extra_cflags` of a kernel for the CPU that is compiled as it is for users
SANITIZED = ["-O1"]  # the same for kernels with `sanitize=`


def share_headers(run_dir: Path, patch: pytest.MonkeyPatch) -> None:
    """Let this process use the precompiled headers of a test run.

    The programs that tests start have none, unless they call this, too. All processes of the run share `run_dir`.
    """
    _share_prelude(run_dir / "shared" / "cache", patch)
    _share_cpu_header(run_dir / "cpu_header", patch)


def _share_prelude(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Precompile tvm-ffi's headers once in the cache of the run, with its launcher and without, for all processes.

    C++ without options then builds in half the time, objects as well. A text that does not compile is not compiled
    again without the header. A test that sets `JITLOAD_PRECOMPILE` gets what it asks for.
    """
    compile_library, build_object = library._compile, library._build_object

    def header_in_run(spec: HeaderSpec, build: HostBuild) -> PrecompiledHeader | None:
        settings = build.request.settings._replace(precompiles=True)
        options = {word for word in spec.command[1:] if word.startswith("-") and not word.startswith("-I")}
        if options == {steps.STANDARD, *steps.FLAGS, "-isystem"}:
            with suppress(FileExistsError):
                (directory.parent / f"precompiled{len(spec.includes)}").mkdir()
                with claim_entry(directory, spec.key, settings) as work:
                    assert not precompiled.make_header(spec, work)
        return precompiled.find_precompiled(spec, directory, settings, build.request.include_dirs)

    def with_headers(build: HostBuild) -> HostBuild:
        if build.request.settings.precompiles:
            return build
        headers = {file: header_in_run(spec, build) for file, spec in library._header_specs(build).items()}
        return replace(build, precompiled={file: header for file, header in headers.items() if header})

    def compile_in_run(build: HostBuild, specs: Mapping[str, HeaderSpec]) -> tuple[HostBuild, Step | None]:
        if build.request.settings.precompiles:
            return compile_library(build, specs)
        build = with_headers(build)
        return build, library._compile_and_try_link(build)

    patch.setattr(library, "_compile", compile_in_run)
    patch.setattr(library, "_build_object", lambda build: build_object(with_headers(build)))
    flags = ("-O0", *steps.FLAGS[1:])
    for module in (steps, library):  # half the time again
        patch.setattr(module, "FLAGS", flags)


def _share_cpu_header(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Precompile the header of kernels for the CPU once in a directory, for the processes of the run.

    g++ takes it where the options are the same, in half the time, and otherwise the header itself. Kernels without
    options but macros are compiled with `-O0`, in half of the time. A test that is about optimised loops passes
    `extra_cflags=OPTIMIZED`.
    """
    cpu_flags = cpu_build.cpu_flags

    def flags_in_run(source: DeviceSource, toolchain: CudaToolchain | None) -> tuple[str, ...]:
        flags = cpu_flags(source, toolchain)
        settings, own_flags = read_settings(), list(compiler_flags(source.cpu_flags))
        if source.instrumentation and not own_flags:
            return tuple("-O0" if flag == "-O1" else flag for flag in flags)
        if settings.cxx or own_flags not in ([], OPTIMIZED) or source.instrumentation:
            return flags
        level = "-O3" if own_flags else "-O0"
        flags = tuple(level if flag == "-O3" else flag for flag in flags)
        header_dir = directory.with_name(directory.name + level)
        compiled = header_dir / f"{HEADER}.gch"
        with FileLock(header_dir.with_suffix(".lock")):
            if not compiled.exists():
                header_dir.mkdir()
                command = [*find_compiler(settings).command, *flags, "-x", "c++-header"]
                header = INCLUDE_DIR / "cpu" / HEADER
                subprocess.run([*command, str(header), "-o", str(compiled)], check=True)
        return (f"-I{header_dir}", "-fpch-deps", *flags)

    patch.setattr(cpu_build, "cpu_flags", flags_in_run)
