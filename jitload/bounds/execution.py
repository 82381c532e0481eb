"""Executes a kernel once, with polynomials in place of the integers in its registers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jitload.bounds.graph import Edge, Graph, Loop
from jitload.bounds.ptx import Entry, Instruction
from jitload.bounds.terms import EXTENTS, Polynomial
from jitload.bounds.values import WORD, Condition, Predicate, Value, compare, evaluate, width_of
from jitload.model import Parameter

SHARED = "shared:"  # begins the names of pointers to shared memory
_SPECIAL = re.compile(r"%(n?)((?:cta|t)id)(\.[xyz])")
_CONSTANT = re.compile(r"(-?(?:0[xX][0-9a-fA-F]+|\d+))U?")
_PARAMETER = re.compile(r"\[([\w$]+)(?:\+(\d+))?\]")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_NAME = re.compile(r"[%\w$]+")
_INTEGERS = ("int", "uint", "bool")
_WITHOUT_RESULT = ("st", "red", "bra", "brx", "ret", "exit", "trap", "membar", "fence")
_HARMLESS = ("prefetch", "prefetchu", "bar", "setp", "isspacep")  # what they read does not leave them


Registers = dict[str, Value | Predicate]


class Address(NamedTuple):
    """An operand of an instruction in a block that is an address of memory."""

    block: int
    instruction: Instruction
    operand: int
    value: Value


class Execution:
    """What a kernel does.

    Attributes:
        addresses: The addresses of memory that it uses, without those of parameters and prefetches.
        escaped: The pointers that are used in another way than for addresses, with the first instruction that does so.
        has_calls: Whether the kernel calls functions, which may end it.
    """

    def __init__(self, entry: Entry, graph: Graph, parameters: Sequence[Parameter]) -> None:
        self.entry, self.graph = entry, graph
        self.parameters = dict(zip(entry.parameters, parameters, strict=True))
        self.has_calls = any(i.root == "call" and "vprintf" not in i.operands for i in entry.instructions)
        self.addresses: list[Address] = []
        self.escaped: dict[str, Instruction] = {}
        self._numbers = itertools.count()
        self._registers: Registers = {}
        self._at_end: dict[int, Registers] = {}  # the registers at the end of each block
        self._changes: dict[int, set[str]] = {}  # the registers that are set in each block or differ at its start
        self._parents: dict[int, int] = {}  # the last other block on all ways to each block
        self._sources: dict[str, set[Value | Predicate]] = {}  # the values that meet in a symbol
        self._readers: dict[str, Instruction] = {}  # the first instruction that reads such a symbol
        self._inductions: dict[str, Value] = {}
        for block in graph.order:
            self._registers = self._at_end[block] = self._at_start(block)
            for number in graph.blocks[block]:
                self._execute(block, entry.instructions[number])
        for loop in graph.loops.values():
            self._find_inductions(loop)
        self._follow_readers()

    def condition(self, edge: Edge) -> Condition:
        """Return what holds if an edge is taken."""
        guard = self.entry.instructions[self.graph.blocks[edge.source].stop - 1].guard
        predicate = _as_predicate(self._at_end[edge.source].get(guard))
        condition = predicate.if_true if edge.taken else predicate.if_false
        limits, unequal = ([self.resolve(Value(p, condition.assumptions)) for p in part] for part in condition[:2])
        return condition._replace(
            limits=tuple(value.polynomial for value in limits),
            unequal=tuple(value.polynomial for value in unequal),
            assumptions=frozenset().union(*(value.assumptions for value in (*limits, *unequal))),
        )

    def resolve(self, value: Value) -> Value:
        """Return a value with multiples of iterations in place of what loops count."""
        while names := self._inductions.keys() & set().union(
            value.polynomial.symbols, *(a.value.symbols for a in value.assumptions)
        ):
            polynomials = {name: self._inductions[name].polynomial for name in names}
            assumptions = {a._replace(value=a.value.substitute(polynomials)) for a in value.assumptions}
            assumptions.update(*(self._inductions[name].assumptions for name in names))
            value = Value(value.polynomial.substitute(polynomials), frozenset(assumptions))
        return value

    # ---- registers ----

    def _at_start(self, block: int) -> Registers:
        """Return the registers at the start of a block. Where several values meet, a register has a new symbol."""
        sources = {edge.source for edge in self.graph.incoming[block]}
        self._parents[block], differing = self._changes_of(sources)
        changed = self._set_in(self.graph.loops[block].blocks) if block in self.graph.loops else set()
        self._changes[block] = differing | changed | self._set_in([block])
        states = [self._at_end[source] for source in sources] or [{}]
        registers = dict(states[0])
        for name in differing | changed:
            values = {state.get(name, Value.of(f"?{name}")) for state in states}
            if len(values) == 1 and name not in changed:
                registers[name] = values.pop()
            else:
                symbol = f"?{block}.{name}"
                self._sources[symbol] = values
                registers[name] = Value.of(symbol)
        return registers

    def _changes_of(self, sources: set[int]) -> tuple[int, set[str]]:
        """Return the last block on all ways to some blocks, and the registers that are set behind it on these ways."""
        names: set[str] = set()
        ends = {*sources}
        while len(ends) > 1:
            last = max(ends, key=self.graph.position.__getitem__)
            names |= self._changes[last]
            ends = ends - {last} | {self._parents[last]}
        return ends.pop() if ends else 0, names

    def _set_in(self, blocks: Iterable[int]) -> set[str]:
        numbers = (number for block in blocks for number in self.graph.blocks[block])
        return {name for number in numbers for name in destinations(self.entry.instructions[number])}

    def _find_inductions(self, loop: Loop) -> None:
        """Find the registers to which each iteration of a loop adds the same number."""
        for name in self._set_in(loop.blocks):
            symbol = f"?{loop.header}.{name}"
            starts = self._sources[symbol]
            ends = {self._at_end[edge.source][name] for edge in loop.back}
            self._sources[symbol] = starts | ends
            match [*starts], [*ends]:
                case [Value() as start], [Value() as end]:
                    step = end.polynomial - Polynomial.of(symbol)
                    if all(self._is_invariant(factor, loop) for factor in step.symbols):
                        polynomial = start.polynomial + step * Polynomial.of(f"#{loop.header}")
                        self._inductions[symbol] = Value(polynomial, start.assumptions | end.assumptions)

    def _is_invariant(self, symbol: str, loop: Loop) -> bool:
        """Return whether a symbol is known to have the same value in all iterations of a loop."""
        if symbol.startswith("?"):
            header = symbol[1:].partition(".")[0]
            return symbol in self._sources and int(header) in self.graph.loops and int(header) not in loop.blocks
        return True

    def _escape(self, values: Iterable[Value | Predicate], instruction: Instruction) -> None:
        """Take notice that what becomes of values is not known."""
        for symbol in _symbols_of(values):
            if symbol.startswith("@"):
                self.escaped.setdefault(symbol[1:], instruction)

    def _follow_readers(self) -> None:
        """Take notice of the pointers that meet in a symbol that is read."""
        pending = [*self._readers]
        while pending:
            symbol = pending.pop()
            is_induction = symbol in self._inductions
            values = {self._inductions[symbol]} if is_induction else self._sources[symbol]
            if not is_induction:
                self._escape(values, self._readers[symbol])
            for source in (_symbols_of(values) & self._sources.keys()) - self._readers.keys():
                self._readers[source] = self._readers[symbol]
                pending.append(source)

    # ---- instructions ----

    def _execute(self, block: int, instruction: Instruction) -> None:
        registers = destinations(instruction)
        inputs: list[Value] = []
        for number, operand in enumerate(instruction.operands):
            if number == 0 and registers and not instruction.guard:
                continue
            match = _ADDRESS.fullmatch(operand)
            values = [self._read(name, instruction) for name in self._names(operand)]
            if match and values and not instruction.root.startswith("prefetch"):
                value = values[0]._replace(polynomial=values[0].polynomial + int(match[2] or 0))
                self.addresses.append(Address(block, instruction, number, value))
            elif not match:
                inputs += values
        if any(register.startswith("%p") for register in registers):
            for register in registers:
                self._registers[register] = self._predicate(instruction)
        elif instruction.root not in _HARMLESS:
            result = self._result(instruction) if registers and not instruction.guard else None
            if result is None:
                self._escape(inputs, instruction)
            for register in registers:
                self._registers[register] = result or Value.of(f"?{next(self._numbers)}:{register}")

    def _names(self, operand: str) -> list[str]:
        """Return the registers and the arrays in shared memory that an operand names."""
        return [name for name in _NAME.findall(operand) if name.startswith("%") or name in self.entry.shared]

    def _read(self, operand: str, instruction: Instruction) -> Value:
        if operand in self.entry.shared:
            return Value.of(f"@{SHARED}{operand}")
        if special := _SPECIAL.fullmatch(operand):
            return Value.of((EXTENTS[special[2]] if special[1] else special[2]) + special[3])
        if constant := _CONSTANT.fullmatch(operand):
            return Value.of(int(constant[1], 0))
        value = self._registers.get(operand)
        if not isinstance(value, Value):
            return Value.of(f"?{operand}")
        for symbol in value.polynomial.symbols & self._sources.keys():
            self._readers.setdefault(symbol, instruction)
        return value

    def _result(self, instruction: Instruction) -> Value | None:
        if any(operand.startswith("{") for operand in instruction.operands):
            return None
        if instruction.root == "ld":
            return self._parameter(instruction) if "param" in instruction.modifiers else None
        return evaluate(instruction, [self._read(operand, instruction) for operand in instruction.operands[1:]])

    def _parameter(self, instruction: Instruction) -> Value | None:
        match = _PARAMETER.fullmatch(instruction.operands[1])
        parameter = self.parameters.get(match[1]) if match else None
        bits, is_signed = width_of(instruction)
        if match is None or parameter is None or int(match[2] or 0) != 0 or bits != 8 * parameter.size:
            return None
        if parameter.kind == "pointer":
            return Value.of(f"@{parameter.name}")
        is_extended = parameter.size >= WORD or is_signed == (parameter.kind == "int")
        return Value.of(parameter.name) if parameter.kind in _INTEGERS and is_extended else None

    def _predicate(self, instruction: Instruction) -> Predicate:
        root, (target, *operands) = instruction.root, instruction.operands
        if instruction.guard or "|" in target:
            return Predicate()
        if root == "setp" and len(operands) == 2:
            return compare(instruction, *(self._read(operand, instruction) for operand in operands))
        inputs = [_as_predicate(self._registers.get(operand)) for operand in operands]
        if root == "not":
            return Predicate(inputs[0].if_false, inputs[0].if_true)
        if root == "and" and instruction.modifiers == ["pred"]:
            return Predicate(if_true=inputs[0].if_true.both(inputs[1].if_true))
        if root == "or" and instruction.modifiers == ["pred"]:
            return Predicate(if_false=inputs[0].if_false.both(inputs[1].if_false))
        return Predicate()


def _as_predicate(value: Value | Predicate | None) -> Predicate:
    return value if isinstance(value, Predicate) else Predicate()


def _symbols_of(values: Iterable[Value | Predicate]) -> set[str]:
    return {symbol for value in values if isinstance(value, Value) for symbol in value.polynomial.symbols}


def destinations(instruction: Instruction) -> tuple[str, ...]:
    """Return the registers that an instruction sets."""
    is_barrier = instruction.root in ("bar", "barrier") and "red" not in instruction.modifiers
    first = instruction.operands[0] if instruction.operands else "["
    if is_barrier or instruction.root in _WITHOUT_RESULT or first.startswith("["):
        return ()
    return tuple(re.findall(r"%[\w$]+", first))
