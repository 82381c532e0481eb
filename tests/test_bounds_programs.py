"""The accesses of random programs in PTX are those that an interpreter makes for all threads of small launches."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator, Mapping

import pytest
from support.bounds import evaluate

from jitload.bounds.execution import Entry, read_entry
from jitload.bounds.extents import Access, find_accesses
from jitload.model import Parameter

PARAMETERS = [
    *(Parameter(name=name, type="int*", kind="pointer", size=8, offset=0, dtype="int32") for name in ("x", "y")),
    *(Parameter(name=name, type="int", kind="int", size=4, offset=0) for name in ("n", "m")),
]
HEAD = """.entry f(.param .u64 x, .param .u64 y, .param .u32 n, .param .u32 m) {
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r2, [n]; ld.param.u32 %r3, [m];
mov.u32 %r1, %tid.x; mov.u32 %r5, %ctaid.x; mov.u32 %r4, %ntid.x; mad.lo.s32 %r6, %r5, %r4, %r1;
"""
NEGATED = {"lt": "ge", "ne": "eq", "gt": "le", "ge": "lt"}
COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
ADDRESSES = {"x": 1 << 40, "y": 1 << 50}
MOST_STEPS = 3000


class Program:
    """A random program with branches, loops and stores."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lines: list[str] = []
        self.count = 20
        self.depth = 0
        registers = ["%r1", "%r6", "%r6", "%r1", "%r5", "%r2"]
        for _ in range(2):
            self.add_block(registers)
        self.add_store(registers)
        self.text = HEAD + "\n".join(self.lines) + "\nret; }"

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def choose(self, *choices: object) -> str:
        return str(self.chance.choice(choices))

    def add_block(self, registers: list[str], leaving: tuple[str, ...] = ()) -> list[str]:
        """Add statements, and return the registers that have values after them."""
        registers = [*registers]
        for _ in range(self.chance.randint(1, 4)):
            kind = self.chance.randrange(12)
            if kind < 3:
                registers.append(self.add_operation(registers))
            elif kind < 6:
                self.add_store(registers)
            elif kind < 8 and self.depth < 3:
                self.add_branch(registers, leaving)
            elif kind < 10 and self.depth < 2:
                registers.append(self.add_loop(registers))
            elif kind == 10 and leaving:
                self.lines.append(f"@{self.add_predicate(registers)} bra {self.choose(*leaving)};")
            elif kind == 11 and self.chance.random() < 0.4:
                self.lines.append(f"@{self.add_predicate(registers)} {self.choose('ret', 'exit')};")
        return registers

    def add_operation(self, registers: list[str]) -> str:
        result, first = self.new("%r"), self.choose(*registers)
        second = self.choose(*registers, self.chance.randint(0, 5))
        operation = self.choose(
            *(f"{name}, {first}, {second};" for name in ("add.s32", "add.s32", "sub.s32")),
            f"mul.lo.s32, {first}, {self.choose(1, 2, 3, *registers)};",
            f"mad.lo.s32, {first}, {self.chance.randint(1, 4)}, {second};",
            f"shl.b32, {first}, {self.chance.randint(0, 2)};",
            f"{self.choose('div.s32', 'rem.s32', 'shr.u32', 'div.u32')}, {first}, {self.chance.randint(1, 4)};",
            f"and.b32, {first}, {self.choose(1, 3, 7, -2, -4)};",
        )
        self.lines.append(operation.replace(",", f" {result},", 1))
        return result

    def add_predicate(self, registers: list[str]) -> str:
        result, limit = self.new("%p"), self.choose(*registers, "%r2", "%r3", self.chance.randint(0, 6))
        comparison = f"{self.choose(*COMPARISONS)}.{self.choose('s32', 's32', 'u32')}"
        self.lines.append(f"setp.{comparison} {result}, {self.choose(*registers)}, {limit};")
        if self.chance.random() < 0.15:
            first, second, result = result, self.new("%p"), self.new("%p")
            self.lines.append(f"setp.lt.s32 {second}, {self.choose(*registers)}, %r2;")
            self.lines.append(f"{self.choose('and', 'or')}.pred {result}, {first}, {second};")
        return result

    def add_store(self, registers: list[str]) -> None:
        index, offset, address = self.choose(*registers), self.new("%rd"), self.new("%rd")
        guard = f"@{self.add_predicate(registers)} " if self.chance.random() < 0.05 else ""
        self.lines += [
            f"mul.wide.{self.choose('s32', 'u32')} {offset}, {index}, 4;",
            f"add.s64 {address}, {self.choose('%rd1', '%rd2')}, {offset};",
            f"{guard}st.global.u32 [{address}{self.choose('', '+4')}], {index};",
        ]

    def add_branch(self, registers: list[str], leaving: tuple[str, ...]) -> None:
        orelse, end = self.new("$L"), self.new("$L")
        joined = self.new("%r") if self.chance.random() < 0.4 else None
        self.depth += 1
        self.lines.append(f"@{self.choose('', '!')}{self.add_predicate(registers)} bra {orelse};")
        for last in (f"bra {end}; {orelse}:", f"{end}:"):
            if last == f"{end}:" or self.chance.random() < 0.8:
                self.add_block(registers, leaving)
            if joined:
                self.lines.append(f"mov.u32 {joined}, {self.choose(*registers)};")
            self.lines.append(last)
        self.depth -= 1
        registers += [joined] if joined else []

    def add_loop(self, registers: list[str]) -> str:
        """Add a loop whose condition is at its start, at its end, or at both."""
        counter, (start, after, end) = self.new("%r"), (self.new("$L") for _ in range(3))
        step, limit = self.choose(1, 2, "%r3", "%r4", -1, *registers[:2]), self.choose("%r2", 5, *registers)
        comparison = self.choose("gt", "ge", "ne") if step == "-1" else self.choose("lt", "lt", "lt", "ne", "gt")
        leave = f"setp.{NEGATED[comparison]}.s32 %p{start[2:]}, {counter}, {limit}; @%p{start[2:]} bra {end};"
        form = self.chance.randrange(3)
        self.depth += 1
        self.lines += [f"mov.u32 {counter}, {self.choose(*registers, 0)};", leave if form == 1 else "", f"{start}:"]
        self.lines.append(leave if form == 0 else "")
        self.add_block([*registers, counter], (after, end))
        self.lines += [f"{after}: add.s32 {counter}, {counter}, {step};"]
        again = f"setp.{comparison}.s32 %p{end[2:]}, {counter}, {limit}; @%p{end[2:]} bra {start};"
        self.lines += [f"bra {start};" if form == 0 else again, f"{end}:"]
        self.depth -= 1
        return counter


def stores_of(entry: Entry, special: Mapping[str, int], parameters: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield what a thread stores to: the position of the instruction, and the byte of the tensor."""
    registers = {**special}
    position = 0
    for _ in range(MOST_STEPS):
        i = entry.instructions[position]
        position += 1
        if i.guard and bool(registers[i.guard.lstrip("!")]) == i.guard.startswith("!"):
            continue
        bits = 64 if i.operands[:1] and i.operands[0].startswith("%rd") else 32
        is_signed = ".s" in i.opcode[-4:]

        def number(text: str, bits: int = 32, *, is_signed: bool = is_signed) -> int:
            value = registers[text] if text.startswith("%") else int(text)
            value &= (1 << bits) - 1
            return value - (1 << bits) if is_signed and value >> bits - 1 else value

        target, operands = (i.operands or ("",))[0], i.operands[1:]
        if i.root in ("ret", "exit"):
            return
        if i.root == "bra":
            position = entry.labels[target]
        elif i.root == "st":
            register, _, offset = target.strip("[]").partition("+")
            address = registers[register] + int(offset or 0)
            base = ADDRESSES["y" if address > ADDRESSES["y"] - (1 << 45) else "x"]
            yield position - 1, address - base
        elif i.root == "ld":
            registers[target] = parameters[operands[0].strip("[]")]
        elif i.opcode.endswith(".pred"):
            registers[target] = (operator.and_ if i.root == "and" else operator.or_)(*map(registers.get, operands))
        elif i.root == "setp":
            registers[target] = COMPARISONS[i.opcode.split(".")[1]](*map(number, operands))
        else:
            values = [number(operand, 64 if ".s64" in i.opcode else 32) for operand in operands]
            registers[target] = result_of(i.root, values) & (1 << bits) - 1
    raise TimeoutError


def result_of(name: str, values: list[int]) -> int:
    a, b, c = (*values, 0, 0)[:3]
    match name:
        case "mov":
            return a
        case "add" | "sub":
            return a + b if name == "add" else a - b
        case "mul" | "mad":
            return a * b + c
        case "shl" | "shr":
            return a << b if name == "shl" else a >> b
        case "and":
            return a & b
        case "div" | "rem":
            quotient = abs(a) // b * (-1 if a < 0 else 1)
            return quotient if name == "div" else a - quotient * b
    raise AssertionError(name)


def check_launch(accesses: Mapping[int, Access], touched: Mapping[int, list[int]], values: Mapping[str, int]) -> int:
    """Compare what is known of accesses with what they touch. Return for how many this is known exactly."""
    exact = 0
    for position, access in accesses.items():
        if access.reason or any(evaluate(term, values) < 0 for term in access.conditions):
            continue
        ends = evaluate(access.low, values), evaluate(access.high, values)
        offsets = touched.get(position, [])
        assert all(ends[0] <= offset <= ends[1] for offset in offsets), (access, values)
        if access.is_exact:
            assert offsets, (access, values)
            assert (min(offsets), max(offsets)) == ends, (access, values)
            exact += 1
    return exact


SEEDS = [range(25), (*range(25, 50), 729), pytest.param(range(50, 2000), marks=pytest.mark.soak)]


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_accesses_of_a_program_are_those_of_all_threads(seeds):
    exact = 0
    for seed in seeds:
        program, chance = Program(seed).text, random.Random(seed)
        entry = read_entry(program, "f")
        stores = {str(i): number for number, i in enumerate(entry.instructions) if i.root == "st"}  # all are different
        found = find_accesses(program, "f", PARAMETERS)[0]
        accesses = {stores[str(access.instruction)]: access for accesses in found.values() for access in accesses}
        for _ in range(4):
            block, grid, n, m = (
                chance.choice((1, 2, 3, 5, 8)),
                chance.randint(1, 3),
                chance.randint(0, 12),
                chance.randint(-1, 4),
            )
            special = {"%ntid.x": block, "%nctaid.x": grid}
            touched: dict[int, list[int]] = {}
            try:
                for number in range(block * grid):
                    thread = {**special, "%tid.x": number % block, "%ctaid.x": number // block}
                    for position, offset in stores_of(entry, thread, {**ADDRESSES, "n": n, "m": m}):
                        touched.setdefault(position, []).append(offset)
            except TimeoutError:
                continue
            exact += check_launch(accesses, touched, {"n": n, "m": m, "grid.x": grid, "block.x": block})
    assert exact > 50
