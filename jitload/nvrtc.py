"""A drop-in replacement for `tvm_ffi.cpp.nvrtc`, which compiles CUDA source to a cubin in one call."""

from __future__ import annotations

from collections.abc import Sequence

from jitload.cuda.job import NvrtcJob, device_options
from jitload.cuda.nvrtc import log_warnings, run_nvrtc
from jitload.cuda.predefined import declarations_for, declarations_for_texts
from jitload.errors import CompileError

__all__ = ["nvrtc_compile"]


def nvrtc_compile(
    source: str,
    *,
    name: str = "kernel.cu",
    arch: str | None = None,
    extra_opts: Sequence[str] | None = None,
    isolate: bool | None = None,
) -> bytes:
    """Compile CUDA source to a cubin, with the signature of `tvm_ffi.cpp.nvrtc.nvrtc_compile`.

    Args:
        source: CUDA C++.
        name: The name of the source in messages.
        arch: The architecture, such as `"sm_90a"`; by default the current GPU's, with its suffix.
        extra_opts: More NVRTC options, such as `["--use_fast_math"]`.
        isolate: Whether NVRTC runs in a child process, so that a crash of NVRTC raises a CompileError. The default is
            `JITLOAD_ISOLATE`, or False if that is not set.

    Returns:
        The cubin's bytes.

    Raises:
        CompileError: NVRTC rejected the source.
        ToolchainError: There is no NVRTC, or it does not know the architecture.

    Example:
        `cubin = nvrtc_compile('extern "C" __global__ void f(float* x) { x[0] = 1; }', arch="sm_90a")`
    """
    from jitload.cuda.headers import headers_in_memory
    from jitload.request.arguments import check_flags, check_text, read_strings
    from jitload.request.options import take_archs
    from jitload.settings import read_settings
    from jitload.toolchain.arch import resolve_one_gpu_arch
    from jitload.toolchain.cuda import find_cuda_toolchain, nvrtc_include_dirs

    check_text(name, "name")
    check_flags(isolate=isolate)
    settings = read_settings()
    toolchain = find_cuda_toolchain(settings)
    extra, named = take_archs(read_strings(extra_opts, "extra_opts"))
    target = resolve_one_gpu_arch(arch or "native", settings, function="nvrtc_compile()", option_archs=named)
    include_dirs = nvrtc_include_dirs(toolchain)
    options = (*device_options(toolchain.version, target), *(f"-I{path}" for path in include_dirs), *extra)
    text = check_text(source, "source").removeprefix("\ufeff")
    job = NvrtcJob(
        name=name,
        source=text,
        options=options,
        headers=headers_in_memory(include_dirs, text),
        declared=declarations_for_texts((text,)),
        is_isolated=settings.isolates if isolate is None else isolate,
    )
    while True:
        try:
            result = run_nvrtc(toolchain.nvrtc_path, job)
            break
        except CompileError as error:
            job = job._replace(declared=(*job.declared, *declarations_for(error, job.declared)))
    log_warnings(result.log, include_dirs)
    return result.cubin
