"""Python's own evaluation of a launch expression, with the limits of 64 bits."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class Python:
    """Evaluates an expression with Python; notes what does not fit 64 bits, and goes on with 0 as the C++ does."""

    def __init__(self, arguments: Arguments) -> None:
        self.failures: list[tuple[int, int, int]] = []
        names = {name: self.number(getattr(arguments, name)) for name in ("n", "in_", "k")}
        self.scope = {
            **names,
            "x": TensorView(self, arguments.x),
            "y": TensorView(self, arguments.y),
            "min": min,
            "max": max,
            "ceil_div": self.ceil_div,
            "next_power_of_2": self.next_power_of_2,
            "number": self.number,
        }

    def evaluate(self, text: str) -> int:
        tree = ast.fix_missing_locations(Leaves().visit(ast.parse(text, mode="eval")))
        value: Int = eval(compile(tree, "expression", "eval"), {"__builtins__": {}}, self.scope)
        return value.value

    def number(self, value: int) -> Int:
        return Int(self, int(value))

    def fit(self, value: int, left: int, right: int) -> Int:
        return self.number(value) if INT64_MIN <= value <= INT64_MAX else self.fail(OVERFLOW, left, right)

    def fail(self, *failure: int) -> Int:
        self.failures.append((failure[0], failure[1], failure[2]))
        return self.number(0)

    def ceil_div(self, a: Int, b: Int) -> Int:
        if b.value == 0:
            return self.fail(DIVISION_BY_ZERO, a.value, b.value)
        return self.fit(-(-a.value // b.value), a.value, b.value)

    def next_power_of_2(self, n: Int) -> Int:
        power = 0 if n.value <= 0 else 1
        while power < n.value:
            power *= 2
        return self.fit(power, n.value, 0)


class Leaves(ast.NodeTransformer):
    """Makes an `Int` of every literal, and of what `not` gives."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("number", ast.Load()), [node], [])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return ast.Call(ast.Name("number", ast.Load()), [node], []) if isinstance(node.op, ast.Not) else node


class Int:
    __hash__ = None  # type: ignore[assignment]  # equality gives a number

    def __init__(self, python: Python, value: int) -> None:
        self.python = python
        self.value = value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __neg__(self) -> Int:
        return self.python.number(0) - self

    def __pos__(self) -> Int:
        return self


def _define(name: str) -> None:
    """Give `Int` an operator, such as `add`."""
    operation = getattr(operator, name)

    def calculate(left: Int, right: Int) -> Int:
        a, b = left.value, right.value
        if name in ("floordiv", "mod") and b == 0:
            return left.python.fail(DIVISION_BY_ZERO, a, b)
        return left.python.fit(operation(a, b), a, b)

    setattr(Int, f"__{name}__", calculate)


for _name in ("add", "sub", "mul", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"):
    _define(_name)


class TensorView:
    def __init__(self, python: Python, tensor: Tensor) -> None:
        self.python = python
        self.tensor = tensor
        self.shape = self
        self.ndim = python.number(len(tensor.extents))

    def __getitem__(self, axis: Int) -> Int:
        return self.at(self.tensor.extents, axis)

    def at(self, numbers: Sequence[int], axis: Int) -> Int:
        if not -len(numbers) <= axis.value < len(numbers):
            return self.python.fail(AXIS, axis.value, len(numbers))
        return self.python.number(numbers[axis.value])

    def size(self, axis: Int) -> Int:
        return self.at(self.tensor.extents, axis)

    def dim(self) -> Int:
        return self.ndim

    def product(self, extents: Sequence[int]) -> Int:
        product = self.python.number(1)
        for extent in extents:
            product = product * self.python.number(extent)
        return product

    def numel(self) -> Int:
        return self.python.number(0) if 0 in self.tensor.extents else self.product(self.tensor.extents)

    def stride(self, axis: Int) -> Int:
        extents = self.tensor.extents
        if self.tensor.steps is not None or not -len(extents) <= axis.value < len(extents):
            return self.at(self.tensor.steps or extents, axis)
        behind = extents[axis.value % len(extents) + 1 :]
        return self.product([max(extent, 1) for extent in reversed(behind)])
