"""Executes a kernel once, with terms in place of the integers in its registers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from jitload.bounds.paths import Branch, Flow, Loop, Path, joined
from jitload.bounds.ptx import Entry, Instruction
from jitload.bounds.terms import COUNTER, EXTENTS, POINTER, UNKNOWN, Polynomial, is_never_negative
from jitload.model import Parameter

SHARED = "shared:"  # begins the names of pointers to shared memory
_MOST_TERMS = 40
_WORD = 4  # registers have at least this many bytes; smaller results are extended in a way that depends on the type
_LIMITS = {"tid": 1024, "block": 1024, "ctaid": (1 << 31) - 1, "grid": (1 << 31) - 1}  # their upper limits
_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_FACTS: dict[str, Callable[[Polynomial], list[Polynomial]]] = {  # what is not negative if a comparison with 0 holds
    "lt": lambda difference: [-difference - 1],
    "le": lambda difference: [-difference],
    "gt": lambda difference: [difference - 1],
    "ge": lambda difference: [difference],
    "eq": lambda difference: [difference, -difference],
    "ne": lambda difference: [term - 1 for term in (difference, -difference) if is_never_negative(term)],
}
_SUMS: dict[str, Callable[[Polynomial, Polynomial], Polynomial]] = {
    "add": lambda first, last: first + last,
    "sub": lambda first, last: first - last,
    "neg": lambda _, last: -last,
    "not": lambda _, last: -last - 1,
}
_BY_NUMBER: dict[str, Callable[[Polynomial, int], Polynomial]] = {
    "shl": lambda first, number: first * number,
    "shr": lambda first, number: first // number,
    "div": lambda first, number: first // number,
    "rem": lambda first, number: first - first // number * number,
}
_TYPE = re.compile(r"([sub])(8|16|32|64)")
_SPECIAL = re.compile(r"%(n?)((?:cta|t)id)(\.[xyz])")
_CONSTANT = re.compile(r"(-?(?:0[xX][0-9a-fA-F]+|\d+))U?")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_INTEGERS = ("int", "uint", "bool")
_WITHOUT_RESULT = ("st", "red", "bra", "ret", "exit", "trap", "membar", "fence")
_HARMLESS = ("prefetch", "prefetchu", "bar", "setp", "isspacep")  # what they read goes nowhere else
_READS_ALL = ("cvt", "div", "shr", "rem", "setp")  # the result depends on more than the lowest bits


Assumptions = frozenset[tuple[Polynomial, int, int]]  # terms, each with the least and the most that it must be


class Value(NamedTuple):
    """An integer to which a register of a thread is equal modulo 2 to the power of its width, under assumptions."""

    term: Polynomial
    assumed: Assumptions = frozenset()


class Condition(NamedTuple):
    """Values that are not negative if a condition holds, and whether it holds whenever none of them is negative."""

    values: tuple[Value, ...] = ()
    is_whole: bool = False


Predicate = tuple[Condition, Condition]  # what holds if it is false, and if it is true
Register = Value | Predicate
_UNKNOWN: Predicate = Condition(), Condition()


class Address(NamedTuple):
    """An address of memory in an instruction, and what leads to the instruction."""

    value: Value
    instruction: Instruction
    path: Path


class Execution:
    """What a kernel does.

    Attributes:
        addresses: The addresses of memory that it uses, without those of parameters and prefetches.
        escapes: The values that it stores, chooses or passes on, which jitload does not follow further.
        conditions: What holds after branches.
    """

    def __init__(self, entry: Entry, parameters: Sequence[Parameter]) -> None:
        self.addresses: list[Address] = []
        self.escapes: list[tuple[Value, Instruction]] = []
        self.conditions: dict[Branch, Condition] = {}
        self._entry, self._flow = entry, Flow(entry)
        self._parameters = dict(zip(entry.parameters, parameters, strict=True))
        # The runtime's integers have 64 bits and a sign, so what is not negative in PTX may be negative there.
        integers = [p for p in parameters if p.kind in _INTEGERS and (p.kind, p.size) != ("uint", 8)]
        self._limits = {f"{name}.{axis}": (0, most) for name, most in _LIMITS.items() for axis in "xyz"}
        self._limits |= {p.name: _limits_of(8 * p.size, is_signed=p.kind == "int") for p in integers}
        self._numbers = itertools.count()
        self._path: Path = ()
        self._registers: dict[str, Register] = {}
        self._origins: dict[str, list[Value]] = {}  # for symbols that are unknown, what they may be
        self._changed: dict[int, dict[str, Value]] = {}  # by the starts of loops, the registers that they change
        self._inductions: dict[str, Value] = {}
        self._run()

    def resolved(self, value: Value) -> Value:
        """Return a value with the counters of loops in place of induction variables."""
        while inductions := {s: self._inductions[s] for s in value.term.symbols() if s in self._inductions}:
            term = value.term.substitute({symbol: other.term for symbol, other in inductions.items()})
            value = Value(term, value.assumed.union(*(other.assumed for other in inductions.values())))
        return value

    def pointers_in(self, value: Value) -> list[str]:
        """Return the pointers of which a value is made, also by way of registers that may have several values."""
        visited: set[str] = set()
        pending = [value]
        while pending:
            symbols = pending.pop().term.symbols() - visited
            visited |= symbols
            pending += [origin for symbol in symbols for origin in self._origins.get(symbol, ())]
        return sorted(symbol[1:] for symbol in visited if symbol.startswith(POINTER))

    # ---- control flow ----

    def _run(self) -> None:
        """Execute all instructions in order. Each begins with the registers of the instructions that lead to it."""
        arriving: dict[int, list[tuple[Path, dict[str, Register]]]] = {0: [((), {})]}
        for position, instruction in enumerate(self._entry.instructions):
            if position not in arriving:
                continue
            paths, states = zip(*arriving.pop(position), strict=True)
            self._path, self._registers = joined(paths), self._merged(states)
            if loop := self._flow.loops.get(position):
                self._enter(loop)
            self._execute(instruction)
            guard = self._registers.get(instruction.guard, _UNKNOWN)
            for target, branch in self._flow.successors[position]:
                if branch and not isinstance(guard, Value):
                    self.conditions[branch] = guard[branch.is_taken != instruction.is_negated]
                if target <= position:
                    self._find_inductions(self._flow.loops[target])
                else:
                    registers = self._registers if target == position + 1 else dict(self._registers)
                    path = self._flow.along(self._path, position, target, branch)
                    arriving.setdefault(target, []).append((path, registers))

    def _merged(self, states: Sequence[dict[str, Register]]) -> dict[str, Register]:
        """Return the registers where several states meet. A register whose values differ becomes unknown."""
        first, *others = states
        differing = {name for other in others for name, value in other.items() if first.get(name) is not value}
        for name in differing.union(*(first.keys() - other.keys() for other in others)):
            values = [registers.get(name) for registers in states]
            if any(value != values[0] for value in values):
                first[name] = self._unknown(values)
        return first

    def _enter(self, loop: Loop) -> None:
        self._path = (*self._path, loop)
        names = {name for number in loop.body for name in _destinations(self._entry.instructions[number])}
        symbols = {name: self._unknown([self._registers.get(name)]) for name in names}
        self._changed[loop.body[0]] = symbols
        self._registers |= symbols

    def _unknown(self, origins: Iterable[Register | None] = ()) -> Value:
        symbol = f"{UNKNOWN}{next(self._numbers)}"
        self._origins[symbol] = [value for value in origins if isinstance(value, Value)]
        return Value(Polynomial.of(symbol))

    def _find_inductions(self, loop: Loop) -> None:
        """Find out to which registers each iteration of a loop adds the same number."""
        for name, (symbol, _) in self._changed[loop.body[0]].items():
            end, starts = self._registers.get(name), self._origins[str(symbol)]
            if isinstance(end, Value) and len(loop.back) == len(starts) == 1:
                step = end.term - symbol
                if step.is_uniform and all(term.is_uniform for term, *_ in end.assumed):
                    term = starts[0].term + step * Polynomial.of(f"{COUNTER}{loop.body[0]}")
                    self._inductions[str(symbol)] = Value(term, starts[0].assumed | end.assumed)
            starts += [end] if isinstance(end, Value) else []

    # ---- instructions ----

    def _execute(self, instruction: Instruction) -> None:
        root, targets = instruction.root, _destinations(instruction)
        inputs: list[Register] = []
        for number, operand in enumerate(instruction.operands):
            if number == 0 and targets and not instruction.guard:
                continue
            names = re.findall(r"[%\w$]+", operand)
            values = [self._read(name) for name in names if name.startswith("%") or name in self._entry.shared]
            match = _ADDRESS.fullmatch(operand)
            if match is None:
                inputs += values
            elif values and isinstance(values[0], Value) and not root.startswith("prefetch"):
                value = values[0]._replace(term=values[0].term + int(match[2] or 0))
                self.addresses.append(Address(value, instruction, self._path))
        result = self._result(instruction) if targets and not instruction.guard else None
        if result is None and root not in _HARMLESS:
            self.escapes += [(value, instruction) for value in inputs if isinstance(value, Value)]
        self._registers |= {name: result or self._unknown() for name in targets}

    def _read(self, operand: str) -> Register:
        if operand in self._entry.shared:
            return Value(Polynomial.of(f"{POINTER}{SHARED}{operand}"))
        if special := _SPECIAL.fullmatch(operand):
            is_extent, name, axis = special.groups()
            return Value(Polynomial.of((EXTENTS[name] if is_extent else name) + axis))
        if constant := _CONSTANT.fullmatch(operand):
            return Value(Polynomial.of(int(constant[1], 0)))
        return self._registers.get(operand) or self._unknown()

    def _result(self, instruction: Instruction) -> Register | None:
        """Return the result of an instruction, or None if it is not known."""
        operands = instruction.operands
        if any(operand.startswith("{") or "|" in operand for operand in operands):
            return None
        if instruction.root == "ld":
            return self._parameter(instruction) if "param" in instruction.modifiers else None
        inputs = [self._read(operand) for operand in operands[1:]]
        if instruction.modifiers == ["pred"]:
            return _logic(instruction.root, [_UNKNOWN if isinstance(i, Value) else i for i in inputs])
        values = [value for value in inputs if isinstance(value, Value)]
        return self._arithmetic(instruction, values) if 0 < len(values) == len(inputs) else None

    def _parameter(self, instruction: Instruction) -> Value | None:
        match = _ADDRESS.fullmatch(instruction.operands[1])
        parameter = self._parameters.get(match[1]) if match and not match[2] else None
        bits, is_signed = _width_of(instruction)
        if parameter is None or bits != 8 * parameter.size:
            return None
        if parameter.kind == "pointer":
            return Value(Polynomial.of(f"{POINTER}{parameter.name}"))
        is_extended = parameter.size >= _WORD or is_signed == (parameter.kind == "int")
        return Value(Polynomial.of(parameter.name)) if parameter.kind in _INTEGERS and is_extended else None

    def _arithmetic(self, instruction: Instruction, values: Sequence[Value]) -> Register | None:
        root, modifiers, (bits, is_signed) = instruction.root, instruction.modifiers, _width_of(instruction)
        if root == "cvta" or (bits and root == "mov"):
            return values[0]
        if not bits or "sat" in modifiers:
            return None
        terms = [value.term for value in values]
        assumed = values[0].assumed.union(*(value.assumed for value in values[1:]))
        if root in _READS_ALL or "wide" in modifiers:
            if any(symbol.startswith(POINTER) for term in terms[:2] for symbol in term.symbols()):
                return None
            low, high = _limits_of(bits, is_signed=is_signed)
            lowest = 0 if root in ("div", "rem", "shr") else low  # quotients of others are rounded up
            for number, term in enumerate(terms[:2]):
                least, most = self._limits.get(str(term), (-math.inf, math.inf))
                if term.constant is not None:
                    least = most = (term.constant - low) % (1 << bits) + low
                    terms[number] = Polynomial.of(least)
                if least < lowest or most > high:
                    assumed |= {(terms[number], lowest, high)}
        if root == "setp":
            is_plain = len(modifiers) == len(terms) == 2 and modifiers[0] in _FACTS
            return _comparison(modifiers[0], terms[0] - terms[1], assumed) if is_plain else None
        result = _calculate(root, modifiers, terms, bits)
        return Value(result, assumed) if result is not None and len(result.terms) <= _MOST_TERMS else None


def _calculate(root: str, modifiers: Sequence[str], terms: Sequence[Polynomial], bits: int) -> Polynomial | None:
    if root == "cvt":
        return terms[0] if len(modifiers) == 2 and modifiers[0] in ("s32", "u32", "s64", "u64") else None
    if root in ("mul", "mad"):
        return sum(terms[2:], terms[0] * terms[1]) if "lo" in modifiers or "wide" in modifiers else None
    if root in _SUMS:
        return _SUMS[root](terms[0], terms[-1])
    first, number = terms[0], terms[-1].constant
    if root in ("shl", "shr"):
        number = 1 << number if number is not None and 0 <= number < bits - 1 else None
    if number is None or number <= 0 or root not in _BY_NUMBER or not (first.is_uniform or root == "shl"):
        return None
    return _BY_NUMBER[root](first, number)


def _comparison(operator: str, difference: Polynomial, assumed: Assumptions) -> Predicate:
    terms = _FACTS[_NEGATED[operator]](difference), _FACTS[operator](difference)
    if_false, if_true = (Condition(tuple(Value(term, assumed) for term in part), bool(part)) for part in terms)
    return if_false, if_true


def _logic(operator: str, predicates: Sequence[Predicate]) -> Predicate | None:
    (if_false, if_true), (other_if_false, other_if_true) = predicates[0], predicates[-1]
    match operator:
        case "not":
            return if_true, if_false
        case "and":
            return Condition(), _both(if_true, other_if_true)
        case "or":
            return _both(if_false, other_if_false), Condition()
    return None


def _both(left: Condition, right: Condition) -> Condition:
    return Condition(left.values + right.values, left.is_whole and right.is_whole)


def _width_of(instruction: Instruction) -> tuple[int, bool]:
    """Return the bits of the last type of an instruction, or 0 if it is no integer, and whether it has a sign."""
    match = _TYPE.fullmatch(instruction.modifiers[-1]) if instruction.modifiers else None
    return (int(match[2]), match[1] == "s") if match else (0, False)


def _limits_of(bits: int, *, is_signed: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)


def _destinations(instruction: Instruction) -> tuple[str, ...]:
    """Return the registers that an instruction sets."""
    is_barrier = instruction.root in ("bar", "barrier") and "red" not in instruction.modifiers
    first = instruction.operands[0] if instruction.operands else "["
    if is_barrier or instruction.root in _WITHOUT_RESULT or first.startswith("["):
        return ()
    return tuple(re.findall(r"%[\w$]+", first))
