"""What the codes in a mangled C++ name stand for, and the place in such a name up to which it has been read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jitload.device.mangled_text import Part, Template, UnreadableError

BUILTINS = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double",
    "e": "long double", "g": "__float128", "z": "...",
    "Dd": "decimal64", "De": "decimal128", "Df": "decimal32", "Dh": "half", "Di": "char32_t", "Ds": "char16_t",
    "Du": "char8_t", "Da": "auto", "Dc": "decltype(auto)", "Dn": "decltype(nullptr)",
}  # fmt: skip
STANDARD = {
    "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string", "Si": "std::istream", "So": "std::ostream",
    "Sd": "std::iostream",
}  # fmt: skip
MARKS = {"P": "*", "R": "&", "O": "&&", "r": " restrict", "V": " volatile", "K": " const"}
LITERAL_SUFFIXES = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
UNARY = {"ad": "&", "ps": "+", "ng": "-", "nt": "!", "co": "~", "de": "*"}
BINARY = {
    "pl": "+", "mi": "-", "ml": "*", "dv": "/", "rm": "%", "an": "&", "or": "|", "eo": "^", "ls": "<<", "rs": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "aa": "&&", "oo": "||", "ss": "<=>",
}  # fmt: skip
OPERATORS = {
    **UNARY, **BINARY, "aS": "=", "pL": "+=", "mI": "-=", "mL": "*=", "dV": "/=", "rM": "%=", "aN": "&=", "oR": "|=",
    "eO": "^=", "lS": "<<=", "rS": ">>=", "pp": "++", "mm": "--", "cm": ",", "pm": "->*", "pt": "->", "cl": "()",
    "ix": "[]", "qu": "?", "nw": " new", "na": " new[]", "dl": " delete", "da": " delete[]", "aw": " co_await",
}  # fmt: skip


class Cursor:
    """A place in a symbol."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.known: list[Part] = []  # what `S_`, `S0_` stand for
        self.template = Template()

    def takes(self, expected: str) -> bool:
        """Step over the expected characters, if they are next."""
        if not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def needs(self, expected: str) -> None:
        """Step over the expected characters, which must be next."""
        if not self.takes(expected):
            raise UnreadableError

    @property
    def ahead(self) -> str:
        """The next character, or "" at the end."""
        return self.text[self.at : self.at + 1]

    def number(self) -> int:
        """Read decimal digits."""
        start = self.at
        while self.ahead.isdecimal():
            self.at += 1
        return int(self.text[start : self.at])

    def sequence(self, digits: str = "0123456789") -> int:
        """Read `_`, `0_`, `1_`, … as 0, 1, 2."""
        value, is_empty = 0, True
        while not self.takes("_"):
            value = value * len(digits) + digits.index(self.text[self.at])
            self.at, is_empty = self.at + 1, False
        return 0 if is_empty else value + 1

    def until(self, end: str, read: Callable[[], Part]) -> Iterator[Part]:
        """Read one part after the other, up to the end."""
        while not self.takes(end):
            yield read()

    def remember(self, part: Part) -> Part:
        """Note a part that may be referred to later."""
        self.known.append(part)
        return part
