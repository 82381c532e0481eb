"""Checks with NVRTC that kernels for the CPU would compile for a GPU, too, while g++ compiles them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from jitload.building.resources import run_in_background
from jitload.cuda.kernels import check_device_code, device_source, naming_exports
from jitload.cuda.nvrtc import missing_header
from jitload.errors import CompileError, LaunchSpecError, ToolchainError, warn_once
from jitload.model import CpuProgram
from jitload.request.request import Request
from jitload.toolchain.cuda import CudaToolchain
from jitload.toolchain.host import own_include_dir

_ARCH = "sm_90"  # every NVRTC that jitload supports knows it
_MAX_STATIC_SHARED = 48 << 10
_HINT = (
    "A GPU cannot run this source. Write code for the CPU alone under #ifdef JITLOAD_CPU, or turn this check off with "
    "gpu_check=False or JITLOAD_CPU_GPU_CHECK=0."
)


@contextmanager
def gpu_check(request: Request, toolchain: CudaToolchain | None) -> Iterator[Future[tuple[Path, ...]]]:
    """Check a request for the CPU during a `with` block; the future's result is the user's headers that NVRTC read.

    An error in the block is raised rather than NVRTC's, unless it is about a header of ours or says that a kernel is
    missing. It is raised after NVRTC has finished, because the program may end with it, and NVRTC must not be running
    then.
    """
    if not request.settings.checks_for_gpu or len(request.archs) > 1:  # NVRTC compiles the others
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
    """Raise NVRTC's errors; if NVRTC cannot judge the source, log once that nothing was checked."""
    reason = "there is no NVRTC. Install it with: pip install 'jitload[cu13]'"
    if toolchain is not None:
        try:
            with naming_exports(request):
                return check_device_code(device_source(request), _ARCH, toolchain)
        except ToolchainError as error:
            reason = str(error)
        except CompileError as error:
            reason = _missing_cuda_header(error, toolchain)
            if not reason:
                error.hint = "\n".join(filter(None, (error.hint, _HINT)))
                raise
    warn_once(f"Kernels for the CPU are not checked for GPUs: {reason}", level=logging.INFO)
    return ()


def check_shared_memory(request: Request, program: CpuProgram) -> None:
    """Raise an error for a kernel with more shared memory than a GPU gives it: NVRTC's front end does not see that."""
    if not request.settings.checks_for_gpu:
        return
    for kernel in program.compiled.cubin.kernels:
        if (size := program.kernels[kernel.symbol].shared_bytes) > _MAX_STATIC_SHARED:
            raise CompileError(
                stage="host",
                name=request.name,
                log=f"kernel {kernel.name!r} has __shared__ variables of {size} bytes, and on a GPU they can have "
                f"{_MAX_STATIC_SHARED} bytes at most. Dynamic shared memory can have more: extern __shared__, and "
                "Launch(shared_bytes=…).",
                hint=_HINT,
            )


def _is_about_own_header(error: Exception) -> bool:
    if not isinstance(error, CompileError):
        return False
    files = [Path(diagnostic.file) for diagnostic in error.diagnostics if "error" in diagnostic.severity]
    return bool(files) and files[0].is_relative_to(own_include_dir().parent)


def _missing_cuda_header(error: CompileError, toolchain: CudaToolchain) -> str:
    """Return which of CUDA's own headers is missing, if that is why NVRTC rejected the source."""
    name = missing_header(error.log)
    files = [Path(diagnostic.file) for diagnostic in error.diagnostics if "open source file" in diagnostic.message]
    if not name or not files:
        return ""
    is_included_by_cuda = any(files[0].is_relative_to(root) for root in toolchain.include_dirs)
    if is_included_by_cuda or name.startswith("cuda/") or (own_include_dir().parent / "cpu" / name).is_file():
        return f"CUDA's header {name!r} is missing. Install it with: pip install 'jitload[cu13]'"
    return ""
