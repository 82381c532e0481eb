"""The `Launch` record. Its fields are checked when it is created, except for what depends on the kernel."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import check_expression
from jitload.expressions.parse import Expression, python_name, split_terms
from jitload.request.tune import Tune, Variant

if TYPE_CHECKING:
    from jitload.request.tma import Tma

Extent = int | str | Sequence[int | str]
_DTYPES = ("float32", "float16", "bfloat16")


class LaunchAttribute(NamedTuple):
    """What a field of a `Launch` that is a launch attribute tells the driver.

    Attributes:
        number: The number of the attribute, `CU_LAUNCH_ATTRIBUTE_…` in cuda.h.
        settings: The attribute's value for each value of the field that sets it. If it is None, the field is an integer
            and is the attribute's value itself, or is an extent, which is computed in each call.
    """

    number: int
    settings: Mapping[bool | str, int] | None = None


def _attribute(number: int, settings: Mapping[bool | str, int] | None = None) -> dict[str, LaunchAttribute]:
    return {"attribute": LaunchAttribute(number, settings)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Launch:
    """How an exported function launches its kernel.

    `grid`, `block`, `cluster`, `shared_bytes` and the values of `args` are integers or launch expressions: Python
    expressions over the kernel's parameters, such as `"ceil_div(n, 256)"` or `"x.shape[0]"`. Fields given as lists
    become tuples. A parameter named like a Python keyword gets a trailing underscore (`in_`).

    Example:
        `Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})`

        `Launch("scale<float>", grid="ceil_div(n, 256)", block=256)` launches another kernel than that of its name.

    A `Launch` can also describe a C++ function for the host. Only the fields `params`, `kernel`, `args`, `nullable`,
    `requires`, `raw_pointers`, `strided`, `host` and `doc` apply to host functions.

    Attributes:
        grid: Number of blocks (not of clusters) in x, y and z. With None, each call passes the grid:
            `f[grid, block](...)`.
        block: Number of threads of a block in x, y and z. With None, each call passes the block.
        params: Names of all parameters, if the source does not show them.
        shared_bytes: Dynamic shared memory of a block, in bytes.
        cluster: Number of blocks of a cluster in x, y and z.
        cluster_policy: How the blocks of a cluster are scheduled: `"spread"` over the multiprocessors, or
            `"load_balancing"`. With None, the device chooses.
        cooperative: Whether to start all blocks at the same time, so that the grid can be synchronised.
        pdl: Whether the kernel may start before the previous kernel in its stream ends (programmatic dependent launch).
        priority: Launch priority; kernels with lower numbers run first.
        kernel: The kernel that the function launches: `scale<float>`, `ns::scale`, `scale(float*, int)`. In
            `scale<{x.dtype}>`, the dtype of the argument `x` chooses the type.
        signature: The kernel's C++ parameters, or its declaration such as `void f(float* x, int n)`. It is needed for
            a cubin that does not contain the types. If the compiler reports types, the signature has to match them.
        args: Expressions for parameters that the function computes and callers do not pass. A `Launch` sorts them, so
            that a parameter comes after the parameters in its expression.
        requires: What the arguments of each call have to fulfil, as launch expressions: `"y.numel() >= n"`,
            `"x.shape == y.shape"`, `"k % 16 == 0"`. A call that does not raises ValueError.
        bounds: With `"check"`, a call on a GPU that is certain to access memory outside of a tensor, or of its shared
            memory, raises ValueError. `f.extents` shows what is checked.
        nullable: Names of pointers that may be None.
        raw_pointers: Names of pointers that may be passed as integer addresses.
        strided: Names of tensors that need not be contiguous.
        host: Names of a host function's pointers to host memory. Tensors for these pointers must be on the CPU.
        doc: The function's docstring.
        dtypes: The dtypes among which `{x.dtype}` chooses.
        tma: For each `CUtensorMap` parameter that the call encodes, a `Tma` record with its tensor.
        tune: The variants among which the function chooses, a `Tune`.
    """

    grid: Extent | None = None
    block: Extent | None = None
    params: Sequence[str] | None = None
    shared_bytes: Expression = 0
    cluster: Extent | None = field(default=None, metadata=_attribute(4))
    cluster_policy: Literal["spread", "load_balancing"] | None = field(
        default=None, metadata=_attribute(5, {"spread": 1, "load_balancing": 2})
    )
    cooperative: bool = field(default=False, metadata=_attribute(2, {True: 1}))
    pdl: bool = field(default=False, metadata=_attribute(6, {True: 1}))
    priority: int | None = field(default=None, metadata=_attribute(8))
    kernel: str | None = field(default=None, kw_only=False)
    signature: str | None = None
    args: Mapping[str, Expression] = field(default_factory=dict)
    nullable: Sequence[str] = ()
    raw_pointers: Sequence[str] = ()
    strided: Sequence[str] = ()
    host: Sequence[str] = ()
    doc: str | None = None
    dtypes: Sequence[str] = _DTYPES
    tune: Tune | Variant | None = None
    requires: Sequence[str] = ()
    tma: Mapping[str, Tma] | Sequence[tuple[str, Tma]] = ()
    bounds: Literal["check"] | None = None

    @property
    def tensor_maps(self) -> tuple[tuple[str, Tma], ...]:
        """The tensor maps as (parameter, Tma) pairs."""
        return self.tma  # type: ignore[return-value]  # `__post_init__` has converted it

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults, so that a new field changes no key."""
        given = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return (
            f"Launch({', '.join(f'{name}={value!r}' for name, value, default in given if value not in (default, {}))})"
        )

    def __post_init__(self) -> None:
        values = _fields_but_args(self)
        args: Any = tuple(self.args.items()) if isinstance(self.args, dict) else []
        try:
            checked = _check_cached(values, args, _types_in(values, args))
        except TypeError:  # not hashable: lists, other mappings, or values that are rejected
            checked = _check(values, self.args)
        for name, value in checked.items():
            object.__setattr__(self, name, dict(value) if name == "args" else value)

    def __hash__(self) -> int:
        return hash((_fields_but_args(self), frozenset(self.args.items())))


LAUNCH_ATTRIBUTES: dict[str, LaunchAttribute] = {
    field.name: field.metadata["attribute"] for field in fields(Launch) if field.metadata
}
_FIELDS = tuple(field.name for field in fields(Launch) if field.name != "args")
_fields_but_args = operator.attrgetter(*_FIELDS)


def _types_in(values: tuple[Any, ...], args: tuple[tuple[str, object], ...]) -> tuple[type, ...]:
    """Return the types of all values. In the cache's key, the types distinguish `True` from `1`."""
    items = [item for value in (*values, *args) if isinstance(value, tuple) for item in value]
    return tuple(map(type, (*values, *items)))


@functools.lru_cache(maxsize=1024)  # programs often create the same Launch for each call of load_inline
def _check_cached(values: tuple[Any, ...], args: tuple[tuple[str, Expression], ...], _: object) -> dict[str, Any]:
    return _check(values, dict(args))


def _check(values: tuple[Any, ...], args: object) -> dict[str, Any]:
    """Check the fields of a Launch, and return `args` and the fields, with lists converted to tuples, for example."""
    by_field = dict(zip(_FIELDS, values, strict=True))
    checked: dict[str, Any] = {name: _extent(name, by_field[name]) for name in ("grid", "block", "cluster")}
    for name in ("params", "nullable", "raw_pointers", "strided", "host"):
        checked[name] = _names(name, by_field[name])
    checked["dtypes"] = _dtypes(by_field["dtypes"])
    checked["args"] = _args(args)
    if by_field["tma"] != ():
        from jitload.request.tma import read_tma

        checked["tma"] = read_tma(by_field["tma"])
    checked["requires"] = _requires(by_field["requires"])
    checked_integer("shared_bytes", by_field["shared_bytes"], 0, _MOST_SHARED)
    for name, attribute in LAUNCH_ATTRIBUTES.items():
        if name not in checked:
            check_setting(name, by_field[name], [*(attribute.settings or ())])
    for name in ("kernel", "signature", "doc"):
        _check_text(name, by_field[name])
    check_setting("bounds", by_field["bounds"], ["check"])
    if not isinstance(by_field["tune"], Tune | Variant | None):
        raise _wrong_type("tune", "a Tune", by_field["tune"])
    return {name: value for name, value in checked.items() if name == "args" or value is not by_field[name]}


# ---- checks -------------------------------------------------------------------------------------------------------

_INT32_MAX = 2**31 - 1
_MOST_SHARED = 227 << 10  # dynamic shared memory of a block on the GPUs that allow the most
_MOST = {"block": (1024, "threads"), "cluster": (16, "blocks")}  # of all axes together
_LOWEST = {"grid": 0, "block": 1, "cluster": 1}
_HIGHEST = {"grid": (_INT32_MAX, 65535, 65535), "block": (1024, 1024, 64), "cluster": (_INT32_MAX, 65535, 65535)}


def _wrong_type(field: str, expected: str, value: object) -> LaunchSpecError:
    return LaunchSpecError(f"must be {expected}, got {type(value).__name__}", field=field)


def extent_axes(field: str, extent: Extent) -> list[tuple[str, Expression]]:
    """Return a `(name, expression)` pair for each axis.

    The axes of a sequence are named `block[0]`, `block[1]` and so on. A single value is named `block`.
    """
    if isinstance(extent, int | str):
        return [(field, extent)]
    return [(f"{field}[{i}]", axis) for i, axis in enumerate(extent)]


def checked_integer(field: str, value: object, low: int, high: int) -> int | None:
    """Check an expression. Return its value if it is constant, otherwise None.

    A constant must be from `low` to `high`.
    """
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise _wrong_type(field, "an int or an expression (str)", value)
    constant = int(value) if isinstance(value, int) else check_expression(value, field)[0]
    if constant is not None and not low <= constant <= high:
        got = constant if abs(constant) < 2**64 else "another integer"  # Python does not print very long ones
        raise LaunchSpecError(f"must be from {low} to {high}, got {got}", field=field)
    return constant


def _extent(field: str, value: object) -> Extent | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str | tuple | list):
        raise _wrong_type(field, "an int, an expression (str) or a tuple of up to three of them", value)
    extent = tuple(value) if isinstance(value, tuple | list) else value
    axes = extent_axes(field, extent)
    if len(axes) not in range(1, 4):
        raise LaunchSpecError(f"must have one to three dimensions, got {len(axes)}", field=field)
    limits = zip(axes, _HIGHEST[field], strict=False)
    constants = [checked_integer(name, axis, _LOWEST[field], high) for (name, axis), high in limits]
    product = math.prod(size for size in constants if size is not None)
    most, unit = _MOST.get(field, (math.inf, ""))
    if product > most:
        raise LaunchSpecError(f"has {product} {unit}; CUDA's limit is {most}", field=field)
    return extent


def checked_name(field: str, name: object) -> str:
    """Check the name of a parameter, and return its name in Python."""
    if not isinstance(name, str):
        raise LaunchSpecError(f"names must be str, got {type(name).__name__}", field=field)
    if not name.isidentifier():
        raise LaunchSpecError(f"{name!r} is not an identifier, so it cannot be the name of a parameter", field=field)
    return python_name(name)


def _names(field: str, value: object) -> tuple[str, ...] | None:
    if value is None and field == "params":
        return None
    if not isinstance(value, str | tuple | list):
        raise _wrong_type(field, "a name (str) or a tuple of names", value)
    names = tuple(checked_name(field, name) for name in ((value,) if isinstance(value, str) else value))
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise LaunchSpecError(f"has {duplicate!r} twice", field=field)
    return names


def _dtypes(value: object) -> tuple[str, ...]:
    if value is _DTYPES:
        return _DTYPES  # without the import below, which takes a twentieth of a first cache hit
    if not (names := _names("dtypes", value)):
        return ()
    from jitload.element_types import CPP_TYPES

    if unknown := next((name for name in names if name not in CPP_TYPES), None):
        problem = f"{unknown!r} is none of the dtypes {', '.join(CPP_TYPES)}"
        raise LaunchSpecError(problem, field="dtypes")
    return names


def _args(value: object) -> dict[str, Expression]:
    """Return the checked `args` of a Launch. Each parameter comes after the parameters in its expression."""
    if not isinstance(value, Mapping):
        raise _wrong_type("args", "a mapping from names to expressions", value)
    args: dict[str, Expression] = {}
    for key, expression in value.items():
        name = checked_name("args", key)
        if name in args:
            raise LaunchSpecError(f"has {name!r} twice", field="args")
        args[name] = int(expression) if isinstance(expression, bool) else expression
        checked_integer(f"args[{name!r}]", args[name], -(2**63), 2**63 - 1)
    texts = {name: text for name, text in args.items() if isinstance(text, str)}
    dependencies = {name: check_expression(text, f"args[{name!r}]")[1] & args.keys() for name, text in texts.items()}
    if not any(dependencies.values()):
        return args
    from graphlib import CycleError, TopologicalSorter

    try:
        order = tuple(TopologicalSorter({name: sorted(dependencies.get(name, ())) for name in args}).static_order())
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise LaunchSpecError(f"parameters are computed from each other: {cycle}", field="args") from error
    return {name: args[name] for name in order}


def _requires(value: object) -> tuple[str, ...]:
    """Return the terms of `requires`: comparisons without `and`, so that a message can name what is false."""
    if not isinstance(value, str | tuple | list):
        raise _wrong_type("requires", "an expression (str) or a tuple of expressions", value)
    terms: list[str] = []
    for number, text in enumerate((value,) if isinstance(value, str) else value):
        field = f"requires[{number}]"
        if not isinstance(text, str):
            raise _wrong_type(field, "an expression (str)", text)
        constant = check_expression(text, field)[0]
        if constant == 0:
            raise LaunchSpecError("is true for no call", field=field, expression=text)
        terms += split_terms(text, field) if constant is None else []
    return tuple(terms)


def _check_text(field: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise _wrong_type(field, "a str", value)
    if field in ("kernel", "signature") and not value.strip():
        raise LaunchSpecError("must not be empty", field=field)
    if "\0" in value:
        raise LaunchSpecError("must not contain a null character", field=field)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise LaunchSpecError("is not valid Unicode", field=field) from error


def check_setting(field: str, value: object, settings: Sequence[bool | str]) -> None:
    """Check the value of a field that is a launch attribute: True or False, one of several texts, or an integer."""
    if settings == [True]:
        if not isinstance(value, bool):
            raise _wrong_type(field, "True or False", value)
    elif value is None:
        return
    elif settings:
        if not isinstance(value, str) or value not in settings:
            raise LaunchSpecError(f"must be {' or '.join(map(repr, settings))}, got {value!r}", field=field)
    elif not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(field, "an int", value)
    elif not -_INT32_MAX <= value <= _INT32_MAX:
        raise LaunchSpecError("does not fit 32 bits", field=field)
