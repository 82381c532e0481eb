"""Reads a kernel from PTX, and executes it with polynomials in place of the integers in its registers."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path as FilePath
from typing import NamedTuple

from jitload.bounds.terms import COUNTER, EXTENTS, POINTER, UNKNOWN, Polynomial
from jitload.model import Parameter

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_COMMENT = re.compile(r'("[^"\n]*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
# A location, a label, the brace of a scope, or the text of a directive or an instruction, in which vectors have braces.
_STATEMENT = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*|([\w$]+)\s*:(?!:)|([{}])|([^\s;{}](?:[^;{}]|\{[^{}]*\})*)")
_INSTRUCTION = re.compile(r"(?:@(!?[\w$%]+)\s+)?(\S+)\s*([^;]*)")
_REGISTER = re.compile(r"%[\w$]+")
_DECLARED = re.compile(r"(%[\w$]+)(?:<(\d+)>)?")
_SHARED = re.compile(r"(\.extern\s+)?\.shared\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+([\w$]+)\s*((?:\[\d*\])*)\s*;")
_OPERAND = re.compile(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(]+)+")


class PtxError(ValueError):
    """What a kernel or one of its accesses does is not understood, for the reason in the text."""


class Instruction(NamedTuple):
    """An instruction with its operands as text. A vector and an address are one operand each."""

    opcode: str  # its name with all modifiers, such as `ld.global.f32`
    operands: tuple[str, ...]
    guard: str = ""  # the predicate register under which it is executed, after ! if the register has to be false
    location: str = ""  # the file and the line of the source, such as `vec.cu:4`, if the PTX has line information

    @property
    def root(self) -> str:
        """The name without modifiers."""
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".strip()


class Entry(NamedTuple):
    """A kernel in PTX."""

    parameters: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]  # as positions
    shared: dict[str, int]  # bytes of arrays in shared memory, also those of other kernels; 0 for the dynamic one


def read_entry(ptx: str, symbol: str) -> Entry:  # noqa: C901  a branch for each kind of statement
    """Return a kernel of a PTX module. Raise PtxError if it is not understood."""
    ptx = _COMMENT.sub(r"\1", ptx)
    head = re.search(rf"\.entry\s+{re.escape(symbol)}(?![\w$])\s*(?:\(([^)]*)\))?", ptx)
    if head is None:
        raise PtxError(f"there is no kernel {symbol}")
    parameters = tuple(re.findall(r"([\w$]+)\s*(?:\[\d*\])?\s*(?:,|$)", (head[1] or "").strip()))
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    files, location = {number: FilePath(name).name for number, name in _FILE.findall(ptx)}, ""
    scopes: list[dict[str, str]] = []  # the names that registers of inline PTX get, which may be those of others
    for number, match in enumerate(_STATEMENT.finditer(ptx[ptx.index("{", head.end()) :])):
        file, line, label, brace, text = match.groups()
        if brace:
            scopes = [*scopes, {**scopes[-1]} if scopes else {}] if brace == "{" else scopes[:-1]
            if not scopes:
                break
        elif file:
            location = f"{files.get(file, '')}:{line}"
        elif label in labels:
            raise PtxError(f"{label} is declared in more than one scope")
        elif label:
            labels[label] = len(instructions)
        elif text.startswith(".reg") and len(scopes) > 1:
            for name, count in _DECLARED.findall(text):
                names = [f"{name}{n}" for n in range(int(count))] if count else [name]
                scopes[-1].update((name, f"{name}${number}") for name in names)
        elif not text.startswith("."):
            text = _REGISTER.sub(lambda name, names=scopes[-1]: names.get(name[0], name[0]), text)
            guard, opcode, rest = _INSTRUCTION.findall(text)[0]
            operands = tuple(operand.strip() for operand in _OPERAND.findall(rest) if operand.strip())
            instructions.append(Instruction(opcode, operands, guard, location))
    return Entry(parameters, tuple(instructions), labels, _read_shared(ptx))


def _read_shared(ptx: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for is_extern, bits, name, extents in _SHARED.findall(ptx):
        size = 0 if is_extern else int(bits) // 8 * math.prod(int(n or 0) for n in re.findall(r"\[(\d*)\]", extents))
        if sizes.setdefault(name, size) != size:
            raise PtxError(f"{name} stands for arrays of several sizes")
    return sizes


# ---- execution ------------------------------------------------------------------------------------------------------

SHARED = "shared:"  # begins the names of pointers to shared memory
MOST_INSTRUCTIONS = 10_000  # more would take seconds
_MOST_TERMS = 40
_MOST_DECISIONS = 30
_MOST = 1 << 62  # larger numbers are not trusted, because terms are computed with 64 bits
Facts = tuple[tuple[Polynomial, ...], tuple[Polynomial, ...]]
_NOT_KNOWN = (Polynomial.of(UNKNOWN),)  # stands for other facts
_RULES: dict[str, Callable[..., Polynomial | Facts]] = {
    # Numbers: results modulo 2 to the power of the register's width.
    r"mov\.[bsu]\d+|cvta\.[\w.]+|cvt\.[su](32|64)\.[su]\d+": lambda value: value,
    r"add\.[su]\d+": operator.add,
    r"sub\.[su]\d+": operator.sub,
    r"neg\.s\d+": operator.neg,
    r"not\.b\d+": lambda value: -value - 1,
    r"mul\.(lo|wide)\.[su]\d+": operator.mul,
    r"mad\.(lo|wide)\.[su]\d+": lambda left, right, other: left * right + other,
    r"shl\.b\d+": lambda value, count: value * (1 << count.constant),
    r"shr\.[bsu]\d+": lambda value, count: value // (1 << count.constant),
    r"div\.[su]\d+": lambda value, divisor: value // divisor.constant,
    # Comparisons: the facts if they are false, and if they are true.
    r"setp\.lt\.[su]\d+": lambda left, right: ((left - right,), (right - left - 1,)),
    r"setp\.le\.[su]\d+": lambda left, right: ((left - right - 1,), (right - left,)),
    r"setp\.gt\.[su]\d+": lambda left, right: ((right - left,), (left - right - 1,)),
    r"setp\.ge\.[su]\d+": lambda left, right: ((right - left - 1,), (left - right,)),
    r"setp\.eq\.[bsu]\d+": lambda left, right: (_apart(left - right), (left - right, right - left)),
    r"setp\.ne\.[bsu]\d+": lambda left, right: ((left - right, right - left), _apart(left - right)),
    # Predicates, of which each is such a pair of facts.
    r"and\.pred": lambda left, right: (_NOT_KNOWN, left[1] + right[1]),
    r"or\.pred": lambda left, right: (left[0] + right[0], _NOT_KNOWN),
    r"not\.pred": lambda facts: facts[::-1],
}
_BY_CONSTANT = ("shl", "shr", "div")
_READS_ALL = re.compile(r"(cvt|div|shr|setp)\..*|.*\.wide\..*")  # the result depends on more than the lowest bits
_CONSTANT = re.compile(r"-?(0[xX][0-9a-fA-F]+|[1-9]\d*|0)U?")
_NAME = re.compile(r"[%\w$.]+")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_HARMLESS = ("prefetch", "prefetchu", "bar", "setp", "isspacep")  # what they read goes nowhere else


class Value(NamedTuple):
    """What is known of the number or the predicate in a register."""

    term: Polynomial = _NOT_KNOWN[0]  # is equal to the number modulo 2 to the power of the register's width
    assumed: frozenset[Polynomial] = frozenset()  # what must not be negative for all of this
    facts: Facts = (_NOT_KNOWN, _NOT_KNOWN)  # none of these terms is negative exactly if it is false; if it is true


class Loop:
    """A loop whose instructions are in one piece."""

    def __init__(self, start: int, edges: Sequence[tuple[int, int]]) -> None:
        self.counter = f"{COUNTER}{start}"
        self.back = [position for position, target in edges if target == start <= position]
        self.body = range(start, self.back[-1] + 1)
        self.exits = [position for position, target in edges if position in self.body and target not in self.body]
        self.again: Decision = Value(), True  # that of its branch back
        self.share = Fraction(0)  # how many threads execute it
        self.changed: dict[str, Value] = {}  # the registers that it changes, as they are when an iteration begins
        if any(start != target in self.body and position not in self.body for position, target in edges):
            raise PtxError("it has a loop with several entries, or in several pieces")


Decision = tuple[Value, bool]  # a predicate, and whether it is true
Path = tuple[Decision | Loop, ...]  # the branches and loops that lead to an instruction
State = tuple[Path, Fraction, dict[str, Value]]
Address = tuple[Value, Instruction, Path | None]  # what an instruction accesses, or passes on if there is no path


class Execution:
    """What a kernel does: the addresses of memory that it uses, without those of parameters and prefetches."""

    def __init__(self, ptx: str, symbol: str, parameters: Sequence[Parameter]) -> None:
        self.entry = entry = read_entry(ptx, symbol)
        if len(entry.parameters) != len(parameters) or len(entry.instructions) > MOST_INSTRUCTIONS:
            raise PtxError(f"it has {len(entry.parameters)} parameters and {len(entry.instructions)} instructions")
        self.addresses: list[Address] = []
        symbols = {name: f"{POINTER}{SHARED}{name}" for name in entry.shared}
        for coordinate, extent in EXTENTS.items():
            symbols |= {f"%{coordinate}": coordinate, f"%n{coordinate}": extent}
        self._initial = {name: Value(Polynomial.of(symbol)) for name, symbol in symbols.items()}
        self._pointers: dict[str, Value] = {}  # by the names of parameters in the PTX
        for name, parameter in zip(entry.parameters, parameters, strict=True):
            if parameter.kind in ("pointer", "int", "uint") and parameter.size in (4, 8):
                is_pointer = parameter.kind == "pointer"
                value = Value(Polynomial.of(f"{POINTER}{parameter.name}" if is_pointer else parameter.name))
                self._pointers |= {name: value} if is_pointer else {}
                self._initial[f"[{name}]{8 * parameter.size}"] = value  # with the bits that an instruction has to load
        self._successors = [_successors(entry, position) for position in range(len(entry.instructions))]
        edges = [(position, target) for position, ends in enumerate(self._successors) for target in ends]
        starts = sorted({target for position, target in edges if target <= position})
        self._loops = {start: Loop(start, edges) for start in starts}  # the outer ones first
        self._origins: dict[str, list[Value]] = {}  # for symbols that are unknown, what they may be
        self._steps: dict[tuple[str, str], Value] = {}  # what each iteration of a loop adds to a register
        self._run()
        self._run()  # knows the steps

    def pointers_in(self, value: Value) -> list[str]:
        """Return the pointers of which a value is made, also by way of registers that may have several values."""
        visited: set[str] = set()
        pending = [value]
        while pending:
            symbols = pending.pop().term.symbols - visited
            visited |= symbols
            pending += [origin for symbol in symbols for origin in self._origins.get(symbol, ())]
        return sorted(symbol[1:] for symbol in visited if symbol.startswith(POINTER))

    def _run(self) -> None:
        """Execute all instructions in order. Each begins with the registers of the instructions that lead to it.

        If all threads took each branch by the toss of a coin, `share` of them would come to an instruction.
        """
        self.addresses = []
        arriving: dict[int, list[State]] = {0: [((), Fraction(1), {**self._initial})]}
        for position, instruction in enumerate(self.entry.instructions):
            if position not in arriving:
                continue
            paths, shares, states = zip(*arriving.pop(position), strict=True)
            common = itertools.takewhile(lambda steps: len({*map(id, steps)}) == 1, zip(*paths, strict=False))
            path, share = tuple(steps[0] for steps in common), sum(shares, Fraction(0))
            self._registers = self._merged(states)
            if loop := self._loops.get(position):
                path, loop.share = (*path, loop), share
                self._enter(loop)
            is_certain = share == Fraction(1, 2 ** sum(isinstance(step, tuple) for step in path))
            self._execute(instruction, path if is_certain and not instruction.guard else (*path, (Value(), True)))
            guard = self._read("" if instruction.root == "call" else instruction.guard.lstrip("!"))
            for target in self._successors[position]:
                decision = guard, (target != position + 1) != instruction.guard.startswith("!")
                if target <= position:
                    self._repeat(self._loops[target], decision)
                    continue
                way = path, share
                if len(self._successors[position]) > 1:
                    way = (*path, *[decision] * (len(path) < _MOST_DECISIONS)), share / 2
                for loop in reversed(self._loops.values()):
                    if position in loop.body and target not in loop.body:
                        way = path[: path.index(loop)], loop.share / len(loop.exits)
                registers = self._registers if target == position + 1 else dict(self._registers)
                arriving.setdefault(target, []).append((*way, registers))

    def _merged(self, states: Sequence[dict[str, Value]]) -> dict[str, Value]:
        """Return the registers where several states meet. A register whose values differ becomes unknown."""
        first, *others = states
        for name in set(first).union(*others) if others else ():
            values = [registers.get(name) for registers in states]
            if any(value is not values[0] and value != values[0] for value in values):
                first[name] = self._unknown(values)
        return first

    def _unknown(self, origins: Iterable[Value | None] = ()) -> Value:
        symbol = f"{UNKNOWN}{len(self._origins)}"
        self._origins[symbol] = [value for value in origins if value]
        return Value(Polynomial.of(symbol))

    def _enter(self, loop: Loop) -> None:
        for name in {name for number in loop.body for name in _destinations(self.entry.instructions[number])}:
            start, step = self._registers.get(name), self._steps.get((loop.counter, name))
            if start and step:
                term = start.term + step.term * Polynomial.of(loop.counter)
                loop.changed[name] = Value(term, start.assumed | step.assumed)
            else:
                loop.changed[name] = self._unknown([start])
        self._registers |= loop.changed

    def _repeat(self, loop: Loop, again: Decision) -> None:
        """Find out to which registers each iteration of a loop adds the same number."""
        loop.again = again
        for name, (start, *_) in loop.changed.items():
            end = self._registers[name]
            step = end.term - start
            if len(loop.back) == 1 and not step.varying and not any(term.varying for term in end.assumed):
                self._steps[loop.counter, name] = Value(step, end.assumed)
            self._origins.get(str(start), []).append(end)

    def _execute(self, instruction: Instruction, path: Path) -> None:
        has_result = bool(targets := _destinations(instruction)) and not instruction.guard
        result = self._result(instruction) if has_result else None
        for operand in instruction.operands[has_result:]:
            names = _NAME.findall(operand)
            if instruction.root != "ld" or result is None:  # a part of a pointer is loaded, or its address is taken
                self.addresses += [(self._pointers[n], instruction, None) for n in names if n in self._pointers]
            values = [self._registers[name] for name in names if name in self._registers]
            match = _ADDRESS.fullmatch(operand)
            if match and values and not instruction.root.startswith("prefetch"):
                value = values[0]._replace(term=values[0].term + int(match[2] or 0))
                self.addresses.append((value, instruction, path))
            elif match is None and result is None and instruction.root not in _HARMLESS:
                self.addresses += [(value, instruction, None) for value in values]
        self._registers |= {name: result or self._unknown() for name in targets}

    def _read(self, operand: str) -> Value:
        if _CONSTANT.fullmatch(operand):
            return Value(Polynomial.of(int(operand.rstrip("U"), 0)))
        return self._registers.get(operand) or self._unknown(map(self._registers.get, _NAME.findall(operand)))

    def _result(self, instruction: Instruction) -> Value | None:
        """Return the result of an instruction, or None if it is not known."""
        opcode, root, (_, *operands) = instruction.opcode, instruction.root, instruction.operands
        kind = opcode.rpartition(".")[2]
        rule = next((rule for pattern, rule in _RULES.items() if re.fullmatch(pattern, opcode)), None)
        if "{" in str(instruction) or "|" in str(instruction):
            return None
        if rule is None:
            return self._registers.get(operands[0] + kind[1:]) if root == "ld" else None
        values = [self._read(operand) for operand in operands]
        assumed = frozenset[Polynomial]().union(*(value.assumed for value in values))
        terms = [value.term for value in values]
        if _READS_ALL.fullmatch(opcode):
            assumed = assumed.union(*(within(term, kind) for term in terms[:2]))
        if root in ("div", "shr"):
            assumed |= {terms[0]}  # quotients of others are rounded up
        if root in _BY_CONSTANT and (terms[1].constant not in range(1, 1025) or (root != "shl" and terms[0].varying)):
            return None
        result = rule(*(value.facts if kind == "pred" else value.term for value in values))
        if not isinstance(result, Polynomial):
            return Value(assumed=assumed, facts=result)
        return Value(result, assumed) if len(result.terms) <= _MOST_TERMS else None


def _apart(difference: Polynomial) -> tuple[Polynomial, ...]:
    """Return the facts if two numbers are not equal."""
    return tuple(term - 1 for term in (difference, -difference) if term >= 0) or _NOT_KNOWN


def within(term: Polynomial, kind: str) -> frozenset[Polynomial]:
    """Return what must not be negative for a term to be an integer of a type such as `s32`."""
    bits = int(kind[1:])
    least, end = (-(1 << bits - 1), 1 << bits - 1) if kind[0] == "s" else (0, 1 << bits)
    return frozenset({term - max(least, -_MOST), -term + min(end - 1, _MOST)})


def _successors(entry: Entry, position: int) -> list[int]:
    """Return the positions of the instructions that may follow one."""
    instruction = entry.instructions[position]
    if instruction.root == "brx":
        raise PtxError("it has a branch to one of many labels")
    if instruction.root == "call" and "vprintf" not in instruction.operands:
        return [len(entry.instructions), position + 1]  # it may end the kernel
    if instruction.root not in ("bra", "ret", "exit", "trap"):
        return [position + 1]
    target = entry.labels[instruction.operands[-1]] if instruction.root == "bra" else len(entry.instructions)
    return [target, position + 1] if instruction.guard and target != position + 1 else [target]


def _destinations(instruction: Instruction) -> list[str]:
    """Return the registers that an instruction sets, or seems to set."""
    first = instruction.operands[0] if instruction.operands else "["
    return [] if first.startswith("[") else _REGISTER.findall(first)
