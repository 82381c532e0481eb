"""Finds structures and device variables in a source, so that the compiler can be asked for their layouts and types.

The structures and variables are a guess from tokens. The compiler decides what they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jitload.cpptext.declarations import read_variables
from jitload.cpptext.lexer import Token, tokenize
from jitload.cpptext.scopes import (
    SPACES,
    body_start,
    declarations_in,
    find_closing,
    plain_words,
    split_declarations,
    template_end,
)

_TAGS = ("struct", "class")
# A declaration with one of these words declares no field. It declares no device variable either (except with `static`
# or `extern`), because the variable's address might not be a constant.
_NOT_A_FIELD = frozenset((
    "static", "constexpr", "using", "typedef", "friend", "template", "enum", "operator", "extern", "auto", "__shared__",
))  # fmt: skip
_ACCESS = ("public", "private", "protected")
_NOT_A_TYPE_NAME = frozenset((*_TAGS, "union", "enum", "typename", "const", "volatile", "__grid_constant__"))


class Field(NamedTuple):
    """A member of a structure.

    Attributes:
        name: Its name.
        type: The unqualified name of its type, or "" for pointers.
    """

    name: str
    type: str


class Structure(NamedTuple):
    """The definition of a class. Unions are not read.

    Attributes:
        name: Its name with namespaces, such as `ns::Params`.
        aliases: Its unqualified names: the tag, and the name given by a typedef.
        fields: Its own public members, without those of its bases.
        is_template: Whether it is a template, or a member of one.
    """

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]
    is_template: bool


class Alias(NamedTuple):
    """Another name for a type, from `using name = …;` or a typedef. `type` is the unqualified name of that type."""

    name: str
    type: str


class Declarations(NamedTuple):
    """The structures, type aliases and device variables of a source. `variables` has the variables' qualified names."""

    structures: tuple[Structure, ...]
    aliases: tuple[Alias, ...]
    variables: tuple[str, ...]

    def structures_named(self, name: str) -> tuple[Structure, ...]:
        """Return the structures that an unqualified name may stand for."""
        names, count = {name}, 0
        while count < len(names):
            count = len(names)
            names |= {alias.type for alias in self.aliases if alias.name in names}
        return tuple(s for s in self.structures if not names.isdisjoint(s.aliases))


def type_name(text: str) -> str:
    """Return the unqualified name in the text of a type, or "" for a pointer.

    Example:
        >>> type_name("const ns::Box<float>&")
        'Box'
    """
    words = re.findall(r"\w+|\*", re.sub(r"<.*>", " ", text, flags=re.DOTALL))
    names = [word for word in words if word not in _NOT_A_TYPE_NAME]
    return names[-1] if names and "*" not in words else ""


# Patterns for a first look at a text, because reading its tokens takes milliseconds. They are compiled at their first
# use, because a cache hit with C++ imports this module but does not need them.
_TYPE_NAME = (
    r"\b(?:struct|class|union)\s+(?:\w+\s*\([^)]*\)+\s*)*(\w+)|\}\s*(\w+)\s*;"
    r"|\busing\s+(\w+)\s*=|\btypedef\b[^;{}]*?(\w+)\s*;"
)
_VARIABLE = r"\b__(?:device|constant|managed)__(?:[^(){};=\[]|\b(?:__align__|alignas)\s*\([^)]*\))*[;=\[{]"


def may_declare(text: str, structures: frozenset[str]) -> bool:
    """Return whether a text may declare one of these structures."""
    names = {name for match in re.findall(_TYPE_NAME, text) for name in match}
    return not names.isdisjoint(structures)


def declares_variables(text: str) -> bool:
    """Return whether a text may declare a device variable."""
    return any(space in text for space in SPACES) and re.search(_VARIABLE, text) is not None


@functools.lru_cache(maxsize=8)
def find_declarations(pieces: tuple[str, ...], others: tuple[str, ...] = ()) -> Declarations:
    """Return the structures, type aliases and device variables in a source's texts, `pieces`.

    Structures and type aliases in `others` are returned, too, but not the device variables there.

    Example:
        >>> find_declarations(("namespace ns { struct Pair { float a; int b; }; }",)).structures[0].name
        'ns::Pair'
    """
    declared = [entry for text in pieces if any(word in text for word in (*_TAGS, *SPACES)) for entry in _read(text)]
    in_others = (entry for text in others if any(word in text for word in _TAGS) for entry in _read(text))
    declared += (entry for entry in in_others if not isinstance(entry, str))
    structures = {entry.name: entry for entry in declared if isinstance(entry, Structure)}
    aliases = tuple(entry for entry in declared if isinstance(entry, Alias))
    variables = dict.fromkeys(name for name in declared if isinstance(name, str))
    return Declarations(tuple(structures.values()), aliases, tuple(variables))


def _read(text: str) -> Iterator[Structure | Alias | str]:
    return _walk([token for token in tokenize(text) if not token.in_directive])


def _walk(
    code: Sequence[Token], scope: tuple[str, ...] = (), *, is_template: bool = False
) -> Iterator[Structure | Alias | str]:
    """Yield what a namespace or a class declares: structures, aliases, and device variables by name.

    `scope` are the enclosing namespaces and classes. `is_template` says whether an enclosing class is a template.
    """
    for names, tokens, _ in declarations_in(code, scope):
        declaration = tokens[template_end(tokens) :]
        opening = body_start(declaration)
        head = [token.text for token in declaration[:opening]]
        body = () if opening is None else declaration[opening + 1 : find_closing(declaration, opening)]
        if head[:1] == ["using"] and head[2:3] == ["="]:
            yield Alias(head[1], type_name(" ".join(head[3:])))
        elif head[:1] == ["typedef"] and opening is None:
            yield Alias(head[-1], type_name(" ".join(head[1:-1])))
        elif any(space in head for space in SPACES):
            if (_NOT_A_FIELD - {"static", "extern"}).isdisjoint(head):
                yield from ("::".join((*names, name)) for _, name in read_variables(declaration))
        elif structure := _structure(declaration, head, body, names):
            structure = structure._replace(is_template=len(declaration) < len(tokens) or is_template)
            yield structure
            members = _walk(body, tuple(structure.name.split("::")), is_template=structure.is_template)
            yield from (entry for entry in members if not isinstance(entry, str))


def _structure(
    declaration: Sequence[Token], head: Sequence[str], body: Sequence[Token], scope: Sequence[str]
) -> Structure | None:
    """Return the class that a declaration defines; None for other declarations."""
    words = [word for word in plain_words(head) if word != "final"]
    tag = next((index for index, word in enumerate(words) if word in _TAGS), -1)
    names, following = words[tag + 1 : tag + 2], words[tag + 2 : tag + 3]
    if not body or tag < 0 or not {"enum", "(", "="}.isdisjoint(words) or following not in ([], [":"], ["<"]):
        return None
    names = [name for name in names if re.match(r"[A-Za-z_]", name)]
    names += [declaration[-1].text] if "typedef" in words and re.fullmatch(r"\w+", declaration[-1].text) else []
    if not names:
        return None
    fields = _fields(body, is_public=words[tag] != "class")
    return Structure("::".join((*scope, names[-1])), tuple(names), tuple(fields), is_template=False)


def _fields(body: Sequence[Token], *, is_public: bool) -> Iterator[Field]:
    """Yield the public members of a class."""
    for member in split_declarations(body):
        words = [token.text for token in member]
        if words[:1] and words[0] in _ACCESS:
            is_public = words[0] == "public"
        elif is_public and _NOT_A_FIELD.isdisjoint(words[: words.index("{") if "{" in words else len(words)]):
            yield from (Field(name, type_name(type_)) for type_, name in read_variables(member))
