"""Reads what the user passed: a Triton kernel in its decorators, and how it is to be compiled."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from types import FunctionType
from typing import Any, NamedTuple

from jitload.errors import SignatureError

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_MAX_WRAPPERS = 16  # the most decorators around a kernel, such as autotune, heuristics and jit
_CONFIG_OPTIONS = (*OPTIONS, "ir_override")


class TritonKernel(NamedTuple):
    """A Triton kernel, separated from its decorators.

    Attributes:
        function: The `@triton.jit` function.
        heuristics: The functions of `@triton.heuristics`, by the name of the constexpr that each computes.
        configs: The configurations of `@triton.autotune`, each a `triton.Config`.
        best_config: The configuration that tuning chose, or else the only configuration, or else None.
        compiled: The `CompiledKernel`, if the caller passed one instead of a function.
        keys: The parameters by whose values `@triton.autotune` chooses.
        autotuner: What `@triton.autotune` made of the kernel, or None.
    """

    function: Any
    heuristics: Mapping[str, Any]
    configs: tuple[Any, ...] = ()
    best_config: Any = None
    compiled: Any = None
    keys: tuple[str, ...] = ()
    autotuner: Any = None

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.function.__name__)

    @property
    def params(self) -> Sequence[Any]:
        """Triton's own records of the parameters."""
        params: Sequence[Any] = self.function.params
        return params


class CompileSpec(NamedTuple):
    """How a kernel is to be compiled.

    Attributes:
        args: Example arguments by position.
        named_args: Example arguments by name.
        signature: Types of the run-time parameters, or None if there are example arguments.
        constexprs: Values that are compiled in.
        options: Options of Triton's compiler. Before `assign_keywords()`, they include the parameters passed by name.
        config: The configuration for an autotuned kernel, or None for the one that tuning chose.
        variants: The variants to build, as mappings or configurations. "all" stands for all configurations of
            `@triton.autotune`. None builds a single variant.
    """

    args: tuple[Any, ...]
    named_args: Mapping[str, Any]
    signature: Mapping[str, Any] | str | None
    constexprs: Mapping[str, Any]
    options: Mapping[str, Any]
    config: Any
    variants: Sequence[Any] | str | None

    @classmethod
    def of(
        cls,
        args: Sequence[Any],
        /,
        *,
        signature: Mapping[str, Any] | str | None = None,
        constexprs: Mapping[str, Any] | None = None,
        config: Any = None,
        variants: Sequence[Any] | str | None = None,
        **keywords: Any,
    ) -> CompileSpec:
        """Return the spec for the arguments of `load_triton` or `extract_triton`."""
        if constexprs is not None and not isinstance(constexprs, Mapping):
            raise SignatureError(
                f"constexprs= must be a mapping, such as {{'BLOCK': 1024}}, got {type(constexprs).__name__}"
            )
        options = {name: value for name, value in keywords.items() if value is not None or name not in OPTIONS}
        return cls(tuple(args), {}, signature, constexprs or {}, options, config, variants)


def read_kernel(kernel: Any) -> TritonKernel:
    """Return a kernel separated from its decorators. `kernel` is a `@triton.jit` function or a compiled kernel."""
    if _has_base(kernel, "FutureKernel"):  # Triton compiles it in the background
        kernel = kernel.result()
    if type(kernel).__name__ == "CompiledKernel":
        return TritonKernel(_function_of(kernel), {}, compiled=kernel)
    heuristics: dict[str, Any] = {}
    configs: tuple[Any, ...] = ()
    best_config = autotuner = None
    keys: tuple[str, ...] = ()
    while not _has_base(kernel, "JITFunction"):
        if _has_base(kernel, "Autotuner"):
            autotuner, configs, keys = kernel, tuple(kernel.configs), tuple(getattr(kernel, "keys", ()))
            best_config = getattr(kernel, "best_config", None) or (configs[0] if len(configs) == 1 else None)
        elif _has_base(kernel, "Heuristics"):
            # Triton runs the outer functions first, and lets an inner one replace the value of an outer one.
            heuristics = {**{name: f for name, f in heuristics.items() if name not in kernel.values}, **kernel.values}
        elif _has_base(kernel, "TraceableTritonKernelWrapper"):  # the result of torch.library.wrap_triton
            kernel = kernel.kernel
            continue
        else:
            raise _not_a_kernel(kernel)
        kernel = kernel.fn
    if getattr(kernel, "is_gluon", bool)():
        raise SignatureError(
            f"kernel {kernel.__name__!r} is written in Gluon: compile it with its warmup() or by launching it, and "
            "pass the compiled kernel that this returns"
        )
    if kernel.fn is None:  # torch.compile does this to the kernels that another process has compiled
        raise SignatureError(
            f"kernel {kernel.__name__!r} has no Python function: torch.compile has removed it. Pass the @triton.jit "
            "function of the file that torch.compile has generated"
        )
    if getattr(kernel, "pre_run_hooks", None):
        raise SignatureError(
            f"kernel {kernel.__name__!r} has a pre_run_hook, Python code that Triton runs before each launch. A "
            "library cannot run it: do its work before the call, and pass the kernel without it"
        )
    return TritonKernel(kernel, heuristics, configs, best_config=best_config, keys=keys, autotuner=autotuner)


def import_name(kernel: Any) -> str:
    """Return the `module:name` that imports exactly this kernel, or "" if there is none."""
    inner = kernel
    for _ in range(_MAX_WRAPPERS):
        if isinstance(inner, FunctionType) or getattr(inner, "best_config", None) is not None:
            break  # a plain function, or a kernel that was tuned in this process
        inner = getattr(inner, "fn", None)
    if not isinstance(inner, FunctionType) or inner.__module__ == "__main__":
        return ""
    value: Any = sys.modules.get(inner.__module__)
    for part in inner.__qualname__.split("."):
        value = getattr(value, part, None)
    is_importable = value is kernel and PathFinder.find_spec(inner.__module__.partition(".")[0]) is not None
    return f"{inner.__module__}:{inner.__qualname__}" if is_importable else ""


def _has_base(value: Any, name: str) -> bool:
    return any(base.__name__ == name for base in type(value).__mro__)


def is_cubin(value: Any) -> bool:
    """Return whether a value is a `Cubin`. The class is not imported for other values, because that takes long."""
    if not _has_base(value, "Cubin"):
        return False
    from jitload.model import Cubin

    return isinstance(value, Cubin)


def _not_a_kernel(value: Any) -> SignatureError:
    kind = type(value).__name__
    if kind == "InterpretedFunction":
        reason = "it was defined in Triton's interpreter mode, which compiles nothing: unset TRITON_INTERPRET"
    elif value is None:
        reason = "got None, which a launch returns if a hook of Triton's stopped the compilation"
    elif isinstance(value, list | tuple):
        reason = f"got a {kind} of {len(value)}, as warmup() of an autotuned kernel returns: pass one of its items"
    elif kind == "function":
        reason = f"{value.__name__}() is a plain function: decorate it with @triton.jit"
    else:
        kinds, names = ("JITFunction", "Autotuner", "Heuristics", "CompiledKernel"), ("fn", "kernel", "jit_function")
        inner = next((n for n in names if any(_has_base(getattr(value, n, None), kind) for kind in kinds)), "")
        reason = f"got {kind}" + (f", which wraps one: pass its .{inner}" if inner else "")
    return SignatureError(f"a Triton kernel is a @triton.jit function or what a launch or warmup() returns: {reason}")


def _function_of(compiled: Any) -> Any:
    function = getattr(getattr(compiled, "src", None), "fn", None)
    if function is None or not hasattr(function, "params"):
        raise SignatureError(
            f"the compiled kernel {getattr(compiled, 'name', '?')!r} was made from an intermediate representation, "
            "which has no parameter names: pass the @triton.jit function"
        )
    return function


def assign_keywords(kernel: TritonKernel, spec: CompileSpec) -> CompileSpec:
    """Return the spec after dividing the keywords of a call into example arguments, constexprs and compiler options."""
    params = {param.name: param for param in kernel.params}
    arguments = {name: value for name, value in spec.options.items() if name in params}
    args, by_position = spec.args, dict(zip(params, spec.args, strict=False))
    has_star = any(p.kind == p.VAR_POSITIONAL for p in kernel.function.signature.parameters.values())
    is_plain = len(args) == len(by_position) and not (arguments.keys() & by_position.keys()) and not has_star
    if is_plain and any(params[name].is_constexpr for name in by_position):
        args, arguments = (), {**by_position, **arguments}
    constexprs = {name: value for name, value in arguments.items() if params[name].is_constexpr}
    named_args = {name: value for name, value in arguments.items() if name not in constexprs}
    options = {name: value for name, value in spec.options.items() if name not in params and value is not None}
    keywords = {**options, **arguments}
    for name, value in spec.constexprs.items():
        if name in keywords and value != keywords[name]:
            raise SignatureError(
                f"kernel {kernel.name!r}: {name!r} is {value!r} in constexprs= and {keywords[name]!r} as a "
                "keyword: pass it once"
            )
    if spec.signature is not None and (spec.args or named_args):
        raise SignatureError(f"kernel {kernel.name!r}: pass either signature= or example arguments, not both")
    constexprs = {**spec.constexprs, **constexprs}
    return spec._replace(args=args, named_args=named_args, constexprs=constexprs, options=options)


def example_arguments(kernel: TritonKernel, spec: CompileSpec) -> dict[str, Any]:
    """Return the example arguments by name, also those that were passed by position."""
    return {**dict(zip([param.name for param in kernel.params], spec.args, strict=False)), **spec.named_args}


def choose_config(kernel: TritonKernel, spec: CompileSpec) -> Any:
    """Return the configuration that was passed or that tuning chose.

    Return {} if the kernel is not autotuned, or if `spec.constexprs` has all constexprs that the configurations set.

    Raises:
        SignatureError: The kernel is autotuned, and no configuration has been chosen.
    """
    if spec.config is not None:
        return spec.config
    if kernel.best_config is not None:
        return kernel.best_config
    tuned = {name for config in kernel.configs for name in config_values(config) if name not in _CONFIG_OPTIONS}
    if not kernel.configs or (tuned and tuned <= spec.constexprs.keys()):
        return {}
    configs = "\n".join(f"    {show_values(config_values(config))}" for config in kernel.configs)
    raise SignatureError(
        f"kernel {kernel.name!r} is autotuned, and no configuration has been chosen: launch it once so that Triton "
        f'measures them, pass config=, or build all of them with load_triton(…, variants="all"). They are:\n{configs}'
    )


def config_values(config: Any) -> dict[str, Any]:
    """Return the values of constexprs and options in a `triton.Config` or a mapping."""
    if isinstance(config, Mapping):
        return dict(config)
    if not hasattr(config, "kwargs"):
        raise SignatureError(f"config= must be a triton.Config or a mapping, got {type(config).__name__}")
    options = {name: getattr(config, name, None) for name in _CONFIG_OPTIONS}
    return {**config.kwargs, **{name: value for name, value in options.items() if value is not None}}


def show_values(values: Mapping[str, Any]) -> str:
    """Return values as text for a message: `BLOCK=512, num_warps=8`."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items()) or "(nothing)"


def plain_value(value: Any) -> Any:
    """Return the value inside a `tl.constexpr`, or any other object unchanged."""
    is_constexpr = type(value).__name__ == "constexpr" and type(value).__module__.partition(".")[0] == "triton"
    return value.value if is_constexpr else value
