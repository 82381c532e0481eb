"""The variables of a kernel in, out where something may be written to them, guessed generously."""

from __future__ import annotations

from collections.abc import Iterator

from jitload.cpptext.declarations import find_angle
from jitload.cpu.split_declarations import Variable
from jitload.cpu.split_scopes import Scopes, Surroundings
from jitload.cpu.split_words import ASSIGNMENTS, ATOMICS, KEYWORDS, LOADS, QUALIFIERS, STEPS, TYPES


class Writes:
    """What may be written to.

    Attributes:
        places: By variable: the indices of the words that may write.
        escaped: Variables whose address may be kept somewhere.
    """

    def __init__(self, scopes: Scopes, around: Surroundings) -> None:
        self._scopes = scopes
        self._around = around
        self._code, self._closing, self._text = scopes.code, scopes.closing, scopes.text
        self.escaped: set[Variable] = set()
        self.places: dict[Variable, list[int]] = {}
        self._find_writes()

    def _find_writes(self) -> None:
        for first, last, is_open in self._plain_ranges():
            for at, variable in self._scopes.used(first, last):
                if is_open or self._is_escape(at, variable):
                    self.escaped.add(variable)
                if is_open or self._is_write(at, variable):
                    self.places.setdefault(variable, []).append(at)

    def _plain_ranges(self) -> Iterator[tuple[int, int, bool]]:
        """Yield stretches of the body, and whether a reference or a lambda may hide what they write."""
        start = 0
        for at, token in enumerate(self._code):
            if token.text in (";", "{", "}") or at == len(self._code) - 1:
                yield start, at, any(map(self._opens, range(start, at + 1)))
                start = at + 1

    def _opens(self, at: int) -> bool:
        """Tell whether a reference is made here."""
        if self._code[at].text not in ("&", "&&"):
            return False
        name, after, before = self._text(at + 1), self._text(at + 2), self._text(at - 1)
        if name in ("[", ")") or (name.isidentifier() and after in ("=", "{", ":")):
            return True
        is_type = before in TYPES or before in QUALIFIERS or before in ("auto", ">") or before in self._around.types
        begins = self._text(at - 2) in ("", ";", "{", "}", "const", "::")
        return name.isidentifier() and after == "(" and (is_type or begins)

    def _is_escape(self, at: int, variable: Variable) -> bool:
        """Tell whether the address of a variable may be taken here."""
        start, end = self._operand(at)
        before = self._text(start - 1)
        if before == "&" and not (variable.is_pointer and self._scopes.chain(at) > at):
            previous = self._code[start - 2] if start > 1 else None
            is_binary = previous is not None and (
                previous.kind == "number"
                or previous.text == "]"
                or (previous.kind == "word" and previous.text not in KEYWORDS)
            )
            if not is_binary:
                return True
        is_alone = before in ("(", ",", "{") and self._text(end + 1) in (",", ")", "}")
        return is_alone and self._is_argument_of_stranger(start)

    def _operand(self, at: int) -> tuple[int, int]:
        """Return a name's place with what follows by `.`, `->` and `[…]`, and with the parentheses around that."""
        start, end = at, self._scopes.chain(at)
        while self._text(start - 1) == "(" and self._text(end + 1) == ")":
            before = self._text(start - 2)
            if before.isidentifier() or before in (">", "]", ")"):
                break
            start, end = start - 1, self._scopes.chain(end + 1)
        return start, end

    def _is_argument_of_stranger(self, at: int) -> bool:
        """Tell whether it is given to something that could keep a reference to it."""
        around = [opening for opening, closing in self._closing.items() if opening < at <= closing]
        opening = max(around, default=-1)
        before = self._text(opening - 1)
        if opening < 0 or self._text(opening) == "[":
            return False
        if self._text(opening) == "{" and before in ("", ")", ";", "{", "}", "else", "do"):
            return False  # a block
        if before == "=" and self._text(opening) == "{" and self._begins_with_number(opening):
            return False  # the elements of an array
        if before == ">" and self._closes_template(opening - 1):
            return True
        if self._text(opening) == "(" and (not before.isidentifier() or before in KEYWORDS):
            return False
        known = (
            self._around.computes(before)
            or before.startswith("__jitload_")
            or before in ATOMICS
            or before in LOADS
            or before in TYPES
        )
        return not known and before not in self._around.by_value

    def _begins_with_number(self, at: int) -> bool:
        """Tell whether a statement declares variables of a type that C++ or CUDA brings."""
        while at > 0 and self._text(at - 1) not in (";", "{", "}", ")"):
            at -= 1
        return self._text(at) in TYPES or (self._text(at) in QUALIFIERS and self._text(at + 1) in TYPES)

    def _closes_template(self, at: int) -> bool:
        """Tell whether a `>` ends template arguments."""
        return any(
            self._text(start) == "<" and self._code[start - 1].kind == "word" and find_angle(self._code, start) == at
            for start in range(max(at - 40, 1), at)
        )

    def _is_write(self, at: int, variable: Variable) -> bool:
        if variable in self.escaped or self._text(at - 1) in STEPS:
            return True
        end = self._scopes.chain(at)
        if end > at and variable.is_pointer and self._text(at + 1) in ("[", "->"):
            return False
        following = self._text(end + 1)
        if following in ASSIGNMENTS or following in STEPS or (following == "(" and end > at):
            return at != variable.at
        return self._is_in_written_group(at)

    def _is_in_written_group(self, at: int) -> bool:
        """Tell whether it stands in parentheses that are assigned to as a whole: `(a, b) = 3`."""
        for opening, closing in self._closing.items():
            if opening < at < closing and self._code[opening].text == "(":
                around = (self._text(opening - 1), self._text(closing + 1))
                if around[0] in STEPS or around[1] in STEPS or around[1] in ASSIGNMENTS:
                    return True
        return False
