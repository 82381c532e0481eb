"""Builds the library of a request whose architectures include the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jitload.building.files_read import files_in_options, headers_to_record, search_dirs
from jitload.building.library import write_sources
from jitload.building.ninja import COMPILE_FLAGS, Step, compile_step, run_ninja, write_ninja
from jitload.building.resources import run_in_background
from jitload.building.runtime import find_or_build_cpu_runtime, find_or_build_runtime, include_flags
from jitload.cache.store import Work
from jitload.cpu.build import compile_for_cpu
from jitload.cpu.gpu_check import check_shared_memory, gpu_check
from jitload.cuda.kernels import check_is_device_code, check_layouts, compile_for_gpus, device_source, naming_exports
from jitload.errors import ToolchainError
from jitload.model import CpuProgram
from jitload.request.request import Request
from jitload.toolchain.cuda import CudaToolchain
from jitload.toolchain.host import Compiler, compiler_identity, find_ninja, own_include_dir, tvm_ffi_include_dirs

# Kernels may need the C++ library, libm and threads, so the compiler's default libraries are linked.
_LINK_FLAGS = ("-shared", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-pthread")
# These functions access memory on behalf of instrumented kernels, so calls of them are checked.
_INSTRUMENTED_LINK_FLAGS = ("-Wl,--wrap=memset", "-Wl,--wrap=memcpy", "-Wl,--wrap=memmove")


def build_cpu_library(
    request: Request, toolchain: CudaToolchain | None, compiler: Compiler, work: Work, *, verbose: bool
) -> tuple[Path, ...]:
    """Build a library whose kernels run on the CPU, and on the GPUs that the request also names.

    If it names none, NVRTC checks the source while g++ compiles it.

    Returns:
        The user's headers that were read.
    """
    check_is_device_code(request)
    _check_compiler(compiler, work.cache_dir)
    runtimes = run_in_background(_find_or_build_runtimes, request, compiler, work.cache_dir)
    with gpu_check(request, toolchain) as check:
        ninja = find_ninja(request.settings)
        with naming_exports(request):
            program = compile_for_cpu(device_source(request), compiler, toolchain, ninja, work.dir)
        check_shared_memory(request, program)
        compiled = () if toolchain is None or len(request.archs) == 1 else compile_for_gpus(request, toolchain)
        check_layouts((*compiled, program.compiled))
        write_sources(request, compiled, work.dir, program)
        cubins = tuple(f"{gpu.cubin.arch}.cubin" for gpu in compiled)
        write_ninja(work.dir, _steps(request, program, compiler, cubins, runtimes.result()))
        run_ninja(ninja, work.dir, name=request.name, verbose=verbose)
        gpu_headers = {*check.result(), *(path for gpu in compiled for path in gpu.headers)}
    return tuple(sorted({*gpu_headers, *_headers_read(request, toolchain, work, program)}))


def _find_or_build_runtimes(request: Request, compiler: Compiler, cache_dir: Path) -> tuple[str, ...]:
    """Return the paths of the objects that the library is linked with."""
    runtime = find_or_build_runtime(compiler, cache_dir, request.settings)
    cpu = find_or_build_cpu_runtime(compiler, cache_dir, request.settings, watches=bool(request.instrumentation))
    return (str(runtime.product), str(cpu.product))


def _check_compiler(compiler: Compiler, cache_dir: Path) -> None:
    """Refuse compilers other than g++, on which recognising and watching kernels depends.

    Raises:
        ToolchainError: The compiler is not g++.
    """
    if "gcc version" not in compiler_identity(compiler, cache_dir):
        raise ToolchainError(
            f"kernels on the CPU are compiled by g++, and the C++ compiler is {' '.join(compiler.command)!r}: install "
            "g++ (apt install g++, or dnf install gcc-c++), and set JITLOAD_CXX=g++ if it is not found first."
        )


def _headers_read(request: Request, toolchain: CudaToolchain | None, work: Work, program: CpuProgram) -> Iterator[Path]:
    """Yield the headers that no version in the key covers, and the paths where other headers would be found first."""
    versioned_dirs = (own_include_dir().parent, *tvm_ffi_include_dirs(), *(toolchain.include_dirs if toolchain else ()))
    dirs = search_dirs(tuple(map(Path, request.include_dirs)), request.cpu_flags, request.settings.environment)
    texts = [text for _, text in request.pieces]
    yield from headers_to_record(texts, program.files_read, dirs, versioned_dirs, cache_dir=work.cache_dir)
    yield from files_in_options(request.cpu_flags)


def _steps(
    request: Request, program: CpuProgram, compiler: Compiler, cubins: tuple[str, ...], runtimes: tuple[str, ...]
) -> tuple[Step, ...]:
    flags = (*COMPILE_FLAGS, *include_flags())
    objects = ("wrapper.o", program.object_file, *runtimes)
    product = f"{request.slug}.so"
    wraps = _INSTRUMENTED_LINK_FLAGS if request.instrumentation else ()
    link = Step(
        output=product, command=(*compiler.command, *objects, "-o", product, *_LINK_FLAGS, *wraps), inputs=objects
    )
    return (compile_step(compiler.command, flags, "wrapper.cc", "wrapper.o", reads=cubins), link)
