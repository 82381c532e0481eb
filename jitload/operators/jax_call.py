"""Call a typed function from JAX, through jax-tvm-ffi, which connects XLA with functions of tvm-ffi."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from jitload.errors import LaunchSpecError, ToolchainError
from jitload.operators.signature import Signature, check_names, read_function

_numbers = itertools.count()
_targets: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], str]] = weakref.WeakKeyDictionary()


def jax_call(function: Any, *args: Any, out: Mapping[str, Any], unwritten: str | Sequence[str] = ()) -> Any:
    """Call a typed function with arrays of JAX, also within `jax.jit`.

    Args:
        function: A function of a `jitload.Module`.
        args: Its arguments without those that `out` names. Numbers are constants of the compiled program.
        out: For each pointer that the function writes to, an array or a `jax.ShapeDtypeStruct` with the shape and dtype
            of the result.
        unwritten: Names of pointers that are not `const`, but are only read.

    Returns:
        The result, or a tuple of them in the order of `out`.

    Raises:
        TypeError: The number of arguments is wrong.
        LaunchSpecError: A name is wrong, or JAX has no type for a parameter.
        ToolchainError: jax-tvm-ffi is not installed.

    Example:
        `y = jitload.jax_call(mod.add_one, x, out={"y": x})`
    """
    import jax

    unwritten = (unwritten,) if isinstance(unwritten, str) else tuple(unwritten)
    signature = read_function(function)
    _check(signature, out, unwritten)
    names = [argument.name for argument in signature.arguments if argument.name not in out]
    if len(args) != len(names):
        plural = "" if len(args) == 1 else "s"
        raise TypeError(f"{signature.name}() takes {', '.join(names)}; got {len(args)} argument{plural}")
    kinds = {argument.name: argument.kind for argument in signature.arguments}
    values = dict(zip(names, args, strict=True))
    tensors = [value for name, value in values.items() if kinds[name] == "tensor"]
    numbers = {name: _number(value) for name, value in values.items() if kinds[name] != "tensor"}
    results = {name: jax.ShapeDtypeStruct(like.shape, like.dtype) for name, like in out.items()}
    call = jax.ffi.ffi_call(_target(function, signature, tuple(out)), tuple(results.values()))
    answers = call(*tensors, **numbers)
    return answers[0] if len(answers) == 1 else tuple(answers)


def _number(value: Any) -> Any:
    """Return a number as a typed attribute of a call in XLA."""
    import numpy as np

    if isinstance(value, bool | np.bool_):
        return np.bool_(value)
    return np.int64(value) if hasattr(value, "__index__") else np.float64(value)


def _check(signature: Signature, out: Mapping[str, Any], unwritten: Sequence[str]) -> None:
    """Raise an error for unknown names, arguments that are changed in place, and calls without results."""
    check_names(out, signature.arguments, function=signature.name, field="out")
    check_names(unwritten, signature.arguments, function=signature.name, field="unwritten")
    for argument in signature.arguments:
        if argument.is_written and argument.name not in (*out, *unwritten):
            hint = "Name it in out, or in unwritten if the function only reads it."
            problem = f"it writes to {argument.name!r}, but arrays of JAX cannot be written to"
            raise LaunchSpecError(problem, kernel=signature.name, hint=hint)
    if not out:
        problem = "it names no result; JAX drops calls without one"
        raise LaunchSpecError(problem, kernel=signature.name, field="out", hint='out={"y": x}')


def _target(function: Any, signature: Signature, out: tuple[str, ...]) -> str:
    """Return the name under which XLA knows the function, and register it at the first call."""
    targets = _targets.setdefault(function, {})
    if out not in targets:
        name = f"jitload_{signature.name}_{next(_numbers)}"
        for platform in signature.devices.lower().replace("cuda", "gpu").split(" or "):
            _register(name, function, signature, out, platform)
        targets[out] = name
    return targets[out]


def _register(name: str, function: Any, signature: Signature, out: tuple[str, ...], platform: str) -> None:
    try:
        import jax_tvm_ffi
    except ImportError as error:
        raise ToolchainError("jax_call() needs jax-tvm-ffi: pip install jax-tvm-ffi") from error
    parts = [_part(argument.name, argument.kind, out) for argument in signature.arguments]
    order = [part for part, _ in itertools.groupby(parts)]
    results = tuple(argument.name for argument in signature.arguments if argument.name in out)
    if order.count("args") > 1 or order.count("rets") > 1 or results != out:
        function, order = _reorder(function, signature, out)
    jax_tvm_ffi.register_ffi_target(name, function, order, platform, allow_cuda_graph=True)


def _part(name: str, kind: str, out: tuple[str, ...]) -> str:
    """Return the place of an argument in a call of XLA, as jax-tvm-ffi names it."""
    return "rets" if name in out else "args" if kind == "tensor" else f"attrs.{name}"


def _reorder(function: Any, signature: Signature, out: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return a function that takes inputs, results and numbers, since XLA passes each of these together."""
    import tvm_ffi

    names = [argument.name for argument in signature.arguments]
    inputs = [a.name for a in signature.arguments if a.is_tensor and a.name not in out]
    numbers = [argument.name for argument in signature.arguments if not argument.is_tensor]
    call_order = [*inputs, *out, *numbers]
    positions = [call_order.index(name) for name in names]

    def call(*args: Any) -> None:
        function(*(args[position] for position in positions))

    return tvm_ffi.convert(call), ["args", "rets", *(f"attrs.{name}" for name in numbers)]
