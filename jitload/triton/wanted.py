"""The arguments of a public call in, what they ask of a Triton kernel out, and the plan that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitload.errors import SignatureError
from jitload.toolchain.arch import capability_of
from jitload.triton.kernel import GivenKernel, Wanted, choose_config, config_values
from jitload.triton.plan import Plan, plan_signature
from jitload.triton.versions import Triton

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class Asked:  # by hand, as Wanted
    """What a public call says of a kernel, as given: see `load_triton`; `options` are its further keywords."""

    __slots__ = ("args", "config", "constexprs", "options", "signature", "variants")

    def __init__(  # noqa: PLR0913  its fields
        self,
        *,
        args: Sequence[Any],
        signature: Mapping[str, Any] | str | None,
        constexprs: Mapping[str, Any] | None,
        config: Any,
        options: Mapping[str, Any],
        variants: Sequence[Any] | str | None = None,
    ) -> None:
        self.args = args
        self.signature = signature
        self.constexprs = constexprs
        self.config = config
        self.options = options
        self.variants = variants

    def named(self) -> dict[str, Any]:
        """Return all that is given by name."""
        fields = ("signature", "constexprs", "config", "variants")
        return {**{field: getattr(self, field) for field in fields}, **self.options}


def read_wanted(given: GivenKernel, asked: Asked) -> Wanted:
    """Sort what a public call says: parameters of the kernel by name, and options of the compiler.

    Raises:
        SignatureError: Both a signature and examples are given, or neither.
    """
    constexprs = asked.constexprs
    if constexprs is not None and not isinstance(constexprs, Mapping):
        raise SignatureError(f"constexprs= must map names to values, got {type(constexprs).__name__}")
    names = {param.name: param for param in given.function.params}
    more = {name: value for name, value in asked.options.items() if value is not None or name not in OPTIONS}
    fixed = {name: value for name, value in more.items() if name in names and names[name].is_constexpr}
    named = {name: value for name, value in more.items() if name in names and name not in fixed}
    options = {name: value for name, value in more.items() if name not in names and value is not None}
    if asked.signature is not None and (asked.args or named):
        raise SignatureError(f"kernel {given.name!r}: give either signature= or example arguments, not both")
    return Wanted(
        args=tuple(asked.args),
        named=named,
        signature=asked.signature,
        constexprs={**(constexprs or {}), **fixed},
        options=options,
        config=asked.config,
    )


def make_plan(given: GivenKernel, wanted: Wanted, triton: Triton, capability: int) -> Plan:
    """Return what to compile.

    Raises:
        SignatureError: What is wanted does not fit the kernel.
    """
    config = choose_config(given, wanted.config, wanted.constexprs)
    values = config_values(config)
    names = {param.name for param in given.function.params}
    _refuse_conflict(given, {name: value for name, value in values.items() if name in names}, wanted.constexprs)
    values = {**values, **wanted.options, **wanted.constexprs}
    if getattr(config, "pre_hook", None) is not None or given.heuristics:
        from jitload.triton.decided import decide, with_hooked_shapes

        wanted = with_hooked_shapes(given, wanted, config, values)
        values = decide(given, wanted, values, explicit={*getattr(config, "kwargs", config), *wanted.explicit})
    constexprs = {name: value for name, value in values.items() if name in names or name in wanted.constexprs}
    options = {name: value for name, value in values.items() if name not in constexprs}
    # A kernel may have a constexpr of an option's name; at a launch of Triton's, one keyword is then both.
    options |= {name: constexprs[name] for name in OPTIONS if name in constexprs and name not in options}
    if wanted.signature is not None:
        return plan_signature(given, wanted.signature, constexprs, options)
    run_time = [
        param.name for param in given.function.params if not param.is_constexpr and param.name not in constexprs
    ]
    if run_time and not wanted.args and not wanted.named:
        raise SignatureError(
            f"kernel {given.name!r}: nothing says what {', '.join(run_time)} are: give "
            f"signature={{{run_time[0]!r}: '*fp32:16', …}}, example arguments, or the compiled kernel that a launch "
            "returned"
        )
    from jitload.triton.examples import Examples, plan_arguments

    examples = Examples(args=tuple(wanted.args), named=wanted.named, constexprs=constexprs)
    return plan_arguments(given, examples, options, triton, capability)


def _refuse_conflict(given: GivenKernel, tuned: Mapping[str, Any], constexprs: Mapping[str, Any]) -> None:
    """Refuse a constexpr that a configuration and the call give differently, as Triton does."""
    if twice := next((name for name in tuned if name in constexprs and constexprs[name] != tuned[name]), None):
        raise SignatureError(
            f"kernel {given.name!r}: {twice!r} is {tuned[twice]!r} in the configuration and {constexprs[twice]!r} "
            "beside it: give it once"
        )


def refuse_other_archs(name: str, have: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse architectures for which no machine code was given.

    Raises:
        SignatureError: There are such.
    """
    numbers = {capability_of(arch)[0] for arch in have}
    if missing := [arch for arch in wanted if capability_of(arch)[0] not in numbers]:
        raise SignatureError(
            f"kernel {name!r} is compiled for {', '.join(have)}, so that arch= cannot make it run on {missing[0]}: "
            "leave it out, or give the @triton.jit function"
        )


def refuse_for_compiled(name: str, asked: Asked) -> None:
    """Refuse wishes that come too late, because the kernel is compiled."""
    what = next((f"{key}=" for key, value in asked.named().items() if value is not None), "")
    if what or asked.args:
        what = what or "example arguments"
        raise SignatureError(f"kernel {name!r} is compiled already, so that {what} cannot change it: leave it out")
