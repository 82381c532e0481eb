"""Rules for the tensors that an operator returns: `like x`, `float32[n, x.shape[0]]`, `None if x is None else like x`.

A rule is translated to a Python expression that allocates the tensor. The operator and its fake function contain the
same expression, so that shapes, strides and dtypes cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch

from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import ScopeEntry
from jitload.expressions.python import to_python
from jitload.operators.schema import split_at, split_at_commas
from jitload.operators.signature import Argument

_RULE = re.compile(
    r"(?P<zeros>zeros\b)?\s*(?P<dtype>[\w.]+)??\s*(?:\blike\s+(?P<like>\w+)|\[(?P<shape>.*)\])", re.DOTALL
)
_EXTENTS = re.compile(r"\*\s*(?P<name>\w+)(?P<shape>\.shape)?\s*(?:\[(?P<start>[^:]*):(?P<stop>[^:]*)\])?")
_EXAMPLES = (
    "A rule is 'like x', 'float16 like x', 'float32[n, x.shape[0]]', 'x.dtype[n]', 'zeros like x', or "
    "'like x if n > 1 else None'."
)


def field_of(name: str) -> str:
    """Return the name of an output's rule in error messages: `out['y']`."""
    return f"out[{name!r}]"


def scope_of(arguments: Iterable[Argument]) -> dict[str, ScopeEntry]:
    """Return the arguments that expressions may use, by name."""
    kinds: dict[str, Literal["tensor", "int"]] = {"tensor": "tensor", "int": "int"}
    return {
        a.name: ScopeEntry(
            position=0, kind=kinds.get(a.kind, "other"), type=a.cpp_type or a.declaration, is_nullable=a.is_nullable
        )
        for a in arguments
    }


class Allocator:
    """Writes the Python expressions that allocate the outputs of one operator.

    Attributes:
        tensors: The tensors that the next rule may use: the inputs, and the outputs of earlier rules.
    """

    def __init__(self, function: str, arguments: Sequence[Argument], inputs: Sequence[Argument]) -> None:
        self.function = function
        self.by_name = {argument.name: argument for argument in arguments}
        self.inputs = {argument.name: argument for argument in inputs}
        self.tensors = {argument.name: argument for argument in inputs if argument.is_tensor}
        self.has_device = any(a.kind == "device" and a.name == "device" for a in inputs)
        models = [a for a in inputs if a.has_tensors and not a.is_nullable and not a.is_host]
        models.sort(key=lambda a: not a.is_tensor)
        self.model = f"a_{models[0].name}{'' if models[0].is_tensor else '[0]'}" if models else ""

    def allocate(self, name: str, rule: object) -> tuple[str, bool]:
        """Return the Python expression that allocates an output, and whether it may be None.

        Later rules may use this output.
        """
        self._output, self._rule = name, str(rule)
        if not isinstance(rule, str):
            raise self._error(f"a rule must be a str, got {type(rule).__name__}")
        argument = self.by_name[name]
        source, may_be_none = self._source(rule, argument)
        if may_be_none and not argument.is_nullable:
            declare = "name it in Launch(nullable=…)" if argument.cpp_type else f"declare it as 'Tensor? {name}'"
            raise self._error(f"{name!r} must not be None: {declare}")
        self.tensors[name] = argument._replace(is_nullable=may_be_none)
        return source, may_be_none

    def _source(self, text: str, argument: Argument) -> tuple[str, bool]:
        """Return the expression for a rule or a part of one, and whether it may be None."""
        body, *rest = split_at(("if", "else"), text)
        if len(rest) == 2:
            condition = self._expression(rest[0])
            (first, may_be_none), (second, may_be_none_too) = (self._source(part, argument) for part in (body, rest[1]))
            return f"({first} if {condition} else {second})", may_be_none or may_be_none_too
        if text.strip() == "None":
            return "None", True
        match = _RULE.fullmatch(text.strip())
        if match is None:
            raise self._error("this is not a rule for an output")
        write = self._like if match["like"] else self._shaped
        return write(match, argument, self._dtype(match, argument)), False

    def _like(self, rule: re.Match[str], argument: Argument, dtype: str) -> str:
        model = self._tensor(rule["like"])
        kind = "zeros_like" if rule["zeros"] else "empty_like"
        # A kernel that takes a strided tensor may still want a contiguous output.
        is_plain = argument.is_strided or not model.is_strided
        layout = "" if is_plain else ", memory_format=contiguous_format"
        if not dtype:
            self._check_dtype(rule, argument, model)
        return f"{kind}(a_{rule['like']}{f', dtype={dtype}' if dtype else ''}{layout})"

    def _shaped(self, rule: re.Match[str], argument: Argument, dtype: str) -> str:
        shape = "".join(f"{self._size(text)}, " for text in split_at_commas(rule["shape"]))
        expected = argument.dtypes[0] if len(set(argument.dtypes)) == 1 else None
        if not dtype and expected is None:
            reason = "takes several dtypes" if len(argument.dtypes) > 1 else "has no dtype of its own"
            raise self._error(f"{argument.name!r} {reason}: begin the rule with a dtype, 'float32[…]' or 'x.dtype[…]'")
        kind = "zeros" if rule["zeros"] else "empty"
        dtype = dtype or f"torch.{expected}"
        if self.model:
            return f"{self.model}.new_{kind}(({shape}), dtype={dtype})"
        device = "a_device" if self.has_device else "device"
        return f"{kind}(({shape}), dtype={dtype}, device=_device({device}))"

    def _size(self, text: str) -> str:
        return self._extents(text) if text.startswith("*") else self._expression(text)

    def _extents(self, text: str) -> str:
        """Translate `*size`, `*x.shape`, or a slice of one of these."""
        match = _EXTENTS.fullmatch(text)
        name = match["name"] if match else ""
        if match and match["shape"] and name in self.tensors:
            self._tensor(name)
        elif match and not match["shape"] and self._is_declared(name, r"(SymInt|int)\[\d*\]"):
            self._check_is_tested(name)
        else:
            example = "*size for a list of integers, *x.shape for a tensor, or a slice, *x.shape[:-1]"
            raise self._error(f"{text!r} is not a list of extents: write {example}")
        bounds = [match["start"], match["stop"]]
        if bounds == [None, None]:
            return f"*a_{name}{match['shape'] or ''}"
        start, stop = (self._expression(bound) if bound.strip() else "" for bound in bounds)
        return f"*a_{name}{match['shape'] or ''}[{start}:{stop}]"

    def _is_declared(self, name: str, schema_type: str) -> bool:
        """Return whether `name` is an argument of this type, a pattern, or may also be None."""
        return name in self.inputs and re.match(rf"{schema_type}\?? ", self.inputs[name].declaration) is not None

    def _expression(self, text: str) -> str:
        arguments = {**self.inputs, **self.tensors}
        for name in arguments:
            if re.search(rf"\b{name}\b", text):
                self._check_is_tested(name)
        return to_python(text, scope_of(arguments.values()), kernel=self.function, field=field_of(self._output))

    def _dtype(self, rule: re.Match[str], argument: Argument) -> str:
        """Return the Python expression for the dtype in a rule, or "" if the rule has no dtype."""
        if not rule["dtype"]:
            return ""
        name, dot, attribute = rule["dtype"].partition(".")
        if dot and attribute == "dtype":
            self._check_dtype(rule, argument, self._tensor(name))
            return f"a_{name}.dtype"
        if self._is_declared(rule["dtype"], "ScalarType"):
            self._check_is_tested(rule["dtype"])
            return f"a_{rule['dtype']}"
        dtype = getattr(torch, rule["dtype"], None)
        if str(dtype) != f"torch.{rule['dtype']}":  # aliases such as torch.half are not names of dtypes
            raise self._error(
                f"torch has no dtype {rule['dtype']!r}: write a dtype, such as float32, x.dtype for the dtype of x, or "
                "the name of an argument of type ScalarType"
            )
        if not any(argument.accepts(rule["dtype"], kernel) for kernel in range(len(argument.dtypes))):
            raise self._wrong_dtype(rule, argument, rule["dtype"])
        return f"torch.{rule['dtype']}"

    def _check_dtype(self, rule: re.Match[str], argument: Argument, model: Argument) -> None:
        """Raise LaunchSpecError if no kernel takes an output with the dtype of the tensor `model`."""
        pairs = zip(argument.dtypes, model.dtypes * len(argument.dtypes), strict=False)
        if not any(expected is None or got is None or expected == got for expected, got in pairs):
            raise self._wrong_dtype(rule, argument, f"{model.dtypes[0]} of {model.name!r}")

    def _wrong_dtype(self, rule: re.Match[str], argument: Argument, got: str) -> LaunchSpecError:
        expected = " or ".join(dict.fromkeys(map(str, argument.dtypes)))
        fix = f"{expected} like {rule['like']}" if rule["like"] else f"{expected}[{rule['shape']}]"
        return self._error(f"{argument.name!r} is a tensor of {expected}, not {got}: write {fix!r}")

    def _tensor(self, name: str) -> Argument:
        if name not in self.tensors:
            names = ", ".join(self.tensors) or "none"
            raise self._error(f"there is no tensor {name!r} among the inputs; the tensors are {names}")
        self._check_is_tested(name)
        return self.tensors[name]

    def _check_is_tested(self, name: str) -> None:
        """Raise LaunchSpecError if `name` may be None, and the rule does not test this."""
        argument = self.tensors.get(name) or self.inputs[name]
        if argument.is_nullable and not re.search(rf"\b{name}\s+is\s", self._rule):
            raise self._error(f"{name!r} may be None, so the rule must test it: '… if {name} is None else …'")

    def _error(self, problem: str) -> LaunchSpecError:
        field = field_of(self._output)
        return LaunchSpecError(problem, kernel=self.function, field=field, expression=self._rule, hint=_EXAMPLES)


def allocation_error(
    operator: str, rule: str, error: Exception, values: dict[str, Any], optional: Sequence[str]
) -> Exception:
    """Return the error for a call that cannot allocate an output, whose rule is `out['y'] = 'like x'`.

    `values` has the arguments that the rule uses, and `optional` the names of those that may be None.
    """
    for argument, value in values.items():
        if value is None and argument not in optional:
            return TypeError(f"{operator}(): argument {argument!r} must be a tensor, got None")
    missing = [f"{key} is None" for key, value in values.items() if value is None]
    reason = "an axis is out of range" if isinstance(error, IndexError) else str(error)
    if isinstance(error, AttributeError | TypeError):
        if not missing:
            return error
        reason = "the rule uses an argument that is None"
    shapes = [f"{key} has shape {list(value.shape)}" for key, value in values.items() if hasattr(value, "shape")]
    facts = ", ".join(shapes + missing)
    return ValueError(f"{operator}(): {rule}: {reason}{f'; {facts}' if facts else ''}")
