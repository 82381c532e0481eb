"""The function `jitload.check`: runs a call of a kernel with all checks, on copies of its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from jitload.checking.copies import copy_arguments
from jitload.checking.sanitizer import check_on_gpu
from jitload.cpu.text import without_gpu_headers
from jitload.errors import CompileError, JitLoadError
from jitload.loader.function import TypedFunction, kernel_of
from jitload.loader.module import Module
from jitload.loader.variants import explain_call
from jitload.pipeline import load_request
from jitload.request.arguments import Instrumentation
from jitload.request.kind import kernels_alone
from jitload.request.launch import Launch
from jitload.request.options import cpu_options
from jitload.request.request import Request
from jitload.request.tune import Tune
from jitload.request.variants import specialize
from jitload.toolchain.arch import CPU
from jitload.tracebacks import ends_at_caller


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
    request, name = _request_of(function), function.__name__
    launch = dict(request.functions or ()).get(name)
    if launch is not None:
        request = request._replace(functions=((name, _chosen(function, args, launch)),))
    if on == "gpu":
        return check_on_gpu(function, request, args)
    on_cpu: TypedFunction = _load_on_cpu(_for_cpu(request), kernel_of(function._jitload_facts).name)[name]
    _, *config, _ = function._jitload_config
    index = on_cpu._jitload_facts["index"]
    on_cpu._jitload_with((index, *config, None))(*copy_arguments(function, args))
    return None


def _request_of(function: Any) -> Request:
    """Return the request for a function. Raise JitLoadError if its calls cannot be checked."""
    if not isinstance(function, TypedFunction):
        raise JitLoadError(
            f"cannot check {getattr(function, '__name__', function)!r}: it is not a kernel that jitload has loaded. "
            "Functions of PyTorch extension sources and of other C++ launch their kernels themselves. Load the "
            "kernels alone, without the C++, and check them"
        )
    facts, request = function._jitload_facts, function._jitload_library.request
    prefix = f"cannot check {function.__name__}()"
    if "triton" in facts:
        raise JitLoadError(f"{prefix}: it is a Triton kernel, and only kernels in CUDA C++ run on the CPU")
    if "returns" in facts:
        raise JitLoadError(f"{prefix}: it is a host function, which launches kernels itself. Check these kernels")
    if not isinstance(request, Request) or not request.pieces:
        raise JitLoadError(
            f"{prefix}: its source is not at hand, because it was loaded from a library or a cubin. Load it from its "
            "source, with load_inline() or load()"
        )
    return request._replace(tuned=None)


def _for_cpu(request: Request) -> Request:
    """Return a request for the CPU with checks."""
    return request._replace(
        kind="cpu",
        archs=(CPU,),
        cpu_flags=request.cpu_flags or cpu_options(request.options),
        instrumentation=Instrumentation(("address", "race")),
        settings=request.settings._replace(checks_for_gpu=False),  # it was compiled for one
    )


def _load_on_cpu(request: Request, kernel: str) -> Module:
    """Load a request without the device code that `kernel` does not need, which only a GPU may be able to run."""
    alone = kernels_alone(request, only=kernel)
    pieces = tuple((label, without_gpu_headers(text)) for label, text in alone.pieces)
    try:
        return _load(alone._replace(pieces=pieces))
    except CompileError:  # the kernel needs more, or has an error, which the message about the whole source names
        return _load(request)


def _load(request: Request) -> Module:
    return load_request(request, None, keep_module_alive=True, verbose=False)


def _chosen(function: TypedFunction, args: tuple[Any, ...], launch: Launch) -> Launch:
    """Return the launch of the variant that a call chooses."""
    if not isinstance(launch.tune, Tune):
        return launch
    chosen = explain_call(function, args)
    bare = replace(launch, kernel=launch.kernel or function._jitload_facts["kernel"]["name"])
    return specialize(bare, function.__name__, tuple(chosen.values.items()), tuple(chosen.dtypes.items()))
