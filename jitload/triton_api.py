"""The public functions for Triton kernels: they compile and load kernels, and extract them as cubins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jitload.building.resources import freeze_old_objects
from jitload.pipeline import load_request
from jitload.request.arguments import PathLike, check_flags
from jitload.request.launch import Extent
from jitload.tracebacks import ends_at_caller

if TYPE_CHECKING:
    from jitload.loader.module import Module
    from jitload.model import Cubin


@ends_at_caller
def load_triton(
    name: str,
    kernel: Any,
    *args: Any,
    signature: Mapping[str, Any] | str | None = None,
    constexprs: Mapping[str, Any] | None = None,
    grid: Extent | Any = None,
    variants: Sequence[Any] | str | None = None,
    arch: str | Sequence[str] = "native",
    num_warps: int | None = None,
    num_stages: int | None = None,
    config: Any = None,
    tuned: Any = None,
    nearest: Literal["log2"] | None = None,
    build_directory: PathLike | None = None,
    keep_module_alive: bool = True,
    verbose: bool = False,
    **more: Any,
) -> Module:
    """Compile a Triton kernel, or find it compiled in the cache, and return it as a function that needs no Triton.

    The function has the kernel's name, and the kernel's run-time parameters as arguments. Triton may specialize a
    kernel for properties of its arguments: for example, an integer is 1 or divisible by 16, or a pointer is None. Each
    call checks these properties.

    `signature`, `constexprs`, `num_warps`, `num_stages` and `config` are described under `extract_triton`. Other
    arguments that are not listed here are described under `load_inline`.

    Args:
        name: The module's name.
        kernel: A `@triton.jit` function, with or without `@triton.autotune` or `@triton.heuristics`, or the result of
            a launch, `warmup()` or `extract_triton`.
        *args: Example arguments in place of `signature`: tensors, numbers, or a dtype of torch, which stands for a
            tensor with an aligned address.
        grid: Number of programs in x, y and z. Each number is an integer or a launch expression, such as
            `"ceil_div(n, BLOCK)"`. The expression may use run-time parameters and integer constexprs. A Triton grid
            function is accepted if it can be translated to such expressions. If None, each call passes the grid:
            `mod.f[grid](…)`.
        variants: Several specializations of the kernel: a list such as `[{"BLOCK": 512}, …]`, or `"all"` for all
            configurations of an autotuned kernel. Each mapping in the list contains constexprs and options. A mapping
            may also contain `"signature"`, with other types for some parameters. The other arguments of `load_triton`
            are the defaults of every variant. Each variant becomes a function, such as `f__BLOCK_512`, and `f` launches
            the first variant that fits the arguments. `config` cannot be combined with `variants`.
        arch: `"native"` (the current GPU), `"sm_90"`, or several.
        tuned: The measurements that choose among the variants, as for `load_inline`. Calls choose by the integers in
            the key of `@triton.autotune`.
        nearest: How a call chooses if its key was not tuned, as in `Tune`.
        **more: Arguments of the kernel by name, and further options of Triton's compiler.

    Returns:
        A `Module`.

    Raises:
        SignatureError: The arguments do not match the kernel, or the parameters of the machine code differ from those
            that Triton reports.
        LaunchSpecError: The grid does not match the kernel.
        CompileError: Triton rejected the kernel.
        ToolchainError: A tool, Triton or an architecture is missing.

    Example:
        `load_triton("ops", add, signature={"x": "*fp32:16", "n": "i32"}, constexprs={"BLOCK": 1024},
        grid="ceil_div(n, BLOCK)").add(x, n)`
    """
    with freeze_old_objects():  # the imports create enough objects for a collection
        from jitload.triton.kernel import CompileSpec
        from jitload.triton.request import make_triton_request

        more |= {"variants": variants, "num_warps": num_warps, "num_stages": num_stages}
        spec = CompileSpec.of(args, signature=signature, constexprs=constexprs, config=config, **more)
        check_flags(keep_module_alive=keep_module_alive, verbose=verbose)
        request = make_triton_request(name, kernel, spec, arch=arch, grid=grid, tuned=tuned, nearest=nearest)
        return load_request(request, build_directory, keep_module_alive=keep_module_alive, verbose=verbose)


@ends_at_caller
def extract_triton(
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
    """Compile a Triton kernel, or take a compiled one, and return its machine code with everything that a launch needs.

    If `arch` is not `"native"`, this needs no GPU and no driver. Triton caches the result; jitload does not.

    Args:
        kernel: A `@triton.jit` function, with or without `@triton.autotune` or `@triton.heuristics`, or the compiled
            kernel that a launch or `warmup()` returned.
        *args: Example arguments in place of `signature`: tensors (`device="meta"` works, too), numbers, or a dtype of
            torch, which stands for a tensor with an aligned address. Triton specializes the kernel for these arguments,
            as at a launch.
        signature: The type of each parameter, in Triton's spelling: `"*fp32:16"` (a pointer whose address is a multiple
            of 16), `"i32"`, `"i32:16"`, `"i32:1"`, `"fp32"`, `"tensordesc<fp16[128, 64]>"`, or None for a
            pointer that is always None.
        constexprs: Values of parameters that are compiled in, by name.
        num_warps: Warps per block.
        num_stages: Stages of software pipelines.
        arch: One architecture, such as `"native"` or `"sm_90"`.
        config: The configuration of an autotuned kernel: a `triton.Config` or a mapping.
        **more: Arguments of the kernel by name, and further options of Triton's compiler (`num_ctas`, `maxnreg`,
            `launch_pdl`, …).

    Returns:
        A `Cubin`. Its attribute `triton` says how the kernel is launched, and for which arguments.

    Raises:
        SignatureError: The arguments do not match the kernel, or the parameters of the machine code differ from those
            that Triton reports.
        CompileError: Triton rejected the kernel.
        ToolchainError: There is no Triton that jitload supports, or the architecture is missing.

    Example:
        `extract_triton(add, signature={"x": "*fp32:16", "n": "i32"}, constexprs={"BLOCK": 1024}, arch="sm_90").triton`
    """
    from jitload.triton.kernel import CompileSpec
    from jitload.triton.request import extract_cubin

    more |= {"num_warps": num_warps, "num_stages": num_stages}
    spec = CompileSpec.of(args, signature=signature, constexprs=constexprs, config=config, **more)
    return extract_cubin(kernel, spec, arch)
