"""Runs a call of a kernel with all checks (`f.check`), and reads what a launch needs of its tensors (`f.extents`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from jitload.bounds.extents import Extents, read_extents
from jitload.checking.copies import copy_arguments
from jitload.checking.sanitizer import check_on_gpu
from jitload.cpu.text import without_gpu_headers
from jitload.errors import CompileError, JitLoadError
from jitload.inspection.code import check_single_kernel
from jitload.kernels.bounds import compile_plainly
from jitload.kernels.compilation import compile_for_gpus
from jitload.loader.function import TypedFunction, kernel_of
from jitload.loader.variants import explain_call
from jitload.pipeline import load_request
from jitload.request.arguments import Instrumentation
from jitload.request.kind import kernels_alone
from jitload.request.options import cpu_options
from jitload.request.request import Request
from jitload.request.tune import Tune
from jitload.request.variants import expand, groups, specialize
from jitload.toolchain.arch import CPU
from jitload.toolchain.cuda import find_cuda_toolchain
from jitload.tracebacks import ends_at_caller

_ANY_GPU = "sm_90"  # for the extents of kernels that were loaded for the CPU alone


@ends_at_caller
def check(function: TypedFunction, *args: Any, on: Literal["cpu", "gpu"] = "cpu") -> None:
    """Run a call on the CPU with `sanitize=("address", "race")`, also if the function was loaded for a GPU.

    The kernel runs on copies of the tensors. The call changes nothing, and returns nothing if it finds nothing.

    Args:
        function: A typed function, or one with a configuration: `mod.scale[grid, block]`.
        *args: The arguments of a call.
        on: `"gpu"` runs the call on the GPU instead, in other processes, under NVIDIA's compute-sanitizer.

    Raises:
        RuntimeError: The kernel accesses memory outside its tensors or has a race, for example. The message names the
            kernel, the block, the thread and the line.
        JitLoadError: The kernel cannot run on the CPU, or its CUDA source is not at hand. That is so for Triton
            kernels, PyTorch extension sources and other hand-written C++, and after `load_module`.
        ToolchainError: There is no C++ compiler, or with `on="gpu"` no compute-sanitizer or no GPU.
    """
    if on not in ("cpu", "gpu"):
        raise ValueError(f"on= must be 'cpu' or 'gpu', got {on!r}")
    request = _request_of_call(function, args)
    if on == "gpu":
        return check_on_gpu(function, request, args)
    on_cpu = _load_on_cpu(request, function)
    config = (on_cpu._jitload_facts["index"], *function._jitload_config[1:-1], None)
    on_cpu._jitload_with(config)(*copy_arguments(function, args))
    return None


def extents_of(function: TypedFunction) -> Extents:
    """Return what a launch touches of each tensor, for the first GPU among the architectures of the function.

    Raises:
        JitLoadError: The function does not have exactly one kernel, or its CUDA source is not at hand.
        ToolchainError: There is no NVRTC.
    """
    check_single_kernel(function._jitload_facts)
    request = _request_of(function)
    arch = next((arch for arch in request.archs if arch != CPU), _ANY_GPU)
    request = expand(kernels_alone(request._replace(archs=(arch,))))
    toolchain = find_cuda_toolchain(request.settings)
    kernel = kernel_of(function._jitload_facts)
    for group in groups(request):
        for code in compile_for_gpus(group, toolchain):
            if symbol := next((other.symbol for other in code.cubin.kernels if other.name == kernel.name), None):
                return read_extents(compile_plainly(group, code, toolchain), symbol, kernel.parameters)
    raise AssertionError(kernel.name)


def _request_of(function: TypedFunction) -> Request:
    """Return the request for a kernel, or raise JitLoadError if it has no CUDA source."""
    if isinstance(function, TypedFunction) and "returns" not in function._jitload_facts:
        request = function._jitload_library.request
        if isinstance(request, Request) and request.pieces:
            return request
    raise JitLoadError(
        f"{getattr(function, '__name__', function)}() cannot be examined, because it has no CUDA source at hand: it is "
        "from a library, a cubin or Triton, or it is a host function. Those of PyTorch extension sources, for example, "
        "launch their kernels themselves. Load the kernel alone from its source, with load_inline() or load()"
    )


def _request_of_call(function: TypedFunction, args: tuple[Any, ...]) -> Request:
    """Return the request for a function, with the launch of the variant that a call chooses."""
    request, name = _request_of(function)._replace(tuned=None), function.__name__
    launch = dict(request.functions or ()).get(name)
    if launch is not None and isinstance(launch.tune, Tune):
        variant = explain_call(function, args)
        launch = replace(launch, kernel=launch.kernel or function._jitload_facts["kernel"]["name"])
        launch = specialize(launch, name, tuple(variant.values.items()), tuple(variant.dtypes.items()))
    return request if launch is None else request._replace(functions=((name, launch),))


def _load_on_cpu(request: Request, function: TypedFunction) -> TypedFunction:
    """Return the function for the CPU with checks.

    It is loaded without the device code that its kernel does not need, which only a GPU may be able to run.
    """
    request = request._replace(
        kind="cpu",
        archs=(CPU,),
        cpu_flags=request.cpu_flags or cpu_options(request.options),
        instrumentation=Instrumentation(("address", "race")),
        settings=request.settings._replace(checks_for_gpu=False),  # it was compiled for one
    )
    of_kernel = kernels_alone(request, only=kernel_of(function._jitload_facts).name)
    pieces = tuple((label, without_gpu_headers(text)) for label, text in of_kernel.pieces)
    try:
        module = load_request(of_kernel._replace(pieces=pieces))
    except CompileError:  # the kernel needs more, or has an error, which the message about the whole source names
        module = load_request(request)
    on_cpu: TypedFunction = module[function.__name__]
    return on_cpu
