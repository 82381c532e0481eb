"""The parts of a mangled C++ name in, their text out, in the spelling of libstdc++'s demangler."""
# ruff: noqa: D102  what the methods do is said once, in Part

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Substitutions let a name of a few hundred characters stand for a text of any length: what would be longer is `<...>`.
_MAX_ARGUMENTS = 1 << 16
_MAX_TEXT = 1 << 24


class UnreadableError(Exception):
    """The name has a form that is not read here, or stands for a text that nobody would read."""


class Part(ABC):
    """A part of a name; its text has two halves, as a C++ declarator stands inside its type: `void (*` and `)()`."""

    __slots__ = ("_halves",)

    def halves(self, member: int | None = None) -> tuple[str, str]:
        """Return the text before and behind what a declarator would put between.

        Args:
            member: Which member of each parameter pack is meant, within an expansion.
        """
        known: dict[int | None, tuple[str, str]] = getattr(self, "_halves", None) or {}
        if member not in known:
            known[member] = self.write(member)
            if sum(map(len, known[member])) > _MAX_TEXT:
                raise UnreadableError
            self._halves = known
        return known[member]

    def text(self, member: int | None = None) -> str:
        """Return the whole text."""
        return "".join(self.halves(member))

    @abstractmethod
    def write(self, member: int | None) -> tuple[str, str]:
        """Make the text."""

    def packs(self) -> Iterable[int]:
        """Yield the length of each parameter pack that is named in this part and not expanded in it."""
        return ()


@dataclass(slots=True, eq=False)
class Words(Part):
    """Texts and parts one after the other: `ns`, `::`, `scale`."""

    pieces: Sequence[str | Part]
    has_arguments: bool = False  # a template's, at its end
    has_result: bool = True  # whether the symbol of a function template of this name has the type it returns

    def write(self, member: int | None) -> tuple[str, str]:
        return "".join(p if isinstance(p, str) else p.text(member) for p in self.pieces), ""

    def packs(self) -> Iterable[int]:
        return [length for piece in self.pieces if isinstance(piece, Part) for length in piece.packs()]


@dataclass(slots=True, eq=False)
class Row(Part):
    """Parts with commas between them; packs are written out, and an empty one leaves no comma."""

    items: Sequence[Part]

    def write(self, member: int | None) -> tuple[str, str]:
        return ", ".join(text for item in self.items for text in _texts(item, member)), ""

    def packs(self) -> Iterable[int]:
        return [length for item in self.items for length in item.packs()]


@dataclass(slots=True, eq=False)
class Arguments(Row):
    """A template's arguments in their brackets."""

    is_whole: bool = False  # of a function, whose types may be among them

    def write(self, member: int | None) -> tuple[str, str]:
        inner, _ = Row.write(self, member)
        inner = "..." if len(inner) > _MAX_ARGUMENTS and not self.is_whole else inner
        return f"<{inner}{' ' if inner.endswith('>') else ''}>", ""


@dataclass(slots=True, eq=False)
class Expansion(Part):
    """A pattern repeated for each member of the packs in it: `T*...`."""

    pattern: Part

    def write(self, member: int | None) -> tuple[str, str]:
        return ", ".join(_texts(self, member)), ""

    def texts(self) -> list[str]:
        lengths = list(self.pattern.packs())
        if not lengths:
            return [self.pattern.text() + "..."]
        return [self.pattern.text(index) for index in range(min(lengths))]


@dataclass(slots=True, eq=False)
class Template:
    """The template arguments that `T_`, `T0_` stand for; they are known once the name has been read."""

    arguments: Sequence[Part] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TemplateParameter(Part):
    """`T_`: one of the arguments of the template that is being named."""

    template: Template
    index: int

    def argument(self) -> Part:
        if self.index >= len(self.template.arguments):
            raise UnreadableError
        return self.template.arguments[self.index]

    def write(self, member: int | None) -> tuple[str, str]:
        argument = self.argument()
        if isinstance(argument, Pack) and member is not None and member < len(argument.items):
            return argument.items[member].halves()
        return argument.halves()

    def packs(self) -> Iterable[int]:
        argument = self.argument()
        return [len(argument.items)] if isinstance(argument, Pack) else []


@dataclass(slots=True, eq=False)
class Pack(Row):
    """The arguments of a parameter pack."""

    def packs(self) -> Iterable[int]:
        return []


@dataclass(slots=True, eq=False)
class Modified(Part):
    """A type with `*`, `&`, ` const` or ` ns::S::*` behind it."""

    inner: Part
    mark: str

    def write(self, member: int | None) -> tuple[str, str]:
        left, right = self.inner.halves(member)
        mark = self.mark
        if mark in (" const", " volatile", " restrict"):
            if right.startswith("("):  # of a function it is that of its object
                return left, right + mark
            return (left if left.endswith(mark) else left + mark), right
        if mark in ("&", "&&") and left.endswith("&"):  # references to references are one
            return (left[:-1] if left.endswith("&&") and mark == "&" else left), right
        if right.startswith("("):
            return f"{left}({mark.lstrip()}", f"){right}"
        if right.startswith(" ["):
            return f"{left} ({mark.lstrip()}", f"){right}"
        return left + mark, right

    def packs(self) -> Iterable[int]:
        return self.inner.packs()


@dataclass(slots=True, eq=False)
class MemberPointer(Part):
    """`int S::*`, `void (S::*)(int)`."""

    owner: Part
    inner: Part

    def write(self, member: int | None) -> tuple[str, str]:
        return Modified(self.inner, f" {self.owner.text(member)}::*").write(member)

    def packs(self) -> Iterable[int]:
        return [*self.owner.packs(), *self.inner.packs()]


@dataclass(slots=True, eq=False)
class Function(Part):
    """A function's type, `void (float*, int)`, or with a name the whole of it, `void scale<float>(float*, int)`."""

    result: Part | None
    parameters: Row
    suffix: str = ""
    name: str | Part = ""

    def write(self, member: int | None) -> tuple[str, str]:
        name = self.name if isinstance(self.name, str) else self.name.text(member)
        left, right = self.result.halves(member) if self.result else ("", "")
        space = " " if self.result and not right.startswith(")") else ""  # `void (*choose(int))(float)`
        return f"{left}{space}{name}", f"({self.parameters.text(member)}){self.suffix}{right}"

    def packs(self) -> Iterable[int]:
        return [*(self.result.packs() if self.result else ()), *self.parameters.packs()]


@dataclass(slots=True, eq=False)
class Array(Part):
    """`float [4]`."""

    element: Part
    extent: str | Part

    def write(self, member: int | None) -> tuple[str, str]:
        left, right = self.element.halves(member)
        extent = self.extent if isinstance(self.extent, str) else self.extent.text(member)
        return left, f" [{extent}]{right.removeprefix(' ')}"

    def packs(self) -> Iterable[int]:
        return self.element.packs()


def _texts(item: Part, member: int | None) -> list[str]:
    """Return the texts that an item of a list stands for: none, one or several."""
    if isinstance(item, Expansion):
        return item.texts()
    if isinstance(item, TemplateParameter) and member is None and isinstance(item.argument(), Pack):
        item = item.argument()
    if isinstance(item, Pack):
        return [text for one in item.items for text in _texts(one, member)]
    return [item.text(member)]
