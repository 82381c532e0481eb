"""Reads the instructions of a kernel from PTX."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

_LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"\s*([\w$]+)\s*:(?!:)")
_LABELS = re.compile(rf"(?:{_LABEL.pattern})*")
_DIRECTIVE = re.compile(r"\.(reg|shared|local|pragma|param|branchtargets|calltargets|callprototype|loc)\b")
_GUARD = re.compile(r"@(!?)([\w$%]+)\s+")
_PIECE = re.compile(r"\n|[;{}]|[^\n;{}]+")
_REGISTER = re.compile(r"(%[A-Za-z_$]+)\d*")
_SHARED = re.compile(r"(\.extern\s+)?\.shared\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+([\w$]+)\s*((?:\[\d*\])*)\s*;")
_OPERAND = re.compile(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(]+)+")


class PtxError(ValueError):
    """PTX that this package does not understand."""


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        opcode: Its name with all modifiers, such as `ld.global.f32`.
        operands: Its operands as text; a vector and an address are one operand each.
        guard: The predicate register under which it is executed, or "".
        is_negated: Whether it is executed if the guard is false.
        location: The number of its file and its line in the source, or None if the PTX has no line information.
    """

    opcode: str
    operands: tuple[str, ...]
    guard: str = ""
    is_negated: bool = False
    location: tuple[int, int] | None = None

    @property
    def root(self) -> str:
        """The name without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> list[str]:
        """The modifiers, such as `global` and `f32`."""
        return self.opcode.split(".")[1:]

    def __str__(self) -> str:
        guard = f"@{'!' * self.is_negated}{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".strip()


class Entry(NamedTuple):
    """A kernel in PTX: the names of its parameters, its instructions, labels as positions, and the source files.

    `shared` has the sizes in bytes of the arrays in shared memory, also of other kernels. That of the dynamic one is 0.
    """

    parameters: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    files: dict[int, str]
    shared: dict[str, int]


def read_entry(ptx: str, symbol: str) -> Entry:
    """Return a kernel of a PTX module. Raise PtxError if it is not understood."""
    head = re.search(rf"\.entry\s+{re.escape(symbol)}(?![\w$])\s*(?:\(([^)]*)\))?", ptx)
    if head is None:
        raise PtxError(f"there is no kernel {symbol}")
    parameters = tuple(re.findall(r"([\w$]+)\s*(?:\[\d*\])?\s*(?:,|$)", _COMMENT.sub("", head[1] or "").strip()))
    code = _COMMENT.sub("", ptx[ptx.index("{", head.end()) :])
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    registers: set[str] = set()
    location = None
    for statement, line in _statements(code[1:]):
        location, text = line or location, statement
        while label := _LABEL.match(text):
            _declare({label[1]}, labels)
            labels[label[1]] = len(instructions)
            text = text[label.end() :]
        text = text.strip()
        if text.startswith(".") and not _DIRECTIVE.match(text):
            raise PtxError(f"unknown directive: {text}")
        if text.startswith(".reg"):
            declared = set(_REGISTER.findall(text))
            _declare(declared, registers)
            registers |= declared
        if text and not text.startswith("."):
            instructions.append(_instruction(text, location))
    files = {int(number): name for number, name in _FILE.findall(ptx)}
    return Entry(parameters, tuple(instructions), labels, files, _read_shared(ptx))


def _read_shared(ptx: str) -> dict[str, int]:
    """Return the sizes of arrays in shared memory, without names that stand for arrays of several sizes."""
    sizes: dict[str, set[int]] = {}
    for is_extern, bits, name, extents in _SHARED.findall(_COMMENT.sub("", ptx)):
        count = math.prod(int(extent or 0) for extent in re.findall(r"\[(\d*)\]", extents))
        sizes.setdefault(name, set()).add(0 if is_extern else int(bits) // 8 * count)
    return {name: size for name, (size, *others) in sizes.items() if not others}


def _declare(names: set[str], declared: Collection[str]) -> None:
    """Raise PtxError if a name is declared again in a scope of inline PTX: scopes are not told apart."""
    if again := sorted(names.intersection(declared)):
        raise PtxError(f"{again[0]} is declared in more than one scope")


def _statements(code: str) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Yield the statements up to the closing brace, each with the location that a directive before it gives.

    Braces of inner scopes are skipped.
    """
    text, depth = "", 1
    location: tuple[int, int] | None = None
    in_vector = False
    for piece in map(re.Match.group, _PIECE.finditer(code)):
        depth += (piece == "{") - (piece == "}")
        if depth == 0:
            break
        if not _LABELS.sub("", text).strip() and (found := _LOCATION.match(piece)):
            location = int(found[1]), int(found[2])
        elif piece == ";" and not in_vector:
            yield text, location
            text, location = "", None
        elif piece in "{}" and (in_vector or (piece == "{" and _LABELS.sub("", text).strip())):
            in_vector = piece == "{"
            text += piece
        elif piece not in "{}":
            text += " " if piece == "\n" else piece
    if text.strip():
        yield text, location


def _instruction(text: str, location: tuple[int, int] | None) -> Instruction:
    guard = _GUARD.match(text)
    opcode, *rest = (text[guard.end() :] if guard else text).split(None, 1)
    operands = tuple(operand.strip() for operand in _OPERAND.findall("".join(rest)) if operand.strip())
    return Instruction(opcode, operands, guard[2] if guard else "", bool(guard and guard[1]), location)
