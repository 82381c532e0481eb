"""`load_triton`: a Triton kernel in, the module of its library out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jitload.launch import Extent
from jitload.pipeline import load_request
from jitload.triton.request import make_triton_request
from jitload.triton.wanted import Asked

if TYPE_CHECKING:
    from jitload.loader.module import Module
    from jitload.triton.variants import Variants

PathLike = str | os.PathLike[str]


def load_triton(  # noqa: PLR0913  the keywords of a launch of Triton's, and of load_inline
    name: str,
    kernel: Any,
    *args: Any,
    signature: Mapping[str, Any] | str | None = None,
    constexprs: Mapping[str, Any] | None = None,
    grid: Extent | Any = None,
    variants: Variants | None = None,
    arch: str | Sequence[str] = "native",
    num_warps: int | None = None,
    num_stages: int | None = None,
    config: Any = None,
    build_directory: PathLike | None = None,
    keep_module_alive: bool = True,
    verbose: bool = False,
    **more: Any,
) -> Module:
    """Compile a Triton kernel, or find it compiled in the cache, and return it as a function that needs no Triton.

    The function has the kernel's name, and its run-time parameters as arguments. What the machine code was specialised
    for (multiples of 16, ones, None) is checked at each call.

    Args:
        name: The module's name, for messages and file names.
        kernel: A `@triton.jit` function, an autotuned one, or what a launch, `warmup()` or `extract_triton` returned.
        *args: Example arguments, instead of `signature`.
        signature: Types by parameter, in Triton's words: `{"x": "*fp32:16", "n": "i32"}`.
        constexprs: Values that are compiled in.
        grid: Programs in x, y and z: integers and launch expressions over run-time parameters and integer constexprs,
            such as `"ceil_div(n, BLOCK)"`, or Triton's own `lambda META: …` where it is of that kind. None leaves it to
            the call, `mod.f[grid](…)`.
        variants: Several specialisations, each a mapping of constexprs and options, `[{"BLOCK": 512}, …]`, with
            `"signature"` for other types; or `"all"` configurations of an autotuned kernel. Each is a function of its
            own, `f__BLOCK_512`, and `f` runs the first that the arguments fit.
        arch: `"native"` (the current GPU), `"sm_90"`, or several.
        num_warps: Warps of a block.
        num_stages: Stages of software pipelines.
        config: The configuration of an autotuned kernel: a `triton.Config` or a mapping.
        build_directory: Put the library there, too, as `<name>.so`.
        keep_module_alive: Keep the library loaded when the module is dropped.
        verbose: Log what the compilers print, at level INFO of the logger `jitload`.
        **more: Parameters by name, and further options of Triton's compiler.

    Returns:
        A `Module`.

    Raises:
        SignatureError: The arguments do not fit the kernel, or machine code and Triton disagree.
        LaunchSpecError: The grid does not fit the kernel.
        CompileError: Triton refuses the kernel.
        ToolchainError: A tool, Triton or an architecture is missing.

    Example:
        `load_triton("ops", add, signature={"x": "*fp32:16", "n": "i32"}, constexprs={"BLOCK": 1024},
        grid="ceil_div(n, BLOCK)").add(x, n)`
    """
    asked = Asked(
        args=args,
        signature=signature,
        constexprs=constexprs,
        config=config,
        options={"num_warps": num_warps, "num_stages": num_stages, **more},
        variants=variants,
    )
    request = make_triton_request(name, kernel, asked, arch=arch, grid=grid)
    return load_request(request, build_directory, keep_module_alive=keep_module_alive, verbose=verbose)
