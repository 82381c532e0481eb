"""Reads what a function takes and returns from a torch schema, for functions whose types are unknown."""

from __future__ import annotations

from typing import Any

import torch

from jitload.errors import LaunchSpecError
from jitload.expressions.parse import python_name
from jitload.operators.signature import Argument, Signature


def read_schema(schema: str, function: str) -> Signature:
    """Return what a function takes and returns, as a schema declares it.

    Raises:
        LaunchSpecError: The schema is malformed, or it declares something that is not supported.
    """
    try:
        parsed = torch._C.parse_schema(f"f{schema.strip()}")
    except RuntimeError as error:
        example = "A schema looks like (Tensor x, Tensor(a!) y, SymInt n) -> ()"
        raise _schema_error(f"it is malformed: {str(error).splitlines()[0]}", schema, function, example) from None
    if any(result.alias_info for result in parsed.returns):
        hint = "Mark the argument that is written, Tensor(a!), and return (); or return a new tensor."
        raise _schema_error("an operator cannot return one of its arguments", schema, function, hint)
    if any(str(result.type) != "Tensor" for result in parsed.returns):
        raise _schema_error("an operator returns tensors only", schema, function)
    if any(argument.kwarg_only for argument in parsed.arguments):
        raise _schema_error("arguments that are only keywords are not supported", schema, function)
    texts = _split_arguments(schema.strip())
    arguments = (_declared(argument, text) for argument, text in zip(parsed.arguments, texts, strict=True))
    returns = tuple(result.name or f"result{index}" for index, result in enumerate(parsed.returns))
    return Signature(function, tuple(arguments), returns)


def _schema_error(problem: str, schema: str, function: str, hint: str = "") -> LaunchSpecError:
    return LaunchSpecError(problem, kernel=function, field="schema", expression=schema, hint=hint)


def _split_arguments(schema: str) -> list[str]:
    """Return the text of each argument of a schema."""
    inner = schema[1 : schema.rindex("->")].rstrip()[:-1]
    return split_at_commas(inner)


def _declared(argument: Any, text: str) -> Argument:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    return Argument(
        python_name(argument.name),
        "tensor" if kind == "Tensor" else "int" if kind in ("int", "SymInt", "bool") else "other",
        text,
        is_nullable=str(argument.type).startswith("Optional["),
        is_written=argument.alias_info is not None and argument.alias_info.is_write,
        is_strided=True,
        default=(argument.default_value,) if argument.has_default_value() else (),
    )


def split_at_commas(text: str) -> list[str]:
    """Return the parts of a text between the commas that are outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    stripped = [part.strip() for part in parts]
    return stripped if stripped[-1] else stripped[:-1]
