"""A Triton kernel in, its `Cubin` out: the road from what a user gives to what a launch needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitload.model import Cubin
from jitload.settings import read_settings
from jitload.toolchain.arch import capability_of, resolve_gpu_arch, resolve_one_gpu_arch
from jitload.triton.compile import compile_plan
from jitload.triton.kernel import read_kernel
from jitload.triton.record import record_kernel
from jitload.triton.versions import find_triton
from jitload.triton.wanted import Asked, make_plan, read_wanted, refuse_for_compiled, refuse_other_archs


def extract_triton(  # noqa: PLR0913  the keywords are those that a launch of Triton's takes
    kernel: Any,
    *args: Any,
    signature: Mapping[str, Any] | str | None = None,
    constexprs: Mapping[str, Any] | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    arch: str = "native",
    config: Any = None,
    **more: Any,
) -> Cubin:
    """Compile a Triton kernel, or take one that is compiled, and return its machine code with all that a launch needs.

    No GPU and no driver are needed where `arch` is named. Nothing is cached beyond Triton's own cache.

    Args:
        kernel: A `@triton.jit` function, one within `@triton.autotune` or `@triton.heuristics`, or the compiled kernel
            that a launch or `warmup()` returned.
        *args: Example arguments, instead of `signature`: tensors (`device="meta"` will do), numbers, dtypes of torch's
            for aligned tensors; they are specialised as Triton would at a launch.
        signature: Types by parameter, in Triton's words: `"*fp32:16"` (a pointer whose address is a multiple of 16),
            `"i32"`, `"i32:16"`, `"i32:1"`, `"fp32"`, `"tensordesc<fp16[128, 64]>"`, None for a pointer that is None.
        constexprs: Values that are compiled in.
        num_warps: Warps of a block.
        num_stages: Stages of software pipelines.
        arch: One architecture: `"native"`, `"sm_90"`.
        config: The configuration of an autotuned kernel: a `triton.Config` or a mapping.
        **more: Parameters by name, and further options of Triton's compiler (`num_ctas`, `maxnreg`, `launch_pdl`, …).

    Returns:
        A `Cubin`; `.triton` says how it is launched and for which arguments.

    Raises:
        SignatureError: The arguments do not fit the kernel, or machine code and Triton disagree.
        CompileError: Triton refuses the kernel.
        ToolchainError: There is no Triton that jitload knows, or no such architecture.

    Example:
        `extract_triton(add, signature={"x": "*fp32:16", "n": "i32"}, constexprs={"BLOCK": 1024}, arch="sm_90").triton`
    """
    triton = find_triton()
    given = read_kernel(kernel)
    asked = Asked(
        args=args,
        signature=signature,
        constexprs=constexprs,
        config=config,
        options={"num_warps": num_warps, "num_stages": num_stages, **more},
    )
    if given.compiled is not None:
        refuse_for_compiled(given.name, asked)
        cubin = record_kernel(given.compiled, triton)
        if arch != "native":
            archs = resolve_gpu_arch(arch, read_settings(), what="extract_triton() compiles")
            refuse_other_archs(given.name, [cubin.arch], archs)
        return cubin
    wanted = read_wanted(given, asked)
    capability, _ = capability_of(resolve_one_gpu_arch(arch, read_settings(), who="extract_triton()"))
    plan = make_plan(given, wanted, triton, capability)
    return record_kernel(compile_plan(given, plan, triton, capability), triton, plan.constexprs)
