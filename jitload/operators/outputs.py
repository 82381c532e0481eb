"""Rules for the tensors that an operator returns: `like x`, `float32[n, x.shape[0]]`, `zeros x.dtype[ceil_div(n, 2)]`.

A rule is translated to a Python expression that allocates the tensor. The operator and its fake function contain the
same expression, so that shapes, strides and dtypes cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import ScopeEntry
from jitload.expressions.python import to_python
from jitload.operators.schema import split_at_commas
from jitload.operators.signature import Argument

_RULE = re.compile(
    r"(?P<zeros>zeros\b)?\s*(?P<dtype>[\w.]+)??\s*(?:\blike\s+(?P<like>\w+)|\[(?P<shape>.*)\])", re.DOTALL
)
_EXAMPLES = "A rule is 'like x', 'float16 like x', 'float32[n, x.shape[0]]', 'x.dtype[n]', or 'zeros like x'."


class Rule(NamedTuple):
    """A parsed rule for the allocation of a tensor.

    Attributes:
        name: The tensor's name.
        is_zeroed: Whether the tensor is filled with zeros.
        dtype: The text of the dtype, `float32` or `x.dtype`, or "" if the rule has none.
        like: The name of a tensor of the same shape, or "" if the rule has a shape.
        shape: The expressions for the extents of the shape.
        text: The rule as the user wrote it.
    """

    name: str
    is_zeroed: bool
    dtype: str
    like: str
    shape: tuple[str, ...]
    text: str


def parse_rule(name: str, text: object, function: str) -> Rule:
    """Return the parsed rule for the output `name`. `text` is the rule as the user wrote it."""
    if not isinstance(text, str):
        raise LaunchSpecError(f"a rule must be a str, got {type(text).__name__}", kernel=function, field=field_of(name),
                              hint=_EXAMPLES)  # fmt: skip
    match = _RULE.fullmatch(text.strip())
    if match is None:
        problem = "this is not a rule for an output"
        raise LaunchSpecError(problem, kernel=function, field=field_of(name), expression=text, hint=_EXAMPLES)
    shape = tuple(split_at_commas(match["shape"])) if match["shape"] else ()
    return Rule(name, match["zeros"] is not None, match["dtype"] or "", match["like"] or "", shape, text)


def field_of(name: str) -> str:
    """Return the name of an output's rule in error messages: `out['y']`."""
    return f"out[{name!r}]"


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

    def allocate(self, rule: Rule) -> str:
        """Return the Python expression that allocates an output. Later rules may use this output."""
        argument = self.by_name.get(rule.name) or Argument(rule.name, "tensor", "", is_strided=True)
        dtype = self._dtype(rule, argument)
        source = self._like(rule, argument, dtype) if rule.like else self._shaped(rule, argument, dtype)
        self.tensors[rule.name] = argument._replace(is_nullable=False)
        return source

    def _like(self, rule: Rule, argument: Argument, dtype: str) -> str:
        model = self._tensor(rule.like, rule)
        kind = "_zeros_like" if rule.is_zeroed else "_empty_like"
        # A kernel that takes a strided tensor may still want a contiguous output.
        is_plain = argument.is_strided or not model.is_strided
        layout = "" if is_plain else ", memory_format=_contiguous_format"
        if not dtype:
            self._check_dtype(rule, argument, model)
        return f"{kind}(a_{rule.like}{f', dtype={dtype}' if dtype else ''}{layout})"

    def _shaped(self, rule: Rule, argument: Argument, dtype: str) -> str:
        shape = "".join(f"{self._size(text, rule)}, " for text in rule.shape)
        expected = argument.dtypes[0] if len(set(argument.dtypes)) == 1 else None
        if not dtype and expected is None:
            reason = "takes several dtypes" if len(argument.dtypes) > 1 else "has no dtype of its own"
            raise self._error(
                f"{rule.name!r} {reason}: begin the rule with a dtype, 'float32[…]' or 'x.dtype[…]'", rule
            )
        kind = "zeros" if rule.is_zeroed else "empty"
        dtype = dtype or f"_dtype_{expected}"
        if self.model:
            return f"{self.model}.new_{kind}(({shape}), dtype={dtype})"
        device = "a_device" if self.has_device else "device"
        return f"_{kind}(({shape}), dtype={dtype}, device=_device({device}))"

    def _size(self, text: str, rule: Rule) -> str:
        if text.startswith("*"):
            argument = self.inputs.get(text[1:].strip())
            if argument is None or not re.match(r"(SymInt|int)\[\d*\] ", argument.declaration):
                raise self._error(f"{text!r} is not the name of a list of integers after *", rule)
            return f"*a_{argument.name}"
        arguments = {**self.inputs, **self.tensors}
        for name, argument in arguments.items():
            if argument.is_nullable and re.search(rf"\b{name}\b", text):
                raise self._missing(name, rule)
        kinds: dict[str, Literal["tensor", "int"]] = {"tensor": "tensor", "int": "int"}
        scope = {
            name: ScopeEntry(position=0, kind=kinds.get(a.kind, "other"), type=a.cpp_type or a.declaration)
            for name, a in arguments.items()
        }
        return to_python(text, scope, kernel=self.function, field=field_of(rule.name))

    def _dtype(self, rule: Rule, argument: Argument) -> str:
        """Return the Python expression for the dtype in a rule, or "" if the rule has no dtype."""
        if not rule.dtype:
            return ""
        name, dot, attribute = rule.dtype.partition(".")
        if dot and attribute == "dtype":
            self._check_dtype(rule, argument, self._tensor(name, rule))
            return f"a_{name}.dtype"
        if rule.dtype in self.inputs and self.inputs[rule.dtype].declaration.startswith("ScalarType "):
            return f"a_{rule.dtype}"
        dtype = getattr(torch, rule.dtype, None)
        if str(dtype) != f"torch.{rule.dtype}":  # aliases such as torch.half are not names of dtypes
            raise self._error(
                f"torch has no dtype {rule.dtype!r}: write a dtype, such as float32, x.dtype for the dtype of x, or "
                "the name of an argument of type ScalarType",
                rule,
            )
        if not any(argument.accepts(rule.dtype, kernel) for kernel in range(len(argument.dtypes))):
            raise self._wrong_dtype(rule, argument, rule.dtype)
        return f"_dtype_{rule.dtype}"

    def _check_dtype(self, rule: Rule, argument: Argument, model: Argument) -> None:
        """Raise LaunchSpecError if no kernel takes an output with the dtype of the tensor `model`."""
        pairs = zip(argument.dtypes, model.dtypes * len(argument.dtypes), strict=False)
        if not any(expected is None or got is None or expected == got for expected, got in pairs):
            raise self._wrong_dtype(rule, argument, f"{model.dtypes[0]} of {model.name!r}")

    def _wrong_dtype(self, rule: Rule, argument: Argument, got: str) -> LaunchSpecError:
        expected = " or ".join(dict.fromkeys(map(str, argument.dtypes)))
        fix = f"{expected} like {rule.like}" if rule.like else f"{expected}[{', '.join(rule.shape)}]"
        return self._error(f"{rule.name!r} is a tensor of {expected}, not {got}: write {fix!r}", rule)

    def _tensor(self, name: str, rule: Rule) -> Argument:
        if name not in self.tensors:
            names = ", ".join(self.tensors) or "none"
            raise self._error(f"there is no tensor {name!r} among the inputs; the tensors are {names}", rule)
        if self.tensors[name].is_nullable:
            raise self._missing(name, rule)
        return self.tensors[name]

    def _missing(self, name: str, rule: Rule) -> LaunchSpecError:
        return self._error(f"{name!r} may be None, so an output cannot depend on it", rule)

    def _error(self, problem: str, rule: Rule) -> LaunchSpecError:
        return LaunchSpecError(
            problem, kernel=self.function, field=field_of(rule.name), expression=rule.text, hint=_EXAMPLES
        )


def allocation_error(
    operator: str, name: str, rule: str, error: Exception, tensors: dict[str, torch.Tensor]
) -> Exception:
    """Return the error for a call that cannot allocate the output `name`."""
    for argument, tensor in tensors.items():
        if tensor is None:
            return TypeError(f"{operator}(): argument {argument!r} must be a tensor, got None")
    if isinstance(error, AttributeError | TypeError):
        return error
    shapes = ", ".join(f"{key} has shape {list(tensor.shape)}" for key, tensor in tensors.items())
    reason = "an axis is out of range" if isinstance(error, IndexError) else str(error)
    return ValueError(f"{operator}(): {field_of(name)} = {rule!r}: {reason}{f'; {shapes}' if shapes else ''}")


def allocation_names() -> dict[str, object]:
    """Return the globals that an `Allocator`'s expressions use, as a mapping from names to values."""
    dtypes = {f"_dtype_{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    functions = {f"_{name}": getattr(torch, name) for name in ("empty", "zeros", "empty_like", "zeros_like")}
    return {**dtypes, **functions, "_contiguous_format": torch.contiguous_format}
