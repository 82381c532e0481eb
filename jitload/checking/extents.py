"""Reads from the source of a typed function what its launches touch."""

from __future__ import annotations

from jitload.bounds.extents import Extents, read_extents
from jitload.errors import JitLoadError
from jitload.inspection.code import check_single_kernel
from jitload.kernels.bounds import compile_plainly
from jitload.kernels.compilation import compile_for_gpus
from jitload.loader.function import TypedFunction, kernel_of
from jitload.request.kind import kernels_alone
from jitload.request.request import Request
from jitload.request.variants import expand, groups
from jitload.toolchain.arch import CPU
from jitload.toolchain.cuda import find_cuda_toolchain

_ANY_GPU = "sm_90"  # for kernels that were loaded for the CPU alone


def extents_of(function: TypedFunction) -> Extents:
    """Return what a launch touches of each tensor, for the first GPU among the architectures of the function.

    Raises:
        JitLoadError: The function does not have exactly one kernel, or its CUDA source is not at hand.
        ToolchainError: There is no NVRTC.
    """
    facts, request = function._jitload_facts, function._jitload_library.request
    check_single_kernel(facts)
    if not isinstance(request, Request) or not request.pieces:
        raise JitLoadError(
            f"{function.__name__}() has no CUDA source at hand, from which its extents are worked out: it was loaded "
            "from a library, a cubin or Triton. Load it from its source, with load_inline() or load()"
        )
    arch = next((arch for arch in request.archs if arch != CPU), _ANY_GPU)
    whole = expand(kernels_alone(request._replace(archs=(arch,))))
    toolchain = find_cuda_toolchain(request.settings)
    kernel = kernel_of(facts)
    for part in groups(whole):
        for code in compile_for_gpus(part, toolchain):
            if found := next((other for other in code.cubin.kernels if other.name == kernel.name), None):
                return read_extents(compile_plainly(part, code, toolchain), found.symbol, kernel.parameters)
    raise AssertionError(kernel.name)
