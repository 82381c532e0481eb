"""Python's own evaluation of a launch expression, with the limits of 64 bits."""

from __future__ import annotations

import ast
import math
import operator
from dataclasses import dataclass

DIVISION_BY_ZERO, OVERFLOW, AXIS = range(3)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Tensor:
    """Shape and strides of a tensor; without strides it is row-major."""

    extents: tuple[int, ...]
    steps: tuple[int, ...] | None


@dataclass(frozen=True)
class Arguments:
    """What the names in an expression stand for; `k` is computed, the others are passed."""

    x: Tensor
    y: Tensor
    n: int
    in_: int
    k: int


class EvaluationError(Exception):
    """An operation without a value: its kind and its operands."""


def evaluate(text: str, arguments: Arguments) -> int:
    """Return the value of an expression, or raise `EvaluationError` for the first operation without one."""
    tree = ast.fix_missing_locations(_Literals().visit(ast.parse(text, mode="eval")))
    scope = {name: _Int(getattr(arguments, name)) for name in ("n", "in_", "k")}
    scope |= {name: _View(getattr(arguments, name)) for name in ("x", "y")}
    scope |= {"min": min, "max": max, "ceil_div": _ceil_div, "next_power_of_2": _next_power_of_2, "number": _Int}
    return int(eval(compile(tree, "expression", "eval"), {"__builtins__": {}}, scope))


class _Literals(ast.NodeTransformer):
    """Makes an `_Int` of every literal, and of what `not` gives."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("number", ast.Load()), [node], [])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return ast.Call(ast.Name("number", ast.Load()), [node], []) if isinstance(node.op, ast.Not) else node


class _Int(int):
    def __neg__(self) -> _Int:
        return _Int(0) - self

    def __pos__(self) -> _Int:
        return self


def _define(name: str) -> None:
    """Give `_Int` an operator, such as `add`."""
    operation = getattr(operator, name)

    def calculate(left: int, right: int) -> _Int:
        a, b = int(left), int(right)
        if name in ("floordiv", "mod") and b == 0:
            raise EvaluationError(DIVISION_BY_ZERO, a, b)
        return _fit(operation(a, b), a, b)

    setattr(_Int, f"__{name}__", calculate)


for _name in ("add", "sub", "mul", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"):
    _define(_name)


def _fit(value: int, left: int, right: int) -> _Int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise EvaluationError(OVERFLOW, left, right)
    return _Int(value)


def _ceil_div(a: int, b: int) -> _Int:
    if b == 0:
        raise EvaluationError(DIVISION_BY_ZERO, int(a), int(b))
    return _fit(-(-int(a) // int(b)), int(a), int(b))


def _next_power_of_2(n: int) -> _Int:
    return _fit(1 << (int(n) - 1).bit_length() if n > 0 else 0, int(n), 0)


class _View:
    def __init__(self, tensor: Tensor) -> None:
        self.extents = tuple(map(_Int, tensor.extents))
        self.steps = tensor.steps
        self.shape = self
        self.ndim = _Int(len(self.extents))

    def __getitem__(self, axis: int) -> _Int:
        if not -len(self.extents) <= axis < len(self.extents):
            raise EvaluationError(AXIS, int(axis), len(self.extents))
        return self.extents[axis]

    size = __getitem__

    def dim(self) -> _Int:
        return self.ndim

    def numel(self) -> _Int:
        return _Int(0) if 0 in self.extents else math.prod(self.extents, start=_Int(1))

    def stride(self, axis: int) -> _Int:
        _ = self[axis]
        if self.steps is not None:
            return _Int(self.steps[axis])
        behind = self.extents[int(axis) % len(self.extents) + 1 :]
        return math.prod((max(extent, 1) for extent in reversed(behind)), start=_Int(1))
