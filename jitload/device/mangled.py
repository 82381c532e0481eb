"""A mangled C++ name of any length in, its text out; libstdc++'s demangler takes no more than a thousand characters.

This follows the Itanium C++ ABI, and libstdc++ in the spelling. Of the expressions that it allows among template
arguments, those are read that a compiler leaves in the name of a kernel: constants, addresses, plain operators.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

from jitload.cuda.interruptible import start_with_stack
from jitload.device.mangled_codes import BUILTINS, MARKS, OPERATORS, STANDARD
from jitload.device.mangled_text import (
    Arguments,
    Array,
    Expansion,
    Function,
    MemberPointer,
    Modified,
    Pack,
    Part,
    Row,
    Template,
    TemplateParameter,
    UnreadableError,
    Words,
)
from jitload.device.mangled_values import Values


def read_mangled(symbol: str) -> str | None:
    """Return the readable text of a symbol, or None where it has a form that is not read here.

    Example:
        >>> read_mangled("_Z5scaleIfEvPT_i")
        'void scale<float>(float*, int)'
    """
    if not symbol.startswith("_Z"):
        return None
    octets = symbol.encode("utf-8", "surrogateescape").decode("latin-1")  # lengths in the name count bytes
    try:
        text = _read(octets)
    except RecursionError:
        text = _read_deep(octets)
    return text and text.encode("latin-1").decode("utf-8", "replace")


def _read(symbol: str) -> str | None:
    reader = _Reader(symbol, 2)
    try:
        whole = reader.encoding()
        return whole.text() if reader.at == len(symbol) else None
    except (UnreadableError, IndexError, ValueError):
        return None


class _Reader(Values):
    """Reads one symbol from left to right; each method reads what it is named for."""

    def encoding(self) -> Part:
        """Read a function with its types, or a variable."""
        before, self.template = self.template, Template()
        name, suffix = self.name_and_qualifiers(is_outermost=True)
        if self.ahead in ("", "E", "."):
            self.template = before
            return name
        is_template = isinstance(name, Words) and name.has_arguments and name.has_result
        result = self.type() if is_template else None
        whole = Function(result, self.parameters(), suffix, name)
        self.template = before
        return whole

    def parameters(self) -> Row:
        """Read the types of parameters, up to the end of the function."""
        types: list[Part] = []
        while self.ahead not in ("", "E", ".") and not self.text.startswith(("RE", "OE"), self.at):
            types.append(self.type())
        is_empty = len(types) == 1 and isinstance(types[0], Words) and types[0].pieces == ("void",)
        return Row([] if is_empty else types)

    def name_and_qualifiers(self, *, is_outermost: bool = False) -> tuple[Part, str]:
        """Read a name, and the qualifiers of the member function that it may name."""
        if self.takes("N"):
            suffix = ""
            while self.ahead and self.ahead in "rVK":
                suffix = MARKS[self.text[self.at]] + suffix
                self.at += 1
            suffix += next((f" {MARKS[mark]}" for mark in "RO" if self.takes(mark)), "")
            return self.nested(is_outermost=is_outermost), suffix
        if self.takes("Z"):
            return self.local(), ""
        return self.unscoped(is_outermost=is_outermost), ""

    def name(self) -> Part:
        return self.name_and_qualifiers()[0]

    def unscoped(self, *, is_outermost: bool) -> Part:
        if self.ahead == "S" and self.text[self.at + 1] != "t":
            name: Part = self.substitution()
        else:
            is_standard = self.takes("St")
            name = self.unqualified()
            name = Words(("std::", name)) if is_standard else name
            if self.ahead == "I":
                self.remember(name)
        return self.with_arguments(name, is_outermost=is_outermost) if self.ahead == "I" else name

    def nested(self, *, is_outermost: bool) -> Part:
        """Read `2ns5scaleIfEE`; everything before the last part is remembered."""
        is_known = self.ahead == "S"
        name = last = self.first_of_nested()
        while not self.takes("E"):
            if not is_known:
                self.remember(name)
            is_known = False
            if self.ahead == "I":
                name = self.with_arguments(name, is_outermost=is_outermost)
            elif self.ahead in ("C", "D"):
                name = Words((name, "::", *self.special_member(last)), has_result=False)
            else:
                last = self.unqualified()
                name = Words((name, "::", last), has_result=not isinstance(last, Words) or last.has_result)
        return name

    def first_of_nested(self) -> Part:
        if self.takes("St"):
            return Words(("std",))
        if self.ahead == "S":
            return self.substitution()
        if self.ahead == "T":
            return self.template_parameter()
        return self.decltype() if self.ahead == "D" else self.unqualified()

    def special_member(self, owner: Part) -> tuple[str | Part, ...]:
        """Read a constructor or destructor, named like its class."""
        kind, number = self.text[self.at], self.text[self.at + 1]
        if number not in "0123456789":
            raise UnreadableError
        self.at += 2
        return ("~", owner) if kind == "D" else (owner,)

    def with_arguments(self, name: Part, *, is_outermost: bool = False) -> Part:
        arguments = self.template_arguments()
        if is_outermost:
            self.template.arguments = arguments
        has_result = not isinstance(name, Words) or name.has_result
        return Words((name, Arguments(arguments, is_outermost)), has_arguments=True, has_result=has_result)

    def local(self) -> Part:
        """Read what is declared inside a function."""
        function = self.encoding()
        self.needs("E")
        name = self.name()
        self.discriminator()
        has_arguments = isinstance(name, Words) and name.has_arguments
        return Words((function, "::", name), has_arguments=has_arguments)

    def discriminator(self) -> None:
        if self.takes("__"):
            self.number()
            self.needs("_")
        elif self.takes("_"):
            self.at += 1

    def unqualified(self) -> Part:
        self.takes("L")  # internal linkage
        if self.ahead.isdecimal():
            name: Part = Words((self.source_name(),))
        elif self.ahead == "U":
            name = self.unnamed()
        else:
            name = self.operator()
        while self.takes("B"):
            name = Words((name, f"[abi:{self.source_name()}]"))
        return name

    def source_name(self) -> str:
        length = self.number()
        start, self.at = self.at, self.at + length
        if self.at > len(self.text) or not length:
            raise UnreadableError
        word = self.text[start : self.at]
        is_anonymous = word.startswith(("_GLOBAL_.N", "_GLOBAL__N", "_GLOBAL_$N"))
        return "(anonymous namespace)" if is_anonymous else word

    def unnamed(self) -> Part:
        """Read a closure or a type without a name."""
        if self.takes("Ut"):
            return self.remember(Words((f"{{unnamed type#{self.sequence() + 1}}}",)))
        self.needs("Ul")
        parameters = self.parameters()
        self.needs("E")
        return self.remember(Words(("{lambda(", parameters, f")#{self.sequence() + 1}}}")))

    def operator(self) -> Part:
        if self.takes("cv"):
            return Words(("operator ", self.type()), has_result=False)
        code = self.text[self.at : self.at + 2]
        if code not in OPERATORS:
            raise UnreadableError
        self.at += 2
        return Words((f"operator{OPERATORS[code]}",))

    def substitution(self) -> Part:
        code = self.text[self.at : self.at + 2]
        if code in STANDARD:
            self.at += 2
            return Words((STANDARD[code],))
        self.needs("S")
        return self.known[self.sequence("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")]

    def template_parameter(self) -> Part:
        self.needs("T")
        return TemplateParameter(self.template, self.sequence())

    def template_arguments(self) -> list[Part]:
        self.needs("I")
        return list(self.until("E", self.template_argument))

    def template_argument(self) -> Part:
        if self.takes("J"):
            return Pack(list(self.until("E", self.template_argument)))
        if self.takes("X"):
            value = self.expression()
            self.needs("E")
            return value
        return self.literal() if self.ahead == "L" else self.type()

    def type(self) -> Part:
        """Read a type; all but the built-in ones are remembered."""
        mark = self.ahead
        if mark in "rVK" and mark:
            return self.remember(self.qualified())
        if mark in MARKS:
            self.at += 1
            return self.remember(Modified(self.type(), MARKS[mark]))
        for code in (mark, self.text[self.at : self.at + 2]):
            if code in BUILTINS:
                self.at += len(code)
                return Words((BUILTINS[code],))
        if mark == "S":
            return self.substituted()
        return self.remember(self.compound())

    def qualified(self) -> Part:
        """Read `VKi`: the qualifiers are remembered as one."""
        marks = ""
        while self.ahead in ("r", "V", "K"):
            marks, self.at = self.ahead + marks, self.at + 1
        type_ = self.type()
        for mark in marks:
            type_ = Modified(type_, MARKS[mark])
        return type_

    def substituted(self) -> Part:
        code = self.text[self.at : self.at + 2]
        if code == "St":
            return self.remember(self.name())
        part = self.substitution()
        return self.remember(self.with_arguments(part)) if self.ahead == "I" else part

    def compound(self) -> Part:
        mark = self.ahead
        if mark == "T":
            part = self.template_parameter()
            return self.with_arguments(self.remember(part)) if self.ahead == "I" else part
        if mark == "A":
            return self.array()
        if self.takes("M"):
            return MemberPointer(self.type(), self.type())
        if self.takes("u"):
            return Words((self.source_name(),))
        if mark == "F" or self.text.startswith(("Do", "Dx"), self.at):
            return self.function()
        return self.special() if mark == "D" else self.name()

    def array(self) -> Part:
        self.needs("A")
        if self.ahead == "_":
            extent: str | Part = ""
        else:
            extent = str(self.number()) if self.ahead.isdecimal() else self.expression()
        self.needs("_")
        return Array(self.type(), extent)

    def function(self) -> Part:
        suffix = " noexcept" if self.takes("Do") else ""
        self.takes("Dx")
        self.needs("F")
        self.takes("Y")
        result, parameters = self.type(), self.parameters()
        suffix = next((f" {MARKS[mark]}" for mark in "RO" if self.takes(mark)), "") + suffix
        self.needs("E")
        return Function(result, parameters, suffix)

    def special(self) -> Part:
        """Read the types that begin with `D`."""
        if self.takes("Dp"):
            return Expansion(self.type())
        if self.takes("DF"):
            bits = self.number()
            if self.takes("b"):
                return Words((f"std::bfloat{bits}_t",))
            self.needs("_")
            return Words((f"_Float{bits}",))
        if self.takes("Dv"):
            count = self.number()
            self.needs("_")
            return Words((self.type(), f" __vector({count})"))
        return self.decltype()

    def decltype(self) -> Part:
        if not self.takes("DT"):
            self.needs("Dt")
        value = self.expression()
        self.needs("E")
        return Words(("decltype (", value, ")"))


# ---- templates nested hundreds of times

_DEEP_STACK, _DEEP_LIMIT = 512 << 20, 60_000
_deep_lock = threading.Lock()


def _read_deep(symbol: str) -> str | None:
    """Read a name whose templates are nested too deep for Python's usual limit, on a thread with room for it."""
    texts: list[str] = []

    def read() -> None:
        with suppress(RecursionError):
            texts.append(_read(symbol) or "")

    with _deep_lock:
        limit = sys.getrecursionlimit()
        thread = threading.Thread(target=read, name="jitload-names")
        try:
            sys.setrecursionlimit(_DEEP_LIMIT)
            if start_with_stack(thread, _DEEP_STACK):
                thread.join()
        finally:
            sys.setrecursionlimit(limit)
    return "".join(texts) or None
