"""The statements of a kernel in, its variables out: what is declared between barriers, and what a word stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jitload.cpptext.lexer import Token
from jitload.cpu.split_declarations import Variable, read_declaration
from jitload.cpu.split_tree import NotUnderstoodError, Statement, match_brackets
from jitload.cpu.split_words import FUNCTIONS

SCOPED = frozenset({"using", "typedef", "static_assert"})  # begin what declares no variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a source says outside of a kernel.

    Attributes:
        constants: Names of template parameters, enumerators and `constexpr` variables.
        types: Names of types that template parameters stand for.
        functions: Functions that the source defines.
        by_value: Those of them that take no reference.
    """

    constants: frozenset[str]
    types: frozenset[str]
    functions: frozenset[str]
    by_value: frozenset[str]

    def computes(self, name: str) -> bool:
        """Tell whether a function's result depends on its arguments alone, and it writes nothing."""
        return name in FUNCTIONS and name not in self.functions


class Scopes:
    """The variables of a kernel.

    Variables that are declared within what a thread does by itself are not among them.

    Attributes:
        code: The tokens of its body.
        closing: Where brackets are closed, by where they are opened.
        parameters: Its parameters.
        declared: By the first token of a statement that stands between barriers: the variables it declares.
        structural: The first tokens of the compound statements that all threads go through together.
    """

    def __init__(self, code: Sequence[Token], statements: Sequence[Statement], parameters: Sequence[Variable]) -> None:
        self.code = code
        self.closing = match_brackets(code)
        self.parameters = tuple(parameters)
        self.declared: dict[int, tuple[Variable, ...]] = {}
        self.structural: set[int] = set()
        self._by_name: dict[str, list[Variable]] = {v.name: [v] for v in parameters}
        self._declare(statements, len(code) - 1, in_loop=False)

    def find(self, name: str, at: int) -> Variable | None:
        """Return the variable that a word stands for, of those that live between barriers."""
        found = [v for v in self._by_name.get(name, ()) if v.at <= at <= v.end]
        return found[-1] if found else None

    def used(self, first: int, last: int) -> Iterator[tuple[int, Variable]]:
        """Yield where variables are named."""
        for at in range(first, last + 1):
            token = self.code[at]
            if token.kind == "word" and (at == 0 or self.code[at - 1].text not in (".", "->", "::")):
                variable = self.find(token.text, at)
                if variable:
                    yield at, variable

    def last_use(self, variable: Variable) -> int:
        """Return the last index where a variable is named."""
        return max((at for at, found in self.used(variable.at + 1, variable.end) if found is variable), default=-1)

    def all(self) -> Iterator[Variable]:
        """Yield each variable."""
        for found in self._by_name.values():
            yield from found

    def text(self, at: int) -> str:
        """Return a token's text; there is none before the first and behind the last."""
        return self.code[at].text if 0 <= at < len(self.code) else ""

    def chain(self, at: int) -> int:
        """Return the end of what follows a name by `.`, `->` and `[…]`."""
        while True:
            text = self.text(at + 1)
            if text in (".", "->"):
                at += 2
            elif text == "[":
                at = self.closing[at + 1]
            else:
                return at

    def _declare(self, statements: Sequence[Statement], end: int, *, in_loop: bool) -> None:
        for one in statements:
            if one.kind not in ("barrier", "warp") and (
                one.has_barrier or (in_loop and one.jumps and one.kind != "plain")
            ):
                self.structural.add(one.first)
                self._declare_inside(one, in_loop=in_loop)
            elif one.kind == "plain" and self.code[one.first].text not in SCOPED:
                found = read_declaration(self.code, one.first, one.last, end)
                self._add(one.first, found)

    def _declare_inside(self, one: Statement, *, in_loop: bool) -> None:
        if one.kind == "for":
            self._add(one.first, read_declaration(self.code, *one.heads[0], one.last))
        is_loop = one.kind in ("for", "while", "do")
        for part in (one.body, one.other):
            if part:
                self._declare(part, part[-1].last, in_loop=in_loop or is_loop)

    def _add(self, first: int, found: tuple[Variable, ...]) -> None:
        self.declared[first] = found
        for variable in found:
            if self.find(variable.name, variable.at):
                raise NotUnderstoodError(f"{variable.name!r} hides another variable")
            self._by_name.setdefault(variable.name, []).append(variable)
