"""The integers and predicates in the registers of a thread, and what instructions make of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jitload.bounds.ptx import Instruction
from jitload.bounds.terms import Polynomial

NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
EXTENTS = {"ctaid": "grid", "tid": "block"}  # the symbols for how many values coordinates have
WORD = 4  # registers have at least this many bytes; smaller results are extended in a way that depends on the type
_TYPE = re.compile(r"([sub])(8|16|32|64)")
_THREADS, _BLOCKS = 1024, (1 << 31) - 1  # the most in an extent


class Node:
    """A predicate, or an integer to which a register of a thread is equal modulo 2 to the power of its width.

    Nodes that are made in the same way are the same object.

    Attributes:
        kind: How it is made. Where several values meet, there is a `merge`, and `same` if a loop adds a number to it. A
            `fit` is assumed to be from the first to the second number of `value`. A `div` is rounded down.
        inputs: The integers of which it is made.
        value: The polynomial of a `known` one, the name of a `coordinate` of a thread or of a `pointer`, the number by
            which a `div` divides, or the operator of a `compare`.
    """

    __slots__ = ("inputs", "kind", "value")

    def __init__(self, kind: str, inputs: tuple[Node, ...], value: Any) -> None:
        self.kind, self.inputs, self.value = kind, inputs, value

    @property
    def constant(self) -> int | None:
        """The number that it always is."""
        return self.value.constant if self.kind == "known" else None

    def all_inputs(self, visited: set[Node] | None = None) -> Iterator[Node]:
        """Yield the node and all of which it is made, without what has been visited."""
        visited, pending = set() if visited is None else visited, [self]
        while pending:
            node = pending.pop()
            if node not in visited:
                visited.add(node)
                yield node
                pending += node.inputs


class Nodes:
    """Makes the nodes of a kernel, whose integer parameters have the given smallest and largest values."""

    def __init__(self, limits: Mapping[str, tuple[int, int]]) -> None:
        extents = {"tid": _THREADS, "block": _THREADS, "ctaid": _BLOCKS, "grid": _BLOCKS}
        self._limits = {f"{name}.{axis}": (0, most) for name, most in extents.items() for axis in "xyz"} | {**limits}
        self._nodes: dict[tuple[str, tuple[Node, ...], Any], Node] = {}

    def make(self, kind: str, *inputs: Node, value: Any = None) -> Node:
        """Return a node. Of two inputs, a known one is the first."""
        if kind in ("add", "mul"):
            left, right = inputs = tuple(sorted(inputs, key=lambda node: node.kind != "known"))
            if left.constant == (kind == "mul"):
                return right
            if right.kind == "known":
                return self.known(left.value + right.value if kind == "add" else left.value * right.value)
            if left.kind == "known" and right.kind == kind and right.inputs[0].kind == "known":
                return self.make(kind, self.make(kind, left, right.inputs[0]), right.inputs[1])
        return self._nodes.setdefault((kind, inputs, value), Node(kind, inputs, value))

    def known(self, value: int | str | Polynomial) -> Node:
        """Return a constant, a symbol or a polynomial as a node."""
        return self.make("known", value=Polynomial.of(value))

    def fit(self, node: Node, instruction: Instruction) -> Node:
        """Return the number that an instruction of a type reads, and that is not only equal to it modulo 2^n."""
        bits, is_signed = width_of(instruction)
        low, high = limits_of(bits, is_signed=is_signed)
        if node.constant is not None:
            return self.known((node.constant - low) % (1 << bits) + low)
        has_limits = node.kind in ("known", "coordinate") and str(node.value) in self._limits
        least, most = self._limits[str(node.value)] if has_limits else (-math.inf, math.inf)
        return node if low <= least and most <= high else self.make("fit", node, value=(low, high))

    def evaluate(self, instruction: Instruction, inputs: Sequence[Node]) -> Node | None:  # noqa: C901, PLR0911  a table
        """Return the result of an instruction, or None if it is not known."""
        root, modifiers, bits = instruction.root, instruction.modifiers, width_of(instruction)[0]
        if root == "cvta" or (bits and root == "mov"):
            return inputs[0]
        if modifiers == ["pred"] and root in ("not", "and", "or"):
            return self.make(root, *inputs)
        if not bits or not inputs or "sat" in modifiers:
            return None
        if root in ("cvt", "div", "shr", "rem", "setp") or "wide" in modifiers:  # what reads more than its lowest bits
            inputs = [*(self.fit(node, instruction) for node in inputs[:2]), *inputs[2:]]
        first, last = inputs[0], inputs[-1]
        constant = last.constant
        if root in ("shl", "shr"):
            constant = 1 << constant if constant is not None and 0 <= constant < bits else None
        divisor = constant if constant is not None and 0 < constant < 1 << bits - 1 else None
        match root:
            case "add":
                return self.make("add", first, last)
            case "sub" | "neg" | "not":
                negative = self.make("mul", self.known(-1), last)
                others = {"sub": first, "neg": self.known(0), "not": self.known(-1)}
                return self.make("add", others[root], negative)
            case "mul" | "mad" if "lo" in modifiers or "wide" in modifiers:
                product = self.make("mul", first, inputs[1])
                return product if root == "mul" else self.make("add", product, last)
            case "cvt" if len(modifiers) == 2 and modifiers[0] in ("s32", "u32", "s64", "u64"):
                return first
            case "shl" if divisor:
                return self.make("mul", self.known(divisor), first)
            case "div" | "shr" | "rem" if divisor:
                quotient = self.make("div", first, value=divisor)
                rounded = self.make("mul", self.known(-divisor), quotient)
                return self.make("add", first, rounded) if root == "rem" else quotient
            case "setp" if len(inputs) == len(modifiers) == 2 and modifiers[0] in NEGATED:
                return self.make("compare", first, last, value=modifiers[0])
        return None


def width_of(instruction: Instruction) -> tuple[int, bool]:
    """Return the bits of the last type of an instruction, 0 if it is not that of an integer, and if it has a sign."""
    match = _TYPE.fullmatch(instruction.modifiers[-1]) if instruction.modifiers else None
    return (int(match[2]), match[1] == "s") if match else (0, False)


def limits_of(bits: int, *, is_signed: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
