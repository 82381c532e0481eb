"""Builds the library of a request whose architectures include the CPU.

While g++ compiles the kernels, NVRTC checks that they would compile for a GPU, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from jitload.building.files_read import files_in_options, headers_to_record, search_dirs
from jitload.building.native import NativeName
from jitload.building.ninja import run_ninja, write_ninja
from jitload.building.resources import run_in_background
from jitload.building.runtime import find_objects, library_steps
from jitload.cache.store import Work
from jitload.codegen.wrapper import write_sources, write_wrapper
from jitload.cpu.build import SHORT_HEADERS, compile_for_cpu
from jitload.cuda.messages import missing_header
from jitload.errors import CompileError, LaunchSpecError, ToolchainError, warn_once
from jitload.kernels.bounds import add_bound_checks, find_separation
from jitload.kernels.compilation import check_device_code, compile_for_arch, compile_for_gpus
from jitload.kernels.source import check_is_not_ptx, device_source, naming_exports
from jitload.model import CompiledSource, CpuProgram
from jitload.request.options import old_dialect
from jitload.request.request import Request
from jitload.request.variants import groups
from jitload.signature.exports import check_layouts
from jitload.toolchain.cuda import CudaToolchain, extra_of
from jitload.toolchain.fingerprints import compiler_identity
from jitload.toolchain.host import INCLUDE_DIR, Compiler, find_ninja, tvm_ffi_include_dirs

# Kernels may need the C++ library, libm and threads, so the compiler's default libraries are linked.
_LINK_OPTIONS = ("-pthread",)
_OLDEST_COMPILER = 11
# These functions access memory on behalf of instrumented kernels, so calls of them are checked.
_INSTRUMENTED_LINK_OPTIONS = (*_LINK_OPTIONS, "-Wl,--wrap=memset", "-Wl,--wrap=memcpy", "-Wl,--wrap=memmove")


def build_cpu_library(
    request: Request, toolchain: CudaToolchain | None, compiler: Compiler, work: Work
) -> tuple[Path, ...]:
    """Build a library whose kernels run on the CPU and on any GPUs in the request.

    If the request names no GPU, NVRTC only checks the source while g++ compiles it.

    Returns:
        The user's files that were read, and the paths at which a new file would be read instead of one of them.
    """
    check_is_not_ptx(request)
    _check_compiler(compiler, work.cache_dir)
    if dialect := old_dialect(request.cpu_flags):
        raise ToolchainError(f"kernels on the CPU need C++17 or newer, not {dialect}: leave this option out")
    names: tuple[NativeName, ...] = ("runtime", "cpu_watched" if request.instrumentation else "cpu_runtime")
    runtimes = find_objects(names, request.settings)
    with gpu_check(request, toolchain) as check:
        ninja = find_ninja(request.settings)
        programs, compiled = [], []
        parts = groups(request)
        for number, part in enumerate(parts):
            with naming_exports(part):
                source = device_source(part)._replace(part=number)
                program = compile_for_cpu(source, compiler, toolchain, ninja, work.dir)
                is_race = request.instrumentation == ("race",) and len(request.archs) == 1
                if toolchain is not None and is_race and (steps := find_separation(source, toolchain)):
                    bare = source._replace(part=len(parts) + number, instrumentation=())
                    separate = compile_for_cpu(bare, compiler, toolchain, ninja, work.dir)
                    program = program._replace(separate=separate, separation=steps)
            check_shared_memory(part, toolchain, program)
            gpus: tuple[CompiledSource, ...] = ()
            if toolchain is not None and len(request.archs) > 1:
                gpus = add_bound_checks(part, compile_for_gpus(part, toolchain), toolchain)
            check_layouts((*gpus, program.compiled))
            programs.append(program)
            compiled.append(gpus)
        write_sources(request, compiled, work.dir, programs)
        objects = (p.object_file for program in programs for p in (program, program.separate) if p)
        options = _INSTRUMENTED_LINK_OPTIONS if request.instrumentation else _LINK_OPTIONS
        write_wrapper(work.dir)
        write_ninja(work.dir, library_steps(compiler, (*objects, *runtimes), request.product, options))
        run_ninja(ninja, work.dir, name=request.name)
        headers = {*check.result(), *(path for gpus in compiled for gpu in gpus for path in gpu.headers)}
        for program in programs:
            headers.update(_headers_read(request, toolchain, work, program))
    return tuple(sorted(headers))


def _check_compiler(compiler: Compiler, cache_dir: Path) -> None:
    """Raise ToolchainError if the compiler is not a recent g++, with which jitload detects and instruments kernels."""
    version = re.search(r"gcc version (\d+)", compiler_identity(compiler, cache_dir))
    if version is None or int(version[1]) < _OLDEST_COMPILER:
        raise ToolchainError(
            f"kernels on the CPU are compiled by g++ {_OLDEST_COMPILER} or newer, and the C++ compiler is "
            f"{' '.join(compiler.command)!r}: install g++ (apt install g++, or dnf install gcc-c++), and set "
            "JITLOAD_CXX=g++ if it is not found first."
        )


def _headers_read(request: Request, toolchain: CudaToolchain | None, work: Work, program: CpuProgram) -> Iterator[Path]:
    """Yield the files that were read, and the paths at which a new file would be read instead of one of them.

    Headers of jitload, tvm-ffi and CUDA are left out, because the cache key contains their versions.
    """
    versioned_dirs = (INCLUDE_DIR, *tvm_ffi_include_dirs(), *(toolchain.include_dirs if toolchain else ()))
    dirs = search_dirs(tuple(map(Path, request.include_dirs)), request.cpu_flags, request.settings.environment)
    texts = [text for _, text in request.pieces]
    yield from headers_to_record(texts, program.files_read, dirs, versioned_dirs, cache_dir=work.cache_dir)
    yield from files_in_options(request.cpu_flags)


# ---- the check for GPUs ----------------------------------------------------------------------------------------------

_ARCH = "sm_90"  # an architecture that every supported NVRTC knows
_MAX_STATIC_SHARED = 48 << 10
_HINT = (
    "Write code for the CPU alone under #ifdef JITLOAD_CPU, or turn this check off with gpu_check=False or "
    "JITLOAD_CPU_GPU_CHECK=0."
)


@contextmanager
def gpu_check(request: Request, toolchain: CudaToolchain | None) -> Iterator[Future[tuple[Path, ...]]]:
    """Check with NVRTC, while a `with` block runs, that a request for the CPU would also compile for a GPU.

    Yield a future. Its result is the user's headers that NVRTC read.

    If the block raises an error, wait for NVRTC, which must not be running when the program ends. Then raise NVRTC's
    error if NVRTC failed, too, and the block's error is vague, that is, a LaunchSpecError or an error in one of
    jitload's headers. Otherwise, raise the block's error.
    """
    if not request.settings.checks_for_gpu or len(request.archs) > 1:  # with GPUs in `archs`, NVRTC compiles anyway
        check: Future[tuple[Path, ...]] = Future()
        check.set_result(())
    else:
        check = run_in_background(_check, request, toolchain)
    try:
        yield check
    except Exception as error:
        nvrtc_error = check.exception()
        is_vague = isinstance(error, LaunchSpecError) or _is_about_own_header(error)
        if nvrtc_error is not None and is_vague:
            raise nvrtc_error from error
        raise


def _check(request: Request, toolchain: CudaToolchain | None) -> tuple[Path, ...]:
    """Let NVRTC check the kernels of a request. Raise NVRTC's error, or return the user's headers that NVRTC read.

    If NVRTC or a CUDA header is missing, log once that kernels are not checked, and return an empty tuple.
    """
    reason = "there is no NVRTC of CUDA 12.4 or newer. Install it with: pip install 'jitload[cu13]'"
    if toolchain is not None and toolchain.version >= (12, 4):
        try:
            with naming_exports(request):
                checked = [check_device_code(device_source(part), _ARCH, toolchain) for part in groups(request)]
                return tuple(path for paths in checked for path in paths)
        except ToolchainError as error:
            reason = error.message()
        except CompileError as error:
            reason = _missing_cuda_header(error, toolchain)
            if not reason:
                error.hint = "\n".join(filter(None, (error.hint, f"NVRTC checked this source for a GPU. {_HINT}")))
                raise
    warn_once(f"Kernels for the CPU are not checked for GPUs: {reason}", level=logging.INFO)
    return ()


def check_shared_memory(request: Request, toolchain: CudaToolchain | None, program: CpuProgram) -> None:
    """Raise CompileError if a kernel has too much static shared memory for a GPU.

    NVRTC's front end does not check this. The sizes are those for the CPU, where less of the code may be optimized
    away, so NVRTC also makes machine code if a size is too large.
    """
    if not request.settings.checks_for_gpu or toolchain is None:
        return
    for kernel in program.compiled.cubin.kernels:
        size = program.kernels[kernel.symbol].shared_bytes
        if size > _MAX_STATIC_SHARED and _has_too_much_shared_memory(request, toolchain):
            raise CompileError(
                stage="host",
                name=request.name,
                log=f"kernel {kernel.name!r} has __shared__ variables of {size} bytes, and on a GPU they can have "
                f"{_MAX_STATIC_SHARED} bytes at most. Dynamic shared memory can have more: extern __shared__, and "
                "Launch(shared_bytes=…).",
                hint=f"A GPU cannot run this source. {_HINT}",
            )


def _has_too_much_shared_memory(request: Request, toolchain: CudaToolchain) -> bool:
    try:
        compile_for_arch(device_source(request), _ARCH, toolchain)
    except CompileError as error:
        return "too much shared data" in error.log
    return False


def _is_about_own_header(error: Exception) -> bool:
    if not isinstance(error, CompileError):
        return False
    files = [Path(diagnostic.file) for diagnostic in error.diagnostics if "error" in diagnostic.severity]
    return bool(files) and files[0].is_relative_to(INCLUDE_DIR)


def _missing_cuda_header(error: CompileError, toolchain: CudaToolchain) -> str:
    """Return a message if NVRTC rejected the source because a CUDA header is missing, and "" otherwise."""
    name = missing_header(error.log)
    files = [Path(diagnostic.file) for diagnostic in error.diagnostics if "open source file" in diagnostic.message]
    if not name or not files:
        return ""
    is_included_by_cuda = any(files[0].is_relative_to(root) for root in toolchain.include_dirs)
    is_own = name in SHORT_HEADERS or (INCLUDE_DIR / "cpu" / name).is_file()
    if is_included_by_cuda or name.startswith("cuda/") or is_own:
        return f"CUDA's header {name!r} is missing. Install it with: pip install {extra_of(toolchain.major)}"
    return ""
