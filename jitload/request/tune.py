"""The `Tune` record: the variants of a kernel, and the key by which a call chooses one; and the argument `tuned=`."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jitload.errors import JitLoadError, LaunchSpecError
from jitload.expressions.compiler import ScopeEntry, check_expression, compile_expression
from jitload.expressions.parse import Expression
from jitload.toolchain.arch import CPU, device_attribute

Value = int | bool | str
Values = tuple[tuple[str, Value], ...]
Nearest = Literal["log2"]
MAX_KEYS = 8  # the size of an array in runtime/jitload/record.h
_MAX_VARIANTS = 10_000
_MULTIPROCESSORS = "device.multiprocessors"  # in expressions
_ATTRIBUTE = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class Tune:
    """The variants of a kernel, one for each combination of values. A call chooses one of them by its key.

    The names may stand in the grid, block, cluster, shared memory and `args` of a `Launch`, as `{NAME}` in its kernel,
    `softmax<float, {B}>`, and in compiler options, `-DB={B}`.

    Example:
        `Tune(B=(128, 256, 512), V=(1, 2, 4), when="B * V <= 1024", key="x.shape[1]")`

    Attributes:
        when: A condition that the values of a variant fulfil, as an expression.
        key: Launch expressions over the arguments. A call launches the variant that was chosen for its values of them.
        nearest: How a call finds a variant if its key was not tuned: `"log2"` takes the variant of the tuned key with
            the smallest difference of logarithms. On a GPU that was not tuned, the keys of all GPUs count. With None,
            the call launches the first variant.
        measure: None, or `"first call"`: the first call with a key that was not tuned measures the variants. Then each
            call costs some microseconds more.
        values: The names, each with its values: integers, booleans, texts such as a type's name, and expressions with
            the number of multiprocessors, such as `"2 * device.multiprocessors"`.
    """

    __slots__ = ("key", "measure", "nearest", "values", "when")

    def __init__(
        self,
        *,
        when: str | None = None,
        key: str | tuple[str, ...] | list[str] = (),
        nearest: Nearest | None = None,
        measure: Literal["first call"] | None = None,
        **values: Any,
    ) -> None:
        self.key = tuple(map(str, key if isinstance(key, tuple | list) else (key,)))
        self.when, self.nearest, self.measure = when, nearest, measure
        lists = {name: tuple(v) if isinstance(v, tuple | list | range) else (v,) for name, v in values.items()}
        self.values: tuple[tuple[str, tuple[Value, ...]], ...] = tuple(lists.items())
        if not values:
            raise LaunchSpecError("has no values: name some, Tune(B=(128, 256))", field="tune")
        if nearest not in (None, "log2"):
            raise LaunchSpecError(f"must be 'log2' or None, got {nearest!r}", field="nearest")
        if measure not in (None, "first call"):
            raise LaunchSpecError(f"must be 'first call' or None, got {measure!r}", field="measure")
        if len(self.key) > MAX_KEYS:
            raise LaunchSpecError(f"has {len(self.key)} expressions; at most {MAX_KEYS} are allowed", field="key")
        for name, value in ((name, value) for name, each in lists.items() for value in each):
            if not isinstance(value, int | str):
                raise LaunchSpecError(f"values must be int, bool or str, got {type(value).__name__}", field=name)
        for number, text in enumerate(self.key):
            check_expression(text, f"key[{number}]")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tune) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Tune({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    def space(self, archs: Sequence[str]) -> list[Values]:
        """Return the values of all variants, in order: for the CPU if `archs` is `("cpu",)`, or else the current GPU.

        Raises:
            LaunchSpecError: No combination of the values fulfils `when`, or there are too many.
        """
        facts: dict[str, Value] = {}
        if "device." in repr(self):
            count = os.cpu_count() or 1 if tuple(archs) == (CPU,) else device_attribute(_ATTRIBUTE)
            if count is None:
                problem, hint = f"{_MULTIPROCESSORS} is not known: this machine has no GPU", "Pass numbers instead."
                raise LaunchSpecError(problem, field="tune", hint=hint)
            facts[_MULTIPROCESSORS] = count

        def on_device(value: Value, name: str) -> Value:
            return evaluate(value, facts, name) if isinstance(value, str) and "device." in value else value

        columns = [[*dict.fromkeys(on_device(value, name) for value in each)] for name, each in self.values]
        if math.prod(map(len, columns)) > _MAX_VARIANTS:
            raise LaunchSpecError(f"has more than {_MAX_VARIANTS:,} combinations of values", field="tune")
        names, when = [name for name, _ in self.values], self.when
        variants = [tuple(zip(names, row, strict=True)) for row in itertools.product(*columns)]
        variants = [values for values in variants if when is None or evaluate(when, {**facts, **dict(values)}, "when")]
        if not variants:
            problem = "allows no combination of the values"
            raise LaunchSpecError(problem, field="when" if when else "tune", expression=when or "")
        return variants


class Choice(NamedTuple):
    """How a call chooses among variants: the expressions of its key, the rule for other keys, and the variants.

    `chosen` has the model of the GPU, the key and the values of each choice, sorted by the model. `digest` is that of
    the file with the measurements, or "". `measures` says whether the first call with a new key measures.
    """

    key: tuple[str, ...]
    nearest: Nearest | None = None
    chosen: tuple[tuple[str, tuple[int, ...], Values], ...] = ()
    digest: str = ""
    measures: bool = False


class Variant(NamedTuple):
    """What distinguishes a variant: the values of the names in a `Tune`, and the dtypes of arguments."""

    values: Values
    dtypes: tuple[tuple[str, str], ...]
    choice: Choice | None


def evaluate(text: str, values: Mapping[str, Value], field: str) -> int:
    """Return the value of an expression over values of a `Tune`."""
    scope = {name: ScopeEntry(0, "int") for name in values}
    (constant,) = compile_expression(replace_names(text, values), scope, kernel="", field=field)
    return constant.value


def replace_names(expression: Expression, values: Mapping[str, Value]) -> Expression:
    """Return a launch expression with the values of a variant in place of their names."""
    if not isinstance(expression, str) or not values:
        return expression

    def text_of(match: re.Match[str]) -> str:
        value = values[match[1]]
        return str(int(value)) if isinstance(value, int) and value >= 0 else f"({value})"

    names = "|".join(map(re.escape, values))
    return re.sub(rf"(?<![\w.])({names})(?![\w.])", text_of, expression)  # and not `x.shape[0]` for a value named x


def spelled(value: Value) -> str:
    """Return a value as C++ spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- the file of measurements ----------------------------------------------------------------------------------------


class Tuned(NamedTuple):
    """The text of a file of measurements, a label for messages, and the file's name, which a `Tuning` does not have."""

    label: str
    text: str
    file_name: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_tuned(value: Any) -> Tuned | None:
    """Return the argument `tuned=`: a path, a resource of a package, a `Tuning`, or a `Tuned` as a mapping.

    Raises:
        JitLoadError: The file cannot be read.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):  # from a record
        return Tuned(**value)
    if hasattr(value, "to_json"):
        return Tuned("a Tuning", value.to_json())
    try:
        path = os.fspath(value)
        file: Any = Path(path)
        package, _, name = path.partition(":")
        if name and package.replace(".", "").isidentifier() and not file.exists():
            from importlib.resources import files

            file = files(package) / name
        return Tuned(path, file.read_text(encoding="utf-8"), file.name)
    except (OSError, ImportError, TypeError, ValueError) as error:  # TypeError: no path, or a module
        reason = getattr(error, "strerror", None) or error
        raise JitLoadError(f"the measurements in {value!r} cannot be read: {reason}") from error
