"""The values among a template's arguments: constants, addresses, plain operators."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jitload.device.mangled_codes import BINARY, LITERAL_SUFFIXES, UNARY, Cursor
from jitload.device.mangled_text import Expansion, Function, Part, UnreadableError, Words


class Values(Cursor, ABC):
    """Reads values; names and types in them are read by who reads all of a symbol."""

    @abstractmethod
    def encoding(self) -> Part:
        """Read a function with its types, or a variable."""

    @abstractmethod
    def type(self) -> Part:
        """Read a type."""

    @abstractmethod
    def unqualified(self) -> Part:
        """Read a name without namespaces."""

    @abstractmethod
    def with_arguments(self, name: Part) -> Part:
        """Read the template arguments behind a name."""

    @abstractmethod
    def template_parameter(self) -> Part:
        """Read `T_`."""

    def literal(self) -> Part:
        """Read `Li4E`, `Lb1E`, `L_Z1fvE`."""
        self.needs("L")
        if self.takes("_Z") or self.takes("Z"):
            named = self.encoding()
            self.needs("E")
            return named
        code = self.ahead
        type_ = self.type()
        end = self.text.index("E", self.at)
        value, self.at = self.text[self.at : end], end + 1
        value = value.replace("n", "-", 1) if value.startswith("n") else value
        if code in LITERAL_SUFFIXES:
            return Words((value + LITERAL_SUFFIXES[code],))
        if code == "b" and value in ("0", "1"):
            return Words((("false", "true")[int(value)],))
        return Words(("(", type_, ")", f"[{value}]" if code in "fdeg" else value))

    def expression(self) -> Part:
        """Read what stands between `X` and `E`."""
        code = self.text[self.at : self.at + 2]
        if code[:1] in ("L", "T"):
            return self.literal() if code.startswith("L") else self.template_parameter()
        self.at += 2
        if code == "sp":
            return Expansion(self.expression())
        if code in ("sZ", "sz", "st"):
            word = {"sZ": "sizeof...", "sz": "sizeof ", "st": "sizeof "}[code]
            return Words((word, "(", self.type() if code == "st" else self.expression(), ")"))
        if code == "sr":
            whole = Words((self.type(), "::", self.unqualified()))
            return self.with_arguments(whole) if self.ahead == "I" else whole
        return self.operation(code)

    def operation(self, code: str) -> Part:
        """Read the operands of an operator."""
        if code == "cv":
            return Words(("(", self.type(), ")", self.expression()))
        if code in UNARY:
            is_name = self.ahead == "L"
            value = self.expression()
            is_bare = is_name and code == "ad" and not isinstance(value, Function)
            return Words(("&", value) if is_bare else (UNARY[code], "(", value, ")"))
        if code in BINARY:
            return Words(("(", self.expression(), ")", BINARY[code], "(", self.expression(), ")"))
        raise UnreadableError
