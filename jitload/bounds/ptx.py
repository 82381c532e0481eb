"""Reads the instructions of a kernel from PTX."""

from __future__ import annotations

import math
import re
from collections import ChainMap
from pathlib import Path
from typing import NamedTuple

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# A location, a label, the brace of a scope, or the text of a directive or an instruction, in which vectors have braces.
_STATEMENT = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*|([\w$]+)\s*:(?!:)|([{}])|([^\s;{}](?:[^;{}]|\{[^{}]*\})*)")
_DIRECTIVE = re.compile(r"\.(reg|shared|local|pragma|param|branchtargets|calltargets|callprototype|loc)\b")
_INSTRUCTION = re.compile(r"(?:@(!?)([\w$%]+)\s+)?(\S+)\s*([^;]*)")
_REGISTER = re.compile(r"%[\w$]+")
_DECLARED = re.compile(r"(%[\w$]+)(?:<(\d+)>)?")
_SHARED = re.compile(r"(\.extern\s+)?\.shared\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+([\w$]+)\s*((?:\[\d*\])*)\s*;")
_OPERAND = re.compile(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(]+)+")


class PtxError(ValueError):
    """PTX that this package does not understand."""


class Instruction(NamedTuple):
    """An instruction with its operands as text. A vector and an address are one operand each."""

    opcode: str  # its name with all modifiers, such as `ld.global.f32`
    operands: tuple[str, ...]
    guard: str = ""  # the predicate register under which it is executed
    is_negated: bool = False  # whether it is executed if the guard is false
    location: str = ""  # the file and the line of the source, such as `vec.cu:4`, if the PTX has line information

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
    """A kernel in PTX."""

    parameters: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]  # as positions
    shared: dict[str, int]  # bytes of arrays in shared memory, also those of other kernels; 0 for the dynamic one


def read_entry(ptx: str, symbol: str) -> Entry:  # noqa: C901  a branch for each kind of statement
    """Return a kernel of a PTX module. Raise PtxError if it is not understood."""
    head = re.search(rf"\.entry\s+{re.escape(symbol)}(?![\w$])\s*(?:\(([^)]*)\))?", ptx)
    if head is None:
        raise PtxError(f"there is no kernel {symbol}")
    parameters = tuple(re.findall(r"([\w$]+)\s*(?:\[\d*\])?\s*(?:,|$)", _COMMENT.sub("", head[1] or "").strip()))
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    files, location = {number: Path(name).name for number, name in _FILE.findall(ptx)}, ""
    scopes: list[dict[str, str]] = []  # the names that registers of inline PTX get, which may be those of others
    for number, match in enumerate(_STATEMENT.finditer(_COMMENT.sub("", ptx[ptx.index("{", head.end()) :]))):
        file, line, label, brace, text = match.groups()
        if brace:
            scopes = [*scopes, {}] if brace == "{" else scopes[:-1]
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
            renamed = ChainMap(*reversed(scopes))
            text = _REGISTER.sub(lambda name, names=renamed: names.get(name[0], name[0]), text)
            negation, guard, opcode, rest = _INSTRUCTION.findall(text)[0]
            operands = tuple(operand.strip() for operand in _OPERAND.findall(rest) if operand.strip())
            instructions.append(Instruction(opcode, operands, guard, bool(negation), location))
        elif not _DIRECTIVE.match(text):
            raise PtxError(f"unknown directive: {text}")
    return Entry(parameters, tuple(instructions), labels, _read_shared(ptx))


def _read_shared(ptx: str) -> dict[str, int]:
    """Return the sizes of arrays in shared memory, without names that stand for arrays of several sizes."""
    sizes: dict[str, set[int]] = {}
    for is_extern, bits, name, extents in _SHARED.findall(_COMMENT.sub("", ptx)):
        count = math.prod(int(extent or 0) for extent in re.findall(r"\[(\d*)\]", extents))
        sizes.setdefault(name, set()).add(0 if is_extern else int(bits) // 8 * count)
    return {name: size for name, (size, *others) in sizes.items() if not others}
