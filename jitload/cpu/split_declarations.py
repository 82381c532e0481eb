"""The tokens of a statement in, the variables that it declares out; of a parameter list, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitload.cpptext.declarations import find_angle, find_closing
from jitload.cpptext.lexer import Token
from jitload.cpu.split_tree import NotUnderstoodError
from jitload.cpu.split_words import ALIGNMENTS, KEYWORDS, QUALIFIERS, TYPES

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OTHER = frozenset("decltype __typeof__ __typeof typeof namespace template using typedef".split())  # noqa: SIM905
_POINTER_WORDS = frozenset({"const", "volatile", "__restrict__", "__restrict", "restrict"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variable:
    """One declarator of a kernel.

    Attributes:
        name: Its name.
        at: The index of its name; -1 for a parameter.
        end: The last index where it can be seen.
        specifiers: The words before the declarators: type, `const`, `__shared__`.
        pointer: The tokens between those and the name.
        dimensions: The tokens from `[` on.
        initializer: The tokens from `=`, `(` or `{` on.
        value: The indices of the first and the last token of the expression that it begins with.
    """

    name: str
    at: int
    end: int
    specifiers: tuple[Token, ...]
    pointer: tuple[Token, ...] = ()
    dimensions: tuple[Token, ...] = ()
    initializer: tuple[Token, ...] = ()
    value: tuple[int, int] = (0, -1)

    def says(self, word: str) -> bool:
        """Tell whether a word stands among the specifiers."""
        return any(token.text == word for token in self.specifiers)

    @property
    def is_shared(self) -> bool:
        """Whether the block has it."""
        return self.says("__shared__")

    @property
    def is_reference(self) -> bool:
        """Whether it is another name of something."""
        return any(token.text in ("&", "&&") for token in self.pointer)

    @property
    def is_pointer(self) -> bool:
        """Whether it is an address."""
        return any(token.text == "*" for token in self.pointer) and not self.is_reference

    @property
    def is_builtin(self) -> bool:
        """Whether its type is a number's, a vector's or a pointer."""
        words = [t.text for t in self.specifiers if t.text not in QUALIFIERS and t.text not in ALIGNMENTS]
        return self.is_pointer or all(word in TYPES for word in words)


def read_declaration(code: Sequence[Token], first: int, last: int, end: int) -> tuple[Variable, ...]:
    """Return the variables that a statement declares; none where it is an expression.

    Args:
        code: All tokens of the body.
        first: The statement's first token.
        last: Its `;`, or the last token of what stands in a head.
        end: The last index where the variables can be seen.

    Raises:
        NotUnderstoodError: It is a declaration of another kind.
    """
    texts = [token.text for token in code[first : first + 3]]
    if texts[0] in _OTHER or texts[:2] == ["[", "["] or texts[1:] == ["(", "*"]:
        raise NotUnderstoodError("a declaration that is not read: " + " ".join(texts))
    at = _skip_specifiers(code, first, last)
    if at == first or at > last:
        return ()
    is_certain = any(t.text in QUALIFIERS or t.text in TYPES or t.text == "auto" for t in code[first:at])
    found: list[Variable] = []
    specifiers = tuple(code[first:at])
    while True:
        start = at
        while at <= last and (code[at].text in ("*", "&", "&&") or code[at].text in _POINTER_WORDS):
            at += 1
        following = code[at + 1].text if at < last else ";"
        is_name = at <= last and code[at].kind == "word" and code[at].text not in KEYWORDS
        if not is_name or following not in ("=", ";", ",", "[", "(", "{"):
            if found or is_certain:
                if not found and following == ";" and at >= last:
                    return ()
                raise NotUnderstoodError("a declaration that is not read: " + " ".join(t.text for t in code[first:at]))
            return ()
        variable, at = _read_declarator(code, (start, at, last), specifiers, end)
        found.append(variable)
        if at > last or code[at].text == ";":
            return tuple(found)
        at += 1


def read_parameter(tokens: Sequence[Token], end: int) -> Variable:
    """Return a kernel's parameter.

    Raises:
        NotUnderstoodError: It is of a kind that is not read.
    """
    default = next((at for at, token in enumerate(tokens) if token.text == "="), len(tokens))
    tokens = tokens[:default]
    words = [token for token in tokens if token.kind == "word"]
    if len(words) < 2 or tokens[-1] is not words[-1] or words[-1].text in KEYWORDS or words[-1].text in TYPES:
        raise NotUnderstoodError("a parameter without a name, or of a type that is not read")
    if any(token.text in ("(", "...", "[") for token in tokens):
        raise NotUnderstoodError("a parameter of a type that is not read")
    at = next((at for at, token in enumerate(tokens) if token.text in ("*", "&")), len(tokens) - 1)
    return Variable(
        name=words[-1].text, at=-1, end=end, specifiers=tuple(tokens[:at]), pointer=tuple(tokens[at : len(tokens) - 1])
    )


def _skip_specifiers(code: Sequence[Token], at: int, last: int) -> int:
    """Return where the declarators begin, if this is a declaration."""
    has_type = False
    while at <= last:
        text = code[at].text
        if text in ALIGNMENTS and at < last and code[at + 1].text == "(":
            at = find_closing(code, at + 1) + 1
        elif text in QUALIFIERS or text in TYPES or text in ("auto", "class", "union", "enum"):
            if text in ("class", "union", "enum") or (text == "struct" and code[at + 1].text == "{"):
                raise NotUnderstoodError("a type of the kernel's own")
            has_type |= text in TYPES or text == "auto"
            at += 1
        elif not has_type and code[at].kind == "word" and text not in KEYWORDS:
            has_type = True
            at = _skip_name(code, at, last)
            if at <= last and code[at].text == "{":
                raise NotUnderstoodError("a type of the kernel's own")
        elif not has_type and text == "::":
            at += 1
        else:
            break
    return at


def _skip_name(code: Sequence[Token], at: int, last: int) -> int:
    """Return what follows a name with namespaces and template arguments."""
    while True:
        at += 1
        if at <= last and code[at].text == "<":
            angle = find_angle(code, at)
            if 0 <= angle <= last:
                at = angle + 1
        if at >= last or code[at].text != "::":
            return at
        at += 1


def _read_declarator(
    code: Sequence[Token], places: tuple[int, int, int], specifiers: tuple[Token, ...], end: int
) -> tuple[Variable, int]:
    """Return the variable, and the index of the `,` or `;` after it."""
    start, name, last = places
    at = name + 1
    while at <= last and code[at].text == "[":
        at = find_closing(code, at) + 1
    dimensions, opening = (name + 1, at), at
    value = (0, -1)
    if at <= last and code[at].text in ("(", "{"):
        at = find_closing(code, at) + 1
        value = (opening + 1, at - 2)
    elif at <= last and code[at].text == "=":
        while at <= last and code[at].text not in (",", ";"):
            at = find_closing(code, at) + 1 if code[at].text in _CLOSING else at + 1
        value = (opening + 1, at - 1)
    if at <= last and code[at].text not in (",", ";"):
        raise NotUnderstoodError(f"the declaration of {code[name].text}")
    found = Variable(
        name=code[name].text,
        at=name,
        end=end,
        specifiers=specifiers,
        pointer=tuple(code[start:name]),
        dimensions=tuple(code[dimensions[0] : dimensions[1]]),
        initializer=tuple(code[opening:at]),
        value=value,
    )
    return found, at
