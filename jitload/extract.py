"""A Triton kernel in, its `Cubin` out: the road from what a user gives to what a launch needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitload.arch import capability_of, resolve_arch
from jitload.errors import SignatureError, ToolchainError
from jitload.model import Cubin
from jitload.settings import Settings, read_settings
from jitload.triton_compile import compile_plan
from jitload.triton_kernel import GivenKernel, apply_heuristics, choose_config, read_kernel
from jitload.triton_plan import Examples, Plan, plan_arguments, plan_signature
from jitload.triton_record import record_kernel
from jitload.triton_versions import Triton, cuda_backend, find_triton


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to make of a kernel.

    Attributes:
        args: Example arguments by position.
        named: Example arguments by name.
        signature: Types of the run-time parameters, or None for example arguments.
        constexprs: Values that are compiled in.
        options: Options of the compiler.
        config: The configuration, or None for the one that tuning chose.
    """

    args: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    signature: Mapping[str, Any] | str | None = None
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Any = None


def read_wanted(  # noqa: PLR0913  the arguments of one call
    given: GivenKernel,
    args: Sequence[Any],
    *,
    signature: Mapping[str, Any] | str | None,
    constexprs: Mapping[str, Any] | None,
    config: Any,
    more: Mapping[str, Any],
) -> Wanted:
    """Sort the arguments of a public call: parameters of the kernel by name, and options of the compiler.

    Raises:
        SignatureError: Both a signature and examples are given, or neither.
    """
    if constexprs is not None and not isinstance(constexprs, Mapping):
        raise SignatureError(f"constexprs= must map names to values, got {type(constexprs).__name__}")
    names = {param.name: param for param in given.function.params}
    fixed = {name: value for name, value in more.items() if name in names and names[name].is_constexpr}
    named = {name: value for name, value in more.items() if name in names and name not in fixed}
    options = {name: value for name, value in more.items() if name not in names and value is not None}
    if signature is not None and (args or named):
        raise SignatureError(f"kernel {given.name!r}: give either signature= or example arguments, not both")
    return Wanted(
        args=tuple(args),
        named=named,
        signature=signature,
        constexprs={**(constexprs or {}), **fixed},
        options=options,
        config=config,
    )


def make_plan(given: GivenKernel, wanted: Wanted, triton: Triton, capability: int) -> Plan:
    """Return what to compile.

    Raises:
        SignatureError: What is wanted does not fit the kernel.
    """
    config = choose_config(given, wanted.config)
    names = {param.name for param in given.function.params}
    tuned = {name: value for name, value in config.items() if name in names}
    constexprs = apply_heuristics(given, {**tuned, **wanted.constexprs})
    backend = cuda_backend(triton, capability)
    options = {**{name: value for name, value in config.items() if name not in names}, **wanted.options}
    _check_options(given, options, backend)
    if wanted.signature is not None:
        return plan_signature(given, wanted.signature, constexprs, options)
    run_time = [
        param.name for param in given.function.params if not param.is_constexpr and param.name not in constexprs
    ]
    if run_time and not wanted.args and not wanted.named:
        raise SignatureError(
            f"kernel {given.name!r}: nothing says what {', '.join(run_time)} are: give "
            f"signature={{{run_time[0]!r}: '*fp32:16', …}}, or example arguments"
        )
    examples = Examples(args=tuple(wanted.args), named=wanted.named, constexprs=constexprs)
    return plan_arguments(given, examples, options, triton, backend)


def _check_options(given: GivenKernel, options: Mapping[str, Any], backend: Any) -> None:
    known = type(backend.parse_options({})).__dataclass_fields__
    unknown = [name for name in options if name not in known]
    if unknown:
        parameters = ", ".join(param.name for param in given.function.params)
        raise SignatureError(
            f"kernel {given.name!r}: {unknown[0]!r} is neither a parameter ({parameters}) nor an option of Triton's "
            "compiler, such as num_warps, num_stages, num_ctas, maxnreg"
        )


def extract_wanted(given: GivenKernel, wanted: Wanted, triton: Triton, capability: int) -> Cubin:
    """Compile what is wanted for an architecture, and record it."""
    plan = make_plan(given, wanted, triton, capability)
    return record_kernel(compile_plan(given, plan, triton, capability), triton, plan.constexprs)


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
    options = {"num_warps": num_warps, "num_stages": num_stages}
    if given.compiled is not None:
        asked = {"signature": signature, "constexprs": constexprs, "config": config, **options, **more}
        refuse_for_compiled(given.name, args, asked)
        return record_kernel(given.compiled, triton)
    wanted = read_wanted(
        given, args, signature=signature, constexprs=constexprs, config=config, more={**options, **more}
    )
    return extract_wanted(given, wanted, triton, one_capability(arch, read_settings()))


def refuse_for_compiled(name: str, args: Sequence[Any], asked: Mapping[str, Any]) -> None:
    """Refuse wishes that come too late, because the kernel is compiled."""
    if args or any(value is not None for value in asked.values()):
        what = next((f"{key}=" for key, value in asked.items() if value is not None), "example arguments")
        raise SignatureError(f"kernel {name!r} is compiled already, so that {what} cannot change it: leave it out")


def one_capability(arch: str, settings: Settings) -> int:
    """Return the number of the one architecture asked for."""
    archs = resolve_arch(arch, settings)
    if len(archs) != 1:
        raise ToolchainError(f"extract_triton() makes one cubin, so it takes one architecture, not {', '.join(archs)}.")
    return capability_of(archs[0])[0]
