"""Finds structures and device variables in a source, so that the compiler can be asked for their layouts and types.

As with kernels, this only suggests what to ask for. The compiler decides.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jitload.cpptext.declarations import find_angle, find_closing
from jitload.cpptext.lexer import Token, code_tokens
from jitload.cpptext.preprocessor import split_directives

_TAGS = ("struct", "class")
_SPACES = ("__device__", "__constant__", "__managed__")
# A member or a variable with one of these words is not a field, or its address is not a constant.
_NOT_A_FIELD = frozenset(
    ("static", "constexpr", "using", "typedef", "friend", "template", "enum", "operator", "public", "private",
     "protected", "extern", "__shared__")
)  # fmt: skip


class Structure(NamedTuple):
    """The definition of a class that is not a template.

    Attributes:
        name: Its name with namespaces, `ns::Params`.
        aliases: Its unqualified names: the tag, and the name that a typedef gives it.
        fields: The names of its public members.
        words: The words in its definition, among them the names of its members' types.
    """

    name: str
    aliases: tuple[str, ...]
    fields: tuple[str, ...]
    words: frozenset[str]


class Alias(NamedTuple):
    """Another name for a type, `using name = …;`, with the words of that type."""

    name: str
    words: frozenset[str]


class Declarations(NamedTuple):
    """The structures of a source, other names of types, and the names of its device variables with their namespaces."""

    structures: tuple[Structure, ...]
    aliases: tuple[Alias, ...]
    variables: tuple[str, ...]

    def structures_for(self, words: frozenset[str]) -> tuple[Structure, ...]:
        """Return the structures with these names, and those that they have as members."""
        while True:
            chosen = tuple(s for s in self.structures if not words.isdisjoint(s.aliases))
            targets = (alias.words for alias in self.aliases if alias.name in words)
            reached = words.union(*(structure.words for structure in chosen), *targets)
            if reached == words:
                return chosen
            words = reached


# A first look at a text, because reading its tokens takes milliseconds.
_TYPE_NAME = re.compile(
    r"\b(?:struct|class)\s+(?:\w+\s*\([^)]*\)\s*)*(\w+)|\}\s*(\w+)\s*;"
    r"|\busing\s+(\w+)\s*=|\btypedef\b[^;{}]*?(\w+)\s*;"
)
_VARIABLE = re.compile(r"\b__(?:device|constant|managed)__(?:[^(){};=\[]|\b(?:__align__|alignas)\s*\([^)]*\))*[;=\[{]")


def may_declare(text: str, structures: frozenset[str]) -> bool:
    """Return whether a text may declare one of these structures, or a device variable."""
    names = {name for match in _TYPE_NAME.findall(text) for name in match}
    return not names.isdisjoint(structures) or _VARIABLE.search(text) is not None


@functools.lru_cache(maxsize=8)
def find_declarations(pieces: tuple[str, ...]) -> Declarations:
    """Find the structures and the device variables in the pieces of a source.

    Example:
        >>> find_declarations(("namespace ns { struct Pair { float a; int b; }; }",)).structures[0].fields
        ('a', 'b')
    """
    declared: list[Structure | Alias | str] = []
    for text in pieces:
        if any(word in text for word in (*_TAGS, *_SPACES)):
            runs = split_directives(code_tokens(text))
            declared += _walk([token for directive, run in runs if not directive for token in run], ())
    structures = {s.name: s for s in declared if isinstance(s, Structure)}
    aliases = tuple(s for s in declared if isinstance(s, Alias))
    variables = dict.fromkeys(name for name in declared if isinstance(name, str))
    return Declarations(tuple(structures.values()), aliases, tuple(variables))


def _walk(code: Sequence[Token], namespaces: tuple[str, ...]) -> Iterator[Structure | Alias | str]:
    """Yield the structures and aliases that a namespace or a class declares, and the names of the variables."""
    for declaration in split_declarations(code):
        words = [token.text for token in declaration]
        opening = words.index("{") if "{" in words else -1
        head = words[: opening if opening >= 0 else len(words)]
        body = declaration[opening + 1 : find_closing(declaration, opening)] if opening >= 0 else ()
        if "namespace" in head:
            names = [word for word in head[head.index("namespace") + 1 :] if re.match(r"[A-Za-z_]", word)]
            yield from _walk(body, (*namespaces, *(name for name in names if name not in ("inline", "__attribute__"))))
        elif head[:1] == ["extern"] and body and len(head) == 2:
            yield from _walk(body, namespaces)
        elif head[:1] == ["using"] and head[2:3] == ["="]:
            yield Alias(head[1], frozenset(head[3:]))
        elif head[:1] == ["typedef"] and opening < 0:
            yield Alias(head[-1], frozenset(head[1:-1]))
        elif any(space in head for space in _SPACES):
            yield from ("::".join((*namespaces, name)) for name in _declared_names(declaration))
        elif structure := _structure(declaration, head, body, namespaces):
            yield structure
            yield from (s for s in _walk(body, (structure.name,)) if not isinstance(s, str))


def split_declarations(code: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Split at each `;`, and behind each `}` that ends a function or a namespace."""
    start = index = 0
    while index < len(code):
        text = code[index].text
        end = find_closing(code, index) if text in ("{", "(", "[") else index
        index = (end if end >= 0 else len(code)) + 1
        words = {token.text for token in code[start:index]} if text == "{" else set()
        is_open = words & {*_TAGS, "union", "enum", "=", *_SPACES} and "namespace" not in words and ")" not in words
        if text == ";" or (text == "{" and not is_open):
            yield code[start : index - (text == ";")]
            start = index
        elif text == ":" and code[start].text in ("public", "private", "protected"):
            yield code[start:index]
            start = index


def _plain(words: Sequence[str]) -> list[str]:
    """Return the words without attributes and their arguments, such as `alignas(16)`."""
    text = re.sub(r"(?:alignas|__align__|__attribute__|__builtin_align__|__launch_bounds__) \( .*? \)(?: \))?", "",
                  " ".join(words))  # fmt: skip
    return text.split()


def _structure(
    declaration: Sequence[Token], head: Sequence[str], body: Sequence[Token], namespaces: tuple[str, ...]
) -> Structure | None:
    if not body or set(head).isdisjoint(_TAGS) or not {"template", "enum", "("}.isdisjoint(_plain(head)):
        return None
    tag = next(index for index, word in enumerate(_plain(head)) if word in _TAGS)
    names = _plain(head)[tag + 1 : tag + 2]
    if "typedef" in head and re.fullmatch(r"\w+", declaration[-1].text):
        names = [*names, declaration[-1].text]
    if not names:
        return None
    fields: list[str] = []
    is_public = "class" not in head
    for member in split_declarations(body):
        access = member[0].text if member else ""
        if access in ("public", "private", "protected"):
            is_public = access == "public"
        elif is_public:
            fields += _declared_names(member)
    words = frozenset(token.text for token in body)
    return Structure("::".join((*namespaces, names[-1])), tuple(names), tuple(fields), words)


def _declared_names(declaration: Sequence[Token]) -> list[str]:
    """Return the names that a member or a variable declaration declares; none for functions and bit fields."""
    words = _without_groups(declaration)
    if _NOT_A_FIELD & set(words) - ({"static", "extern"} if set(words) & set(_SPACES) else set()) or "(" in words:
        return []
    names: list[str] = []
    for text in " ".join(words).split(","):
        declarator = text.partition("=")[0].split()
        is_name = declarator and re.fullmatch(r"[A-Za-z_]\w*", declarator[-1]) and ":" not in declarator
        is_type_alone = not names and len(declarator) < 2
        names += [declarator[-1]] if is_name and not is_type_alone else []
    return names


def _without_groups(declaration: Sequence[Token]) -> list[str]:
    """Return the words of a declaration without attributes, literals, template arguments, array bounds and braces.

    The definition of an unnamed or nested class without a declarator declares no field, so nothing is left of it.
    """
    words: list[str] = []
    index = 0
    while index < len(declaration):
        text, end = declaration[index].text, index
        following = declaration[index + 1].text if index + 1 < len(declaration) else ""
        if text in ("alignas", "__align__", "__attribute__") and following == "(":
            end = find_closing(declaration, index + 1)
        elif text == "<":
            end = find_angle(declaration, index)
        elif text in ("[", "{"):
            end = find_closing(declaration, index)
            is_class = text == "{" and not {*_TAGS, "union"}.isdisjoint(words)
            if is_class and end + 1 == len(declaration):
                return []
        elif declaration[index].kind != "literal":
            words.append(text)
        index = max(end, index) + 1
    return words
