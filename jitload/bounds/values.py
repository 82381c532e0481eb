"""Evaluates the integers of a kernel as polynomials, and its predicates as comparisons of polynomials."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from jitload.bounds.graph import Edge, Graph, Loop
from jitload.bounds.polynomial import MOST_TERMS, Polynomial, Quotient, is_known_at_launch
from jitload.bounds.ptx import Entry, Instruction
from jitload.model import Parameter

_SPECIAL = re.compile(r"%(n?(?:cta|t)id\.[xyz])")
_TYPE = re.compile(r"([sub])(8|16|32|64)")
_COUNTED = re.compile(r"n?(?:cta|t)id\.[xyz]|\$\w+(?://\d+)?")  # symbols that are the same in all iterations of loops
_PARAMETER = re.compile(r"\[([\w$]+)(?:\+(\d+))?\]")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_INTEGERS = ("int", "uint", "bool")
SHARED = "shared:"  # begins the names of pointers to shared memory
_WORD = 4  # registers have at least this many bytes; smaller results are extended in a way that depends on the type
Kind = Literal["ge", "eq", "ne"]


class Assumption(NamedTuple):
    """A number is from `low` to `high`, so that a narrower or signed register holds it unchanged."""

    value: Polynomial
    low: int
    high: int


class Value(NamedTuple):
    """An integer of a thread: equal to `polynomial` modulo 2 to the power of the register's width.

    The assumptions are those under which this is so.
    """

    polynomial: Polynomial
    assumptions: frozenset[Assumption] = frozenset()


class Comparison(NamedTuple):
    """`polynomial >= 0`, `== 0` or `!= 0`, which holds for the registers if the assumptions hold."""

    kind: Kind
    polynomial: Polynomial
    assumptions: frozenset[Assumption]


class Condition(NamedTuple):
    """Comparisons that hold if a predicate has a value. If `is_whole` is true, it has the value whenever they hold."""

    comparisons: tuple[Comparison, ...]
    is_whole: bool


_NOTHING = Condition((), is_whole=False)


class Values:
    """The values of the registers of a kernel.

    Attributes:
        has_calls: Whether the kernel calls functions that may end it.
        escaped: The pointers that were used in another way than for addresses, with the first instruction that did so.
    """

    def __init__(self, entry: Entry, graph: Graph, parameters: Sequence[Parameter]) -> None:
        self.entry, self.graph = entry, graph
        self.parameters = dict(zip(entry.parameters, parameters, strict=True))
        self.escaped: dict[str, int] = {}
        self.has_calls = any(i.root == "call" and "vprintf" not in i.operands for i in entry.instructions)
        self._defined: dict[tuple[int, str], list[int]] = {}
        self._definitions: dict[str, list[int]] = {}
        for number, instruction in enumerate(entry.instructions):
            for register in destinations(instruction):
                self._defined.setdefault((graph.block_of[number], register), []).append(number)
                self._definitions.setdefault(register, []).append(number)
        self._results: dict[int, Value] = {}
        self._at_entry: dict[tuple[int, str], Value] = {}
        self._inductions: dict[str, Polynomial] = {}
        self._loop_of: dict[str, Loop] = {}

    # ---- registers ----

    def address(self, number: int, operand: str) -> Value | None:
        """Return the value of an address operand, `[%rd1+4]`, or None if it is not known what is added to an offset."""
        match = _ADDRESS.fullmatch(operand)
        if match is None or not self._names(match[1]):
            return None
        value = self.read(number, match[1])
        offset = Polynomial.of(int(match[2] or 0))
        return value._replace(polynomial=value.polynomial + offset)

    def read(self, number: int, operand: str) -> Value:
        """Return the value of an operand of an instruction."""
        value = self._operand(number, operand)
        polynomials = [value.polynomial, *(assumption.value for assumption in value.assumptions)]
        while names := {name for p in polynomials for name in p.symbols if name in self._inductions}:
            for name in names:
                value = _substituted(value, name, self._inductions[name])
            polynomials = [value.polynomial, *(assumption.value for assumption in value.assumptions)]
        return value

    def _names(self, operand: str) -> list[str]:
        """Return the registers and the arrays in shared memory that an operand names."""
        names = re.findall(r"[%\w$]+", operand)
        return [name for name in names if name.startswith("%") or name in self.entry.shared]

    def _operand(self, number: int, operand: str) -> Value:
        if operand in self.entry.shared:
            return Value(Polynomial.of(f"@{SHARED}{operand}"))
        if special := _SPECIAL.fullmatch(operand):
            return Value(Polynomial.of(special[1]))
        if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", operand):
            return Value(Polynomial.of(int(operand.rstrip("U"), 0)))
        if operand not in self._definitions:
            return self._unknown(f"{number}_{operand}")
        block = self.graph.block_of[number]
        definition = self._last_before(number, operand)
        return self._entry_value(block, operand) if definition is None else self._result(definition)

    def _last_before(self, number: int, register: str) -> int | None:
        """Return the position of the last instruction of a block that sets a register before another one."""
        numbers = self._defined.get((self.graph.block_of[number], register), ())
        return next((earlier for earlier in reversed(numbers) if earlier < number), None)

    def _unknown(self, name: object) -> Value:
        return Value(Polynomial.of(f"?{name}"))

    def _exit_value(self, block: int, register: str) -> Value:
        defined = self._defined.get((block, register))
        return self._result(defined[-1]) if defined else self._entry_value(block, register)

    def _entry_value(self, block: int, register: str) -> Value:
        key = block, register
        if key not in self._at_entry:
            incoming = self.graph.incoming[block]
            if not incoming or block == 0:
                self._at_entry[key] = self._unknown(f"{block}.{register}")
            elif len(incoming) == 1:
                self._at_entry[key] = self._exit_value(incoming[0].source, register)
            elif loop := self.graph.loops.get(block):
                self._at_entry[key] = self._induction(loop, register)
            else:
                self._at_entry[key] = self._join(block, register, incoming)
        return self._at_entry[key]

    def _join(self, block: int, register: str, incoming: Iterable[Edge]) -> Value:
        values = {self._exit_value(edge.source, register) for edge in incoming}
        return values.pop() if len(values) == 1 else self._escape(values, f"{block}.{register}", self._first(block))

    def _first(self, block: int) -> int:
        return self.graph.blocks[block].start

    def _induction(self, loop: Loop, register: str) -> Value:
        """Return the value of a register at the start of an iteration: its first value plus a step for each one."""
        sources = {edge.source for edge in loop.back}
        others = [edge for edge in self.graph.incoming[loop.header] if edge.source not in sources]
        if not any(loop.blocks >> self.graph.block_of[number] & 1 for number in self._definitions[register]):
            return self._join(loop.header, register, others)
        name = f"?{loop.header}.{register}"
        self._loop_of[name] = loop
        self._at_entry[loop.header, register] = Value(Polynomial.of(name))  # while the loop's body is evaluated
        first = {self._exit_value(edge.source, register) for edge in others}
        last = {self._exit_value(edge.source, register) for edge in loop.back}
        if len(first) != 1 or len(last) != 1:
            return self._escape(first | last, f"{loop.header}.{register}", self._first(loop.header))
        start, end = first.pop(), last.pop()
        step = end.polynomial - Polynomial.of(name)
        if not self._is_invariant(step, loop):
            return self._escape([start, end], f"{loop.header}.{register}", self._first(loop.header))
        iteration = Polynomial.of(f"#{loop.header}")
        self._inductions[name] = start.polynomial + step * iteration
        return Value(self._inductions[name], start.assumptions | end.assumptions)

    def _is_invariant(self, polynomial: Polynomial, loop: Loop) -> bool:
        """Return whether a polynomial has the same value in all iterations of a loop."""
        for symbol in polynomial.symbols:
            if symbol.startswith("#"):
                if loop.blocks >> int(symbol[1:]) & 1:
                    return False
            elif symbol.startswith("?") and (
                symbol not in self._loop_of or loop.blocks >> self._loop_of[symbol].header & 1
            ):
                return False
        return True

    def _escape(self, values: Iterable[Value], name: object, number: int) -> Value:
        """Return an unknown value that is made from others. Pointers among them are used in an unknown way."""
        for value in values:
            for symbol in value.polynomial.symbols:
                if symbol.startswith("@"):
                    self.escaped.setdefault(symbol[1:], number)
        return self._unknown(name)

    def use(self, number: int, operand: str) -> None:
        """Take notice that an instruction passes an operand on."""
        self._escape([self._operand(number, name) for name in self._names(operand)], number, number)

    def evaluate(self, number: int) -> None:
        """Take notice of what an instruction does with its operands, other than to access memory."""
        registers = destinations(self.entry.instructions[number])
        if not registers:
            self._escape(self._operands_of(number), number, number)
        elif not any(register.startswith("%p") for register in registers):
            self._result(number)

    # ---- instructions ----

    def _result(self, number: int) -> Value:
        if number not in self._results:
            instruction = self.entry.instructions[number]
            value = None if instruction.guard else self._evaluate(number, instruction)
            if value is None or len(value.polynomial.terms) > MOST_TERMS:
                value = self._escape(self._operands_of(number), number, number)
            self._results[number] = value
        return self._results[number]

    def _operands_of(self, number: int) -> list[Value]:
        """Return the values of all registers that an instruction reads, except for addresses of memory."""
        instruction = self.entry.instructions[number]
        operands = [operand for operand in instruction.operands if not operand.startswith("[")]
        names = [name for operand in operands for name in self._names(operand)]
        if instruction.guard:  # the register may also keep its value
            names += destinations(instruction)
        return [
            self._operand(number, name) for name in names if name not in destinations(instruction) or instruction.guard
        ]

    def _evaluate(self, number: int, instruction: Instruction) -> Value | None:
        root, operands = instruction.root, instruction.operands[1:]
        if any(operand.startswith("{") for operand in instruction.operands):
            return None
        type_ = _TYPE.fullmatch(instruction.modifiers[-1]) if instruction.modifiers else None
        if root == "ld":
            return self._parameter(instruction) if "param" in instruction.modifiers else None
        if root == "mov" and type_:
            return self._operand(number, operands[0])
        if root == "cvta":
            return self._operand(number, operands[0])
        if type_ is None or root not in _OPERATIONS:
            return None
        return _OPERATIONS[root](instruction, type_, [self._operand(number, operand) for operand in operands])

    def _parameter(self, instruction: Instruction) -> Value | None:
        match = _PARAMETER.fullmatch(instruction.operands[1])
        parameter = self.parameters.get(match[1]) if match else None
        if match is None or parameter is None or int(match[2] or 0) != 0:
            return None
        type_ = _TYPE.fullmatch(instruction.modifiers[-1])
        if type_ is None or int(type_[2]) != 8 * parameter.size:
            return None
        if parameter.kind == "pointer":
            return Value(Polynomial.of(f"@{parameter.name}"))
        is_extended = parameter.size >= _WORD or (type_[1] == "s") == (parameter.kind == "int")
        return Value(Polynomial.of(f"${parameter.name}")) if parameter.kind in _INTEGERS and is_extended else None

    # ---- predicates ----

    def condition(self, number: int, register: str, *, is_true: bool) -> Condition:
        """Return what is known if a predicate has a value before an instruction."""
        definition = self._definition(number, register)
        if definition is None:
            return _NOTHING
        instruction = self.entry.instructions[definition]
        root, operands = instruction.root, instruction.operands
        if instruction.guard:
            return _NOTHING
        if root == "setp" and len(operands) == 3 and "|" not in operands[0]:
            return self._comparison(definition, instruction, is_true=is_true)
        if root == "not":
            return self.condition(definition, operands[1], is_true=not is_true)
        if root in ("and", "or") and instruction.modifiers == ["pred"]:
            parts = [self.condition(definition, operand, is_true=is_true) for operand in operands[1:]]
            if is_true == (root == "and"):
                return Condition(parts[0].comparisons + parts[1].comparisons, all(part.is_whole for part in parts))
        return _NOTHING

    def _definition(self, number: int, register: str) -> int | None:
        """Return the position of the instruction that sets a predicate, if it is the only one that can have done so."""
        if (last := self._last_before(number, register)) is not None:
            return last
        block, places = self.graph.block_of[number], self._definitions.get(register, [])
        is_single = len(places) == 1 and self.graph.block_of[places[0]] != block
        return places[0] if is_single and self.graph.dominates(self.graph.block_of[places[0]], block) else None

    def _comparison(self, number: int, instruction: Instruction, *, is_true: bool) -> Condition:
        type_ = _TYPE.fullmatch(instruction.modifiers[-1])
        operator = instruction.modifiers[0]
        if type_ is None or len(instruction.modifiers) != 2 or operator not in _NEGATED:
            return _NOTHING
        operator = operator if is_true else _NEGATED[operator]
        left, right = (
            _interpreted(self.read(number, operand), int(type_[2]), is_signed=type_[1] != "u")
            for operand in instruction.operands[1:]
        )
        difference = left.polynomial - right.polynomial
        minus = Polynomial.of(-1)
        polynomial = {"lt": minus - difference, "le": -difference, "gt": difference + minus}.get(operator, difference)
        kind: Kind = "ge" if operator in ("lt", "le", "gt", "ge") else "eq" if operator == "eq" else "ne"
        return Condition((Comparison(kind, polynomial, left.assumptions | right.assumptions),), is_whole=True)


def destinations(instruction: Instruction) -> tuple[str, ...]:
    """Return the registers that an instruction sets."""
    is_barrier = instruction.root in ("bar", "barrier") and "red" not in instruction.modifiers
    if is_barrier or instruction.root in ("st", "red", "bra", "brx", "ret", "exit", "trap", "membar", "fence"):
        return ()
    first = instruction.operands[0] if instruction.operands else ""
    return () if first.startswith("[") else tuple(re.findall(r"%[\w$]+", first))


def _substituted(value: Value, name: str, polynomial: Polynomial) -> Value:
    assumptions = frozenset(a._replace(value=a.value.substitute(name, polynomial)) for a in value.assumptions)
    return Value(value.polynomial.substitute(name, polynomial), assumptions)


def _interpreted(value: Value, bits: int, *, is_signed: bool) -> Value:
    """Return a value whose polynomial is the number itself, and not only equal to it modulo a power of two."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    constant = value.polynomial.constant
    if constant is not None:
        number = (constant - low) % (1 << bits) + low
        return Value(Polynomial.of(number), value.assumptions)
    assumption = Assumption(value.polynomial, low, high)
    return value._replace(assumptions=value.assumptions | {assumption})


def _combined(polynomial: Polynomial, *values: Value) -> Value:
    return Value(polynomial, frozenset().union(*(value.assumptions for value in values)))


def _sum(instruction: Instruction, _: re.Match[str], values: list[Value]) -> Value | None:
    """Evaluate `add`, `sub`, `neg` and `not`."""
    if "sat" in instruction.modifiers:
        return None
    first, last = values[0].polynomial, values[-1].polynomial
    results = {"sub": first - last, "neg": -last, "not": Polynomial.of(-1) - last}
    return _combined(results.get(instruction.root, first + last), *values)


def _multiply(instruction: Instruction, type_: re.Match[str], values: list[Value]) -> Value | None:
    """Evaluate `mul` and `mad`, which has a third operand."""
    if not {"lo", "wide"} & {*instruction.modifiers}:
        return None
    if "wide" in instruction.modifiers:
        values[:2] = [_interpreted(value, int(type_[2]), is_signed=type_[1] == "s") for value in values[:2]]
    product = values[0].polynomial * values[1].polynomial
    return _combined(product + values[2].polynomial if len(values) == 3 else product, *values)


def _shift(_: Instruction, type_: re.Match[str], values: list[Value]) -> Value | None:
    count = values[1].polynomial.constant
    if count is None or not 0 <= count < int(type_[2]):
        return None
    return _combined(values[0].polynomial * Polynomial.of(1 << count), *values)


def _convert(instruction: Instruction, source: re.Match[str], values: list[Value]) -> Value | None:
    target = _TYPE.fullmatch(instruction.modifiers[-2])
    if target is None or len(instruction.modifiers) != 2 or int(target[2]) < 8 * _WORD:
        return None
    if int(target[2]) <= int(source[2]):
        return values[0]
    return _interpreted(values[0], int(source[2]), is_signed=source[1] == "s")


def _quotient(instruction: Instruction, type_: re.Match[str], values: list[Value]) -> Value | None:
    """Evaluate `div`, `shr`, `rem` and `and` of a positive number and a constant.

    `and` is `rem` of a power of two if the lowest bits of its constant are set, and rounds down if all others are.
    """
    root, bits, constant = instruction.root, int(type_[2]), values[1].polynomial.constant
    if constant is None or not -(1 << bits - 1) <= constant < 1 << bits:
        return None
    if root == "and":
        constant -= (constant >> bits - 1 & 1) << bits if constant > 0 else 0  # as a number with a sign
        divisor = abs(constant + (constant >= 0))
    else:
        divisor = 1 << constant if root == "shr" and 0 <= constant < bits else constant * (root != "shr")
    if divisor <= 0 or (root == "and" and divisor & divisor - 1):
        return None
    dividend = _interpreted(values[0], bits, is_signed=type_[1] == "s")
    number = dividend.polynomial
    if not all(_COUNTED.fullmatch(symbol) or isinstance(symbol, Quotient) for symbol in number.symbols):
        return None
    is_positive = Assumption(number, 0, (1 << bits) - 1)
    dividend = dividend._replace(assumptions=dividend.assumptions | {is_positive})
    symbol = next(iter(number.symbols), "")
    is_launch_value = number == Polynomial.of(symbol) and is_known_at_launch(symbol) and "//" not in symbol
    quotient = Polynomial.of(f"{symbol}//{divisor}" if is_launch_value else Quotient.of(number, divisor))
    rounded = quotient * Polynomial.of(divisor)
    results = {"rem": number - rounded, "and": rounded if constant < 0 else number - rounded}
    return _combined(results.get(root, quotient), dividend)


_OPERATIONS = {
    **dict.fromkeys(("add", "sub", "neg", "not"), _sum),
    **dict.fromkeys(("mul", "mad"), _multiply),
    **dict.fromkeys(("div", "shr", "rem", "and"), _quotient),
    "shl": _shift,
    "cvt": _convert,
}
