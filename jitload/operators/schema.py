"""Reads what a function takes and returns from a torch schema, for functions whose types are unknown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, Literal

import torch

from jitload.errors import LaunchSpecError
from jitload.expressions.parse import python_name
from jitload.operators.signature import Argument, Signature

_KINDS: dict[str, Literal["tensor", "tensors", "int", "device"]] = {
    "Tensor": "tensor", "List[Tensor]": "tensors", "List[Optional[Tensor]]": "tensors",
    "int": "int", "SymInt": "int", "bool": "int", "Device": "device",
}  # fmt: skip
_TOKEN = re.compile(r"""\"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\w+|.""", re.DOTALL)
_ENUMERATIONS = ("ScalarType", "Layout", "MemoryFormat")


def read_schema(schema: str, function: str) -> Signature:
    """Return the signature that a schema declares. `function` is the function's name for error messages."""
    example = "A schema looks like (Tensor x, Tensor(a!) y, SymInt n) -> ()"
    if not isinstance(schema, str) or not schema.strip().startswith("("):
        raise _schema_error("it is malformed: it does not begin with (", str(schema), function, example)
    try:
        parsed = torch._C.parse_schema(f"f{schema.strip()}")
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0].rpartition("report a bug to PyTorch. ")[2]
        raise _schema_error(f"it is malformed: {reason}", schema, function, example) from None
    names = [argument.name for argument in parsed.arguments]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise _schema_error(f"two arguments are named {repeated[0]!r}", schema, function)
    if any(result.alias_info for result in parsed.returns):
        hint = "Mark the argument that is written, Tensor(a!), and return (); or return a new tensor."
        raise _schema_error("an operator cannot return one of its arguments", schema, function, hint)
    if any(str(result.type) not in ("Tensor", "Optional[Tensor]") for result in parsed.returns):
        raise _schema_error("an operator returns tensors only", schema, function)
    texts = [text for text in split_at_commas(schema[: schema.rindex("->")].strip()[1:-1]) if text != "*"]
    arguments = tuple(_declared(argument, text) for argument, text in zip(parsed.arguments, texts, strict=True))
    if tensors := [argument.name for argument in arguments if argument.keyword and argument.has_tensors]:
        problem = f"{tensors[0]!r} is a keyword-only tensor, which torch does not support in autograd and vmap"
        raise _schema_error(problem, schema, function, "Declare it before the *.")
    returns = (
        Argument(
            result.name or f"result{index}",
            "tensor",
            "",
            is_nullable=str(result.type) == "Optional[Tensor]",
            is_strided=True,
        )
        for index, result in enumerate(parsed.returns)
    )
    return Signature(function, arguments, tuple(returns))


def _schema_error(problem: str, schema: str, function: str, hint: str = "") -> LaunchSpecError:
    return LaunchSpecError(problem, kernel=function, field="schema", expression=schema, hint=hint)


def _declared(argument: Any, text: str) -> Argument:
    schema_type = re.match(r"\w+", text)
    kind = str(argument.type)
    is_nullable = kind.startswith("Optional[")
    if is_nullable:
        kind = kind.removeprefix("Optional[")[:-1]
    default = argument.default_value if argument.has_default_value() else None
    if schema_type and schema_type[0] in _ENUMERATIONS and isinstance(default, int):
        default = getattr(torch, text.partition("=")[2].strip())  # torch gives only the number of the member
    return Argument(
        python_name(argument.name),
        _KINDS.get(kind, "other"),
        text,
        is_nullable=is_nullable,
        is_written=argument.alias_info is not None and argument.alias_info.is_write,
        is_strided=True,
        default=(default,) if argument.has_default_value() else (),
        keyword=argument.name if argument.kwarg_only else "",
    )


def split_at_commas(text: str) -> list[str]:
    """Split a text at each comma that is outside of brackets and strings."""
    stripped = [part.strip() for part in split_at(itertools.repeat(","), text)]
    return stripped if stripped[-1] else stripped[:-1]


def split_at(separators: Iterable[str], text: str) -> list[str]:
    """Split a text at separators that follow each other in this order, outside of brackets and strings."""
    parts, depth, remaining = [""], 0, iter(separators)
    separator = next(remaining)
    for token in _TOKEN.findall(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token, 0)
        if token == separator and depth == 0:
            parts.append("")
            separator = next(remaining, "")
        else:
            parts[-1] += token
    return parts
