"""Executes a kernel once, with expressions in place of the integers in its registers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jitload.bounds.graph import Edge, Graph, Loop
from jitload.bounds.ptx import Entry, Instruction
from jitload.bounds.values import EXTENTS, NEGATED, WORD, Node, Nodes, limits_of, width_of
from jitload.model import Parameter

SHARED = "shared:"  # begins the names of pointers to shared memory
_SPECIAL = re.compile(r"%(n?)((?:cta|t)id)(\.[xyz])")
_CONSTANT = re.compile(r"(-?(?:0[xX][0-9a-fA-F]+|\d+))U?")
_PARAMETER = re.compile(r"\[([\w$]+)(?:\+(\d+))?\]")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_NAME = re.compile(r"[%\w$]+")
_UNIFORM = ("known", "fit", "add", "mul", "div")  # made of such alone, an integer is the same for all threads
_INTEGERS = ("int", "uint", "bool")
_WITHOUT_RESULT = ("st", "red", "bra", "brx", "ret", "exit", "trap", "membar", "fence")
_HARMLESS = ("prefetch", "prefetchu", "bar", "setp", "isspacep")  # what they read does not leave them


Comparison = tuple[str, Node, Node]  # an operator, and what it compares


class Address(NamedTuple):
    """An operand of an instruction in a block that is an address of memory."""

    block: int
    instruction: Instruction
    operand: int
    node: Node


class Induction(NamedTuple):
    """An induction variable of a loop: its value in each iteration and in the first one.

    `step` is the difference from a number that the end of the loop compares to this one in the next iteration.
    """

    node: Node
    start: Node
    step: Node


class Execution:
    """What a kernel does.

    Attributes:
        addresses: The addresses of memory that it uses, without those of parameters and prefetches.
        escapes: What it stores, chooses or passes on, and what becomes of which is not known.
        has_calls: Whether the kernel calls functions, which may end it.
        inductions: The induction variables, by the header of the loop and the number that its end may compare.
    """

    def __init__(self, entry: Entry, graph: Graph, parameters: Sequence[Parameter]) -> None:
        self.entry, self.graph = entry, graph
        self.has_calls = any(i.root == "call" and "vprintf" not in i.operands for i in entry.instructions)
        self.addresses: list[Address] = []
        self.escapes: list[tuple[Node, Instruction]] = []
        self.inductions: dict[tuple[int, Node], Induction] = {}
        # The runtime's integers have 64 bits and a sign, so what is not negative in PTX may be negative there.
        integers = [p for p in parameters if p.kind in _INTEGERS and (p.kind, p.size) != ("uint", 8)]
        self._parameters = dict(zip(entry.parameters, parameters, strict=True))
        self._nodes = Nodes({p.name: limits_of(8 * p.size, is_signed=p.kind == "int") for p in integers})
        self._numbers = itertools.count()
        counts = Counter(name for instruction in entry.instructions for name in destinations(instruction))
        self._variables = [name for name, count in counts.items() if count > 1]
        self._constants: dict[str, tuple[int, Node]] = {}  # the other registers, and the block that sets each
        self._states: list[dict[str, Node]] = []  # the variables at the end of each block
        self._merges: dict[tuple[int, str], Node] = {}  # the values of variables at the start of blocks
        for block, numbers in enumerate(graph.blocks):
            self._states.append(self._at_start(block))
            for number in numbers:
                self._execute(block, entry.instructions[number])
        for loop in graph.loops.values():
            self._find_inductions(loop)

    def comparisons(self, edge: Edge) -> tuple[list[Comparison], bool]:
        """Return what holds if an edge is taken, and whether it is taken whenever all this holds."""
        guard = self.entry.instructions[self.graph.blocks[edge.source].stop - 1].guard
        predicate = self._register(guard, edge.source) if edge.taken is not None else None
        return self._comparisons(predicate, holds=bool(edge.taken)) if predicate else ([], False)

    def _comparisons(self, predicate: Node, *, holds: bool) -> tuple[list[Comparison], bool]:
        match predicate.kind:
            case "not":
                return self._comparisons(predicate.inputs[0], holds=not holds)
            case "and" | "or" if holds == (predicate.kind == "and"):
                parts = [self._comparisons(value, holds=holds) for value in predicate.inputs]
                return [c for comparisons, _ in parts for c in comparisons], all(is_whole for _, is_whole in parts)
            case "compare":
                operator = predicate.value if holds else NEGATED[predicate.value]
                left, right = predicate.inputs
                if not _is_uniform(left) and not _is_uniform(right):
                    negative = self._nodes.make("mul", self._nodes.known(-1), right)
                    left, right = self._nodes.make("add", left, negative), self._nodes.known(0)
                return [(operator, left, right)], True
        return [], False

    # ---- registers ----

    def _at_start(self, block: int) -> dict[str, Node]:
        """Return the variables at the start of a block."""
        states = [self._states[edge.source] for edge in self.graph.incoming[block]] or [{}]
        changed = self._set_in(self.graph.loops[block]) if block in self.graph.loops else ()
        merged = dict(states[0])
        for name in self._variables if len(states) > 1 else changed:
            values = dict.fromkeys(state.get(name) for state in states)
            if len(values) > 1 or name in changed:
                nodes = (value or self._unknown() for value in values)
                merged[name] = self._merges[block, name] = Node("merge", (*nodes,), block)
        return merged

    def _set_in(self, loop: Loop) -> set[str]:
        numbers = itertools.chain.from_iterable(self.graph.blocks[block] for block in loop.blocks)
        names = {name for number in numbers for name in destinations(self.entry.instructions[number])}
        return names.intersection(self._variables)

    def _unknown(self) -> Node:
        return self._nodes.make("unknown", value=next(self._numbers))

    def _register(self, name: str, block: int) -> Node | None:
        """Return what a register has at the end of what has been executed of a block."""
        if name in self._constants:
            defined_in, value = self._constants[name]
            return value if self.graph.dominates(defined_in, block) else None
        return self._states[block].get(name)

    def _find_inductions(self, loop: Loop) -> None:
        """Replace the registers to which each iteration of a loop adds the same number by sums."""
        make = self._nodes.make
        for name in self._set_in(loop):
            merge = self._merges[loop.header, name]
            ends = {self._states[edge.source].get(name) for edge in loop.back}
            match [*merge.inputs, *ends]:
                case [Node() as start, Node(kind="add", inputs=(step, m)) as end] if m is merge and _is_uniform(step):
                    node = make("add", start, make("mul", step, make("coordinate", value=f"#{loop.header}")))
                    self.inductions[loop.header, end] = Induction(node, start, self._nodes.known(0))
                    self.inductions[loop.header, merge] = Induction(node, start, step)
                    merge.inputs, merge.kind = (node,), "same"
                case _:
                    merge.inputs += tuple(end for end in ends if end)

    # ---- instructions ----

    def _execute(self, block: int, instruction: Instruction) -> None:
        root, targets = instruction.root, destinations(instruction)
        inputs: list[Node] = []
        for number, operand in enumerate(instruction.operands):
            if number == 0 and targets and not instruction.guard:
                continue
            names = [name for name in _NAME.findall(operand) if name.startswith("%") or name in self.entry.shared]
            nodes = [self._read(name, block) for name in names]
            match = _ADDRESS.fullmatch(operand)
            if match is None:
                inputs += nodes
            elif nodes and not root.startswith("prefetch"):
                node = self._nodes.make("add", nodes[0], self._nodes.known(int(match[2] or 0)))
                self.addresses.append(Address(block, instruction, number, node))
        result = self._result(block, instruction) if targets and not instruction.guard else None
        if result is None and root not in _HARMLESS:
            self.escapes += [(node, instruction) for node in inputs]
        for name in targets:
            if name in self._variables:
                self._states[block][name] = result or self._unknown()
            else:
                self._constants[name] = block, result or self._unknown()

    def _read(self, operand: str, block: int) -> Node:
        if operand in self.entry.shared:
            return self._nodes.make("pointer", value=f"{SHARED}{operand}")
        if special := _SPECIAL.fullmatch(operand):
            is_extent, name, axis = special.groups()
            coordinate = self._nodes.make("coordinate", value=name + axis)
            return self._nodes.known(EXTENTS[name] + axis) if is_extent else coordinate
        if constant := _CONSTANT.fullmatch(operand):
            return self._nodes.known(int(constant[1], 0))
        return self._register(operand, block) or self._unknown()

    def _result(self, block: int, instruction: Instruction) -> Node | None:
        if any(operand.startswith("{") or "|" in operand for operand in instruction.operands):
            return None
        if instruction.root == "ld":
            return self._parameter(instruction) if "param" in instruction.modifiers else None
        return self._nodes.evaluate(instruction, [self._read(operand, block) for operand in instruction.operands[1:]])

    def _parameter(self, instruction: Instruction) -> Node | None:
        match = _PARAMETER.fullmatch(instruction.operands[1])
        parameter = self._parameters.get(match[1]) if match else None
        bits, is_signed = width_of(instruction)
        if match is None or parameter is None or int(match[2] or 0) != 0 or bits != 8 * parameter.size:
            return None
        if parameter.kind == "pointer":
            return self._nodes.make("pointer", value=parameter.name)
        is_extended = parameter.size >= WORD or is_signed == (parameter.kind == "int")
        return self._nodes.known(parameter.name) if parameter.kind in _INTEGERS and is_extended else None


def _is_uniform(node: Node) -> bool:
    return all(part.kind in _UNIFORM for part in node.all_inputs())


def destinations(instruction: Instruction) -> tuple[str, ...]:
    """Return the registers that an instruction sets."""
    is_barrier = instruction.root in ("bar", "barrier") and "red" not in instruction.modifiers
    first = instruction.operands[0] if instruction.operands else "["
    if is_barrier or instruction.root in _WITHOUT_RESULT or first.startswith("["):
        return ()
    return tuple(re.findall(r"%[\w$]+", first))
