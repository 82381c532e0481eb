"""Refuses text that is not device code, because NVRTC's messages would not say what to do."""

from __future__ import annotations

from collections.abc import Sequence

from jitload.cpptext.declarations import find_candidates
from jitload.errors import JitLoadError, ToolchainError
from jitload.request.kind import looks_like_kernels
from jitload.request.request import Request
from jitload.words import Argument, Words


def check_is_device_code(request: Request) -> None:
    """Raise an error for text that is not device code.

    Raises:
        ToolchainError: The text launches kernels with `<<<…>>>`, which needs nvcc.
        JitLoadError: The text is C++ for the host, or PTX.
    """
    if request.is_kind_explicit:
        return
    texts = [text for _, text in request.pieces]
    if any(".version" in text for text in texts):
        _check_is_not_ptx(request)
    if looks_like_kernels(texts) and find_candidates(texts):  # `find_candidates` caches its result for later steps
        return
    from jitload.cpptext.source_kind import classify

    kind = classify(texts, has_embed_cubin=False, options=request.options, for_nvrtc=True)
    if kind == "mixed":
        raise ToolchainError(
            Words(
                f"source {request.name!r} launches kernels with <<<…>>>, or with Thrust or CUB, which needs nvcc: pass "
                "it to ",
                *(Argument("load_inline()"), " for a GPU and name the host function that launches them, "),
                Argument("functions", "run", python="functions=['run']"),
                ", or keep only kernels in it that launch no others.",
            )
        )
    if kind == "host" and not _may_have_hidden_kernels(texts, request.options):
        raise JitLoadError(
            Words(
                f"module {request.name!r} has no device code (no __global__, __device__ or __constant__); jitload "
                "compiles kernels and generates the C++ around them. For C++ of your own, name its functions in ",
                *(Argument("functions"), ", "),
                Argument("host kind", python="export them with TVM_FFI_DLL_EXPORT_TYPED_FUNC, or pass kind='host'"),
                ".",
            )
        )


def _check_is_not_ptx(request: Request) -> None:
    from jitload.kernels.ptx import format_of

    if label := next((label for label, text in request.pieces if format_of(text)), None):
        raise JitLoadError(
            f"{label} is PTX, not CUDA source: compile it with compile_cubin(), and pass the result as "
            "embed_cubin={'k': …} without a source, with functions={'f': Launch(signature='(float* x, int n)', …)}"
        )


def _may_have_hidden_kernels(texts: Sequence[str], options: Sequence[str]) -> bool:
    """Return whether an included header, or a macro in an option, may define kernels."""
    has_include = any("#include" in text for text in texts) or any("-include=" in option for option in options)
    has_macro = any("__global__" in option for option in options)
    return (has_include or has_macro) and not any("TVM_FFI_" in text for text in texts)
