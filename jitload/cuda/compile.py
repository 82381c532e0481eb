"""Compiles the device code of a request for each of its architectures, and refuses text that is not device code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.errors import JitLoadError, LaunchSpecError, ToolchainError
from jitload.request.kind import looks_like_kernels
from jitload.request.request import Request
from jitload.toolchain.arch import CPU
from jitload.toolchain.cuda import CudaToolchain

if TYPE_CHECKING:
    from jitload.cuda.kernels import DeviceSource
    from jitload.model import CompiledSource


def compile_device_code(request: Request, toolchain: CudaToolchain | None) -> tuple[CompiledSource, ...]:
    """Return the machine code for each architecture of a request: compiled, or read from the cubins that it gives."""
    if request.cubins:
        from jitload.cuda.cubins import read_given

        return read_given(request)
    assert toolchain is not None
    check_is_device_code(request)
    return compile_archs(request, toolchain)


def check_is_device_code(request: Request) -> None:
    """Refuse text that is not device code, because NVRTC's message about it would not say what to do.

    Raises:
        ToolchainError: The text launches kernels with `<<<…>>>`, which takes nvcc.
        JitLoadError: The text is C++ for the host, or PTX.
    """
    if request.is_kind_explicit:
        return
    from jitload.cpptext.declarations import find_candidates
    from jitload.cpptext.source_kind import classify

    texts = [text for _, text in request.pieces]
    if any(".version" in text for text in texts):
        _refuse_ptx(request)
    if looks_like_kernels(texts) and find_candidates(texts):  # NVRTC needs the candidates later, so nothing is lost
        return
    kind = classify(texts, has_embed_cubin=False, options=request.options, for_nvrtc=True)
    if kind == "both":
        raise ToolchainError(
            f"source {request.name!r} launches kernels with <<<…>>>, and that takes nvcc: give it to load_inline(), "
            "or keep only the kernels in it and launch them from C++ of your own, with embed_cubin=."
        )
    if kind == "host" and not _may_have_hidden_kernels(texts, request.options):
        raise JitLoadError(
            f"module {request.name!r} holds no device code (no __global__, __device__ or __constant__); jitload "
            "compiles kernels and generates the C++ around them. For C++ of your own, name its functions in "
            "functions=, export them with TVM_FFI_DLL_EXPORT_TYPED_FUNC, or say kind='host'."
        )


def _refuse_ptx(request: Request) -> None:
    from jitload.cuda.ptx import format_of

    if ptx := next((label for label, text in request.pieces if format_of(text)), None):
        raise JitLoadError(
            f"{ptx} is PTX and not CUDA source: compile it with compile_cubin(ptx), and pass the result in "
            "embed_cubin={'k': …} without a source, with functions={'f': Launch(signature='(float* x, int n)', …)}"
        )


def _may_have_hidden_kernels(texts: Sequence[str], options: Sequence[str]) -> bool:
    """Tell whether kernels may be in included headers, or come from a macro that an option defines."""
    is_included = any("#include" in text for text in texts) or any("-include=" in option for option in options)
    is_macro = any("__global__" in option for option in options)
    return (is_included or is_macro) and not any("TVM_FFI_" in text for text in texts)


def compile_archs(request: Request, toolchain: CudaToolchain) -> tuple[CompiledSource, ...]:
    """Compile the device code of a request for each of its GPU architectures."""
    from jitload.cuda.kernels import compile_kernels

    source = device_source(request)
    with naming_exports(request):
        compiled = tuple(compile_kernels(source, arch, toolchain) for arch in request.archs if arch != CPU)
    check_layouts(compiled)
    return compiled


def device_source(request: Request) -> DeviceSource:
    """Return the part of a request that concerns the compilers of device code."""
    from jitload.cuda.kernels import DeviceSource

    functions = request.functions or ()
    kernels = [launch.kernel for _, launch in functions if launch.kernel]
    return DeviceSource(
        name=request.name,
        pieces=request.pieces,
        options=request.options,
        include_dirs=tuple(map(Path, request.include_dirs)),
        kernels=tuple(dict.fromkeys(kernels)),
        signatures=tuple((launch.kernel or name, launch.signature) for name, launch in functions if launch.signature),
        cpu_flags=request.cpu_flags,
        instrumentation=request.instrumentation,
    )


@contextmanager
def naming_exports(request: Request) -> Iterator[None]:
    """Add to an error about `Launch.kernel` the name of the function that it was given for."""
    try:
        yield
    except LaunchSpecError as error:
        functions = request.functions or ()
        error.kernel = error.kernel or next((n for n, launch in functions if launch.kernel == error.expression), "")
        raise


def check_layouts(compiled: Sequence[CompiledSource]) -> None:
    """Refuse kernels that differ between architectures, because one wrapper launches all of them."""
    from jitload.cuda.kernels import layout_difference

    for other in compiled[1:]:
        if difference := layout_difference(compiled[0].cubin, other.cubin):
            raise LaunchSpecError(
                difference,
                hint="Build one library for each architecture, or declare the same kernels for all of them.",
            )
