"""What a user hands over as a Triton kernel in, Triton's own function and the values chosen for it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jitload.errors import JitLoadError, SignatureError

_OPTIONS_OF_A_CONFIG = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


class GivenKernel:  # by hand: a hit pays for making a dataclass, or a named tuple, more than for all its work
    """A kernel as it was given.

    Attributes:
        function: The `@triton.jit` function.
        compiled: The `CompiledKernel`, where that was given.
        configs: The configurations of `@triton.autotune`, as values of constexprs and options.
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
        configs: tuple[Mapping[str, Any], ...] = (),
        best: Mapping[str, Any] | None = None,
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


def read_kernel(kernel: Any) -> GivenKernel:
    """Unwrap a kernel: a jit function, perhaps within autotune and heuristics, or one that was compiled.

    Raises:
        SignatureError: It is none of these.
    """
    kernel = _finished(kernel)
    if type(kernel).__name__ == "CompiledKernel":
        return GivenKernel(function=_function_of(kernel), compiled=kernel, heuristics={})
    heuristics: dict[str, Any] = {}
    configs: tuple[Mapping[str, Any], ...] = ()
    best = None
    while not _is_jit_function(kernel):
        kind = type(kernel).__name__
        if kind == "Autotuner":
            configs = tuple(read_config(config) for config in kernel.configs)
            chosen = getattr(kernel, "best_config", None) or (kernel.configs[0] if len(kernel.configs) == 1 else None)
            best = None if chosen is None else read_config(chosen)
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


def read_config(config: Any) -> Mapping[str, Any]:
    """Return a `triton.Config`, or a mapping, as values of constexprs and options.

    Raises:
        SignatureError: It is neither, or has a hook that no library can run.
    """
    if isinstance(config, Mapping):
        return dict(config)
    if not hasattr(config, "kwargs"):
        raise SignatureError(f"config= must be a triton.Config or a mapping, got {type(config).__name__}")
    if getattr(config, "pre_hook", None) is not None:
        raise SignatureError(
            f"the configuration ({config}) has a pre_hook, Python code that Triton runs before each launch; a library "
            "cannot. Give config= without it, and do its work before you call."
        )
    options = {name: getattr(config, name, None) for name in _OPTIONS_OF_A_CONFIG}
    return {**config.kwargs, **{name: value for name, value in options.items() if value is not None}}


def choose_config(given: GivenKernel, config: Any, constexprs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of the configuration that was asked for, or that tuning chose; none where all are given.

    Raises:
        SignatureError: The kernel has several, and nobody chose.
    """
    if config is not None:
        return read_config(config)
    tuned = {name for values in given.configs for name in values if name not in _OPTIONS_OF_A_CONFIG}
    if given.best is None and tuned and tuned <= constexprs.keys():
        return {}
    if given.configs and given.best is None:
        listed = "\n".join(f"    {show_values(values)}" for values in given.configs)
        raise SignatureError(
            f"kernel {given.name!r} is autotuned, and no configuration has been chosen: launch it once so that "
            f'Triton measures them, give config=, or build all with load_triton(…, variants="all"). They are:\n{listed}'
        )
    return given.best or {}


def show_values(values: Mapping[str, Any]) -> str:
    """Return values as a person reads them: `BLOCK=512, num_warps=8`."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items()) or "(nothing)"


def apply_heuristics(given: GivenKernel, constexprs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constexprs with those that `@triton.heuristics` decides from them.

    Raises:
        SignatureError: One is decided from a run-time argument, which is not known when a library is built.
    """
    values = dict(constexprs)
    for name, decide in given.heuristics.items():
        if name in values:
            continue
        known = _Known(values)
        try:
            values[name] = decide(known)
        except Exception as error:
            if known.missing:
                raise SignatureError(
                    f"kernel {given.name!r}: its heuristic decides {name!r} from the argument {known.missing!r}, which "
                    f"is known at a call alone: give it, constexprs={{{name!r}: …}}, or build variants"
                ) from error
            raise JitLoadError(f"kernel {given.name!r}: its heuristic for {name!r} failed: {error}") from error
    return values


class _Known(dict[str, Any]):
    """The constexprs that a heuristic may ask for; remembers what it asked for and did not get."""

    missing = ""

    def __missing__(self, name: str) -> Any:
        self.missing = self.missing or name
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Take a default for a missing argument as no answer: it would hide that the argument is not known."""
        return self[name] if name in self else self.__missing__(name) or default


def unknown_names(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the names that are not known, sorted."""
    return sorted(set(names) - set(known))
