"""Call a typed function from JAX, through jax-tvm-ffi, which connects XLA with functions of tvm-ffi."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from jitload.errors import LaunchSpecError, ToolchainError
from jitload.operators.signature import Signature, check_has_launch, check_names, read_function

_numbers = itertools.count()
_targets: weakref.WeakKeyDictionary[Any, dict[tuple[tuple[str, ...], ...], str]] = weakref.WeakKeyDictionary()


def jax_call(
    function: Any,
    *args: Any,
    out: Mapping[str, Any],
    unwritten: str | Sequence[str] = (),
    vmap_method: str | None = None,
) -> Any:
    """Call a typed function with JAX arrays, also within `jax.jit`.

    Args:
        function: A function of a `jitload.Module`.
        args: The function's arguments, except those that `out` names. Numbers are constants of the compiled program.
            None is allowed for a pointer that the `Launch` names in `nullable`.
        out: The pointers that the function writes to: a mapping from their names to arrays, or to
            `jax.ShapeDtypeStruct` objects, with the shapes and dtypes of the results.
        unwritten: Names of pointers that are not `const`, but are only read.
        vmap_method: How `jax.vmap` calls the function, as defined by `jax.ffi.ffi_call`: "sequential" calls the
            function for each element. By default, `jax.vmap` raises an error.

    Returns:
        The result, or a tuple of the results in the order of `out` if there are several.

    Raises:
        TypeError: The number of arguments is wrong, or an argument that must be a number is not one.
        LaunchSpecError: A name is wrong, JAX has no type for a parameter, or a kernel has no grid or block.
        ToolchainError: jax-tvm-ffi is not installed.

    Example:
        `y = jitload.jax_call(mod.add_one, x, out={"y": x})`
    """
    import jax

    unwritten = (unwritten,) if isinstance(unwritten, str) else tuple(unwritten)
    signature = read_function(function)
    check_has_launch(function)
    _check(signature, out, unwritten)
    names = [argument.name for argument in signature.arguments if argument.name not in out]
    if len(args) != len(names):
        plural = "" if len(args) == 1 else "s"
        raise TypeError(f"{signature.name}() takes {', '.join(names)}; got {len(args)} argument{plural}")
    arguments = {argument.name: argument for argument in signature.arguments}
    values = dict(zip(names, args, strict=True))
    absent = tuple(name for name, value in values.items() if value is None and arguments[name].is_nullable)
    tensors = [value for name, value in values.items() if arguments[name].is_tensor and name not in absent]
    numbers = {
        name: _number(f"{signature.name}(): argument {name!r}", value)
        for name, value in values.items()
        if not arguments[name].is_tensor
    }
    results = tuple(jax.ShapeDtypeStruct(like.shape, like.dtype) for like in out.values())
    target = _target(function, signature, tuple(out), absent)
    answers = jax.ffi.ffi_call(target, results, vmap_method=vmap_method)(*tensors, **numbers)
    return answers[0] if len(answers) == 1 else tuple(answers)


def _number(argument: str, value: Any) -> Any:
    """Convert a number or a vector of numbers to NumPy's bool, int64 or float64, for use as an XLA attribute."""
    import jax
    import numpy as np

    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{argument} must be a number that is known while JAX traces the program, got {value}; "
            "name it in static_argnames of jax.jit (or its position in static_argnums), or let the kernel read it "
            "through a pointer"
        )
    number = np.asarray(value)
    types = (np.bool_, np.bool_), (np.integer, np.int64), (np.floating, np.float64)
    wide = next((wide for kind, wide in types if jax.numpy.issubdtype(number.dtype, kind)), None)
    is_too_large = number.dtype == np.uint64 and number.max(initial=0) > np.iinfo(np.int64).max
    if wide is None or number.ndim > 1 or is_too_large:
        raise TypeError(f"{argument} must be a number that int64 or float64 can hold, got {value!r}")
    return number.astype(wide) if number.ndim else wide(number)


def _check(signature: Signature, out: Mapping[str, Any], unwritten: Sequence[str]) -> None:
    """Raise LaunchSpecError if `out` is empty, or a name in `out` or `unwritten` is wrong.

    Raise it also if a non-const pointer is in neither of them, because arrays of JAX cannot be changed in place.
    """
    if not isinstance(out, Mapping) or not all(
        hasattr(like, "shape") and hasattr(like, "dtype") for like in out.values()
    ):
        problem = "must be a dict from names to arrays or jax.ShapeDtypeStruct"
        raise LaunchSpecError(problem, kernel=signature.name, field="out", hint='out={"y": x}')
    check_names(out, signature.arguments, function=signature.name, field="out")
    check_names(unwritten, signature.arguments, function=signature.name, field="unwritten")
    for argument in signature.arguments:
        if argument.is_written and argument.name not in (*out, *unwritten):
            hint = "Name it in out, or in unwritten if the function only reads it."
            problem = f"it writes to {argument.name!r}, but arrays of JAX cannot be written to"
            raise LaunchSpecError(problem, kernel=signature.name, hint=hint)
    if not out:
        problem = "it names no result, and JAX drops calls without results"
        raise LaunchSpecError(problem, kernel=signature.name, field="out", hint='out={"y": x}')


def _target(function: Any, signature: Signature, out: tuple[str, ...], absent: tuple[str, ...]) -> str:
    """Return the name of the function in XLA. Register the function first if necessary.

    `absent` has the names of the arguments that are None. Each combination of `out` and `absent` has its own name.
    """
    targets = _targets.setdefault(function, {})
    key = (out, absent)
    if key not in targets:
        try:
            import jax_tvm_ffi
        except ImportError as error:
            raise ToolchainError("jax_call() needs jax-tvm-ffi: pip install jax-tvm-ffi") from error
        name = f"jitload_{signature.name}_{next(_numbers)}"
        for platform in signature.devices.lower().replace("cuda", "gpu").split(" or "):
            target, order = _arrange(function, signature, out, absent)
            jax_tvm_ffi.register_ffi_target(name, target, order, platform, allow_cuda_graph=True)
        targets[key] = name
    return targets[key]


def _arrange(
    function: Any, signature: Signature, out: tuple[str, ...], absent: tuple[str, ...]
) -> tuple[Any, list[str]]:
    """Return the function to register in XLA, and the order in which XLA passes its arguments.

    The order is a list with "args" (all inputs), "rets" (all results) and "attrs.<name>" for each number. If the
    function's parameters have another order, or an argument is absent, return a wrapper that rearranges the arguments.
    """
    import tvm_ffi

    names = [argument.name for argument in signature.arguments]
    inputs = [a.name for a in signature.arguments if a.is_tensor and a.name not in (*out, *absent)]
    numbers = [argument.name for argument in signature.arguments if not argument.is_tensor]
    parts = dict.fromkeys(inputs, "args") | dict.fromkeys(out, "rets") | {name: f"attrs.{name}" for name in numbers}
    order = [part for part, _ in itertools.groupby(parts.get(name, "") for name in names)]
    if len(set(order)) == len(order) and not absent and tuple(name for name in names if name in out) == out:
        return function, order
    call_order = [*inputs, *out, *numbers]
    positions = [call_order.index(name) if name in call_order else len(call_order) for name in names]

    def call(*args: Any) -> None:
        values = (*args, None)
        function(*(values[position] for position in positions))

    return tvm_ffi.convert(call), ["args", "rets", *(f"attrs.{name}" for name in numbers)]
