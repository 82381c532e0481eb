"""What a user hands over as a Triton kernel in, Triton's own function and the values chosen for it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitload.errors import SignatureError

_OPTIONS_OF_A_CONFIG = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


class GivenKernel:  # by hand: a hit pays for making a dataclass, or a named tuple, more than for all its work
    """A kernel as it was given.

    Attributes:
        function: The `@triton.jit` function.
        compiled: The `CompiledKernel`, where that was given.
        configs: The configurations of `@triton.autotune`, each a `triton.Config`.
        best: The one that tuning chose, or the only one.
        heuristics: The functions of `@triton.heuristics`, by the constexpr that each decides.
    """

    __slots__ = ("best", "compiled", "configs", "function", "heuristics")

    def __init__(
        self,
        *,
        function: Any,
        heuristics: Mapping[str, Any],
        compiled: Any = None,
        configs: tuple[Any, ...] = (),
        best: Any = None,
    ) -> None:
        self.function = function
        self.heuristics = heuristics
        self.compiled = compiled
        self.configs = configs
        self.best = best

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.function.__name__)


class Wanted:  # by hand: a hit pays for making a dataclass, or a named tuple, more than for all its work
    """What to make of a kernel.

    Attributes:
        args: Example arguments by position.
        named: Example arguments by name.
        signature: Types of the run-time parameters, or None for example arguments.
        constexprs: Values that are compiled in.
        options: Options of the compiler.
        config: The configuration, or None for the one that tuning chose.
    """

    __slots__ = ("args", "config", "constexprs", "named", "options", "signature")

    def __init__(  # noqa: PLR0913  its fields
        self,
        *,
        args: Sequence[Any],
        named: Mapping[str, Any],
        signature: Mapping[str, Any] | str | None,
        constexprs: Mapping[str, Any],
        options: Mapping[str, Any],
        config: Any,
    ) -> None:
        self.args = args
        self.named = named
        self.signature = signature
        self.constexprs = constexprs
        self.options = options
        self.config = config

    @property
    def explicit(self) -> frozenset[str]:
        """The names of the values given beside a configuration."""
        return frozenset((*self.constexprs, *self.options))

    def with_arguments(
        self, signature: Mapping[str, Any] | str | None, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Wanted:
        """Return the same for other types or example arguments."""
        return Wanted(
            args=args,
            named=named,
            signature=signature,
            constexprs=self.constexprs,
            options=self.options,
            config=self.config,
        )


def read_kernel(kernel: Any) -> GivenKernel:
    """Unwrap a kernel: a jit function, perhaps within autotune and heuristics, or one that was compiled.

    Raises:
        SignatureError: It is none of these.
    """
    kernel = _finished(kernel)
    if type(kernel).__name__ == "CompiledKernel":
        return GivenKernel(function=_function_of(kernel), compiled=kernel, heuristics={})
    heuristics: dict[str, Any] = {}
    configs: tuple[Any, ...] = ()
    best = None
    while not _is_jit_function(kernel):
        kind = type(kernel).__name__
        if kind == "Autotuner":
            configs = tuple(kernel.configs)
            best = getattr(kernel, "best_config", None) or (configs[0] if len(configs) == 1 else None)
        elif kind == "Heuristics":
            heuristics = {**kernel.values, **heuristics}
        else:
            raise _no_kernel(kernel)
        kernel = kernel.fn
    if getattr(kernel, "is_gluon", bool)():
        raise SignatureError(
            f"kernel {kernel.__name__!r} is written in Gluon: compile it with its warmup() or a launch, and give the "
            "compiled kernel that returns"
        )
    if getattr(kernel, "pre_run_hooks", None):
        raise SignatureError(
            f"kernel {kernel.__name__!r} has a pre_run_hook, Python code that Triton runs before each launch; a "
            "library cannot: do its work before you call, and give the kernel without it"
        )
    return GivenKernel(function=kernel, configs=configs, best=best, heuristics=heuristics)


def _is_jit_function(kernel: Any) -> bool:
    return any(base.__name__ == "JITFunction" for base in type(kernel).__mro__)


def _finished(kernel: Any) -> Any:
    """Wait for a kernel that Triton compiles in the background."""
    if any(base.__name__ == "FutureKernel" for base in type(kernel).__mro__):
        return kernel.result()
    return kernel


def _no_kernel(kernel: Any) -> SignatureError:
    kind = type(kernel).__name__
    if kind == "InterpretedFunction":
        why = "it was defined in Triton's interpreter mode, which compiles nothing: unset TRITON_INTERPRET"
    elif kernel is None:
        why = "None is what a launch gives that compiled nothing (a hook of Triton's may have stopped it)"
    elif isinstance(kernel, list | tuple):
        why = f"a {kind} of {len(kernel)} is several, as warmup() of an autotuned kernel gives them: pass one of them"
    elif kind == "function":
        why = f"{kernel.__name__}() is a plain function: decorate it with @triton.jit"
    else:
        why = f"got {kind}"
    return SignatureError(f"a Triton kernel is a @triton.jit function or what a launch or warmup() returns: {why}")


def _function_of(compiled: Any) -> Any:
    function = getattr(getattr(compiled, "src", None), "fn", None)
    if function is None or not hasattr(function, "params"):
        raise SignatureError(
            f"the compiled kernel {getattr(compiled, 'name', '?')!r} was made from an intermediate form, which has no "
            "names of parameters: give the @triton.jit function"
        )
    return function


def config_values(config: Any) -> Mapping[str, Any]:
    """Return a `triton.Config`, or a mapping, as values of constexprs and options.

    Raises:
        SignatureError: It is neither.
    """
    if isinstance(config, Mapping):
        return dict(config)
    if not hasattr(config, "kwargs"):
        raise SignatureError(f"config= must be a triton.Config or a mapping, got {type(config).__name__}")
    options = {name: getattr(config, name, None) for name in _OPTIONS_OF_A_CONFIG}
    return {**config.kwargs, **{name: value for name, value in options.items() if value is not None}}


def choose_config(given: GivenKernel, config: Any, constexprs: Mapping[str, Any]) -> Any:
    """Return the configuration that was asked for, or that tuning chose; an empty one where all values are given.

    Raises:
        SignatureError: The kernel has several, and nobody chose.
    """
    if config is not None:
        return config
    tuned = {name for one in given.configs for name in config_values(one) if name not in _OPTIONS_OF_A_CONFIG}
    if given.best is None and tuned and tuned <= constexprs.keys():
        return {}
    if given.configs and given.best is None:
        listed = "\n".join(f"    {show_values(config_values(one))}" for one in given.configs)
        raise SignatureError(
            f"kernel {given.name!r} is autotuned, and no configuration has been chosen: launch it once so that "
            f'Triton measures them, give config=, or build all with load_triton(…, variants="all"). They are:\n{listed}'
        )
    return {} if given.best is None else given.best


def show_values(values: Mapping[str, Any]) -> str:
    """Return values as a person reads them: `BLOCK=512, num_warps=8`."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items()) or "(nothing)"
