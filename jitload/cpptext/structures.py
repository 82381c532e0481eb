"""Finds structures and device variables in a source, so that the compiler can be asked for their layouts and types.

The structures and variables are a guess from tokens. The compiler decides what they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jitload.cpptext.lexer import Token, tokenize
from jitload.cpptext.preprocessor import INCLUDES, read_directives, split_directives
from jitload.cpptext.scopes import (
    SPACES,
    declarations_in,
    find_angle,
    find_closing,
    plain_words,
    split_declarations,
    template_end,
)

_TAGS = ("struct", "class")
# In a structure, a declaration with one of these words declares no field. Elsewhere, `_declared_names` ignores the
# variables of such a declaration (except `static` and `extern`), because their addresses might not be constants.
_NOT_A_FIELD = frozenset(
    ("static", "constexpr", "using", "typedef", "friend", "template", "enum", "operator", "public", "private",
     "protected", "extern", "__shared__")
)  # fmt: skip
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
        is_complete: Whether it certainly has no data members besides `fields`.
    """

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]
    is_template: bool
    is_complete: bool


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
    macros = _declaring_macros((*pieces, *others))
    declared: list[Structure | Alias | str] = []
    for text in pieces:
        if any(word in text for word in (*_TAGS, *SPACES)):
            declared += _walk(_Scope(macros), _code(text))
    for text in others:
        if any(word in text for word in _TAGS):
            declared += (s for s in _walk(_Scope(macros), _code(text)) if not isinstance(s, str))
    structures: dict[str, Structure] = {}
    for structure in declared:
        # If a name has several definitions, only the compiler knows which one it reads.
        if isinstance(structure, Structure):
            is_other = structures.get(structure.name, structure) != structure
            structures[structure.name] = structure._replace(is_complete=structure.is_complete and not is_other)
    aliases = tuple(s for s in declared if isinstance(s, Alias))
    variables = dict.fromkeys(name for name in declared if isinstance(name, str))
    return Declarations(tuple(structures.values()), aliases, tuple(variables))


def _code(text: str) -> list[Token]:
    """Return the tokens outside directives, and the `#` of each `#include` between braces."""
    code: list[Token] = []
    for directive, run in split_directives(tokenize(text)):
        if not directive:
            code += run
        elif directive.name in INCLUDES and sum((t.text == "{") - (t.text == "}") for t in code) > 0:
            code.append(run[0])
    return code


def _declaring_macros(texts: Sequence[str]) -> frozenset[str]:
    """Return the macros that may declare members.

    Such a macro has parameters, contains `;`, `,` or `{`, or uses another macro that may declare members.
    """
    bodies: dict[str, set[str]] = {}
    for text in texts:
        for directive in read_directives(text) if "define" in text else ():
            if directive.name == "define" and (match := re.match(r"(\w+)(\(?)(.*)", directive.text, re.DOTALL)):
                bodies.setdefault(match[1], set()).update(re.findall(r"\w+|[;,{]", match[3]), match[2])
    declaring = {name for name, words in bodies.items() if not words.isdisjoint("(;,{")}
    while more := {name for name in bodies if name not in declaring and not declaring.isdisjoint(bodies[name])}:
        declaring |= more
    return frozenset(declaring)


class _Scope(NamedTuple):
    """The context of declarations.

    Attributes:
        macros: The macros that may declare members.
        names: The enclosing namespaces and classes.
        is_template: Whether an enclosing class is a template.
    """

    macros: frozenset[str]
    names: tuple[str, ...] = ()
    is_template: bool = False


def _walk(scope: _Scope, code: Sequence[Token]) -> Iterator[Structure | Alias | str]:
    """Yield what a namespace or a class declares: structures, aliases, and device variables by name."""
    for names, tokens, _ in declarations_in(code, scope.names):
        scope = scope._replace(names=names)
        end = template_end(tokens)
        declaration = tokens[end:]
        words = [token.text for token in declaration]
        opening = words.index("{") if "{" in words else -1
        head = words[: opening if opening >= 0 else len(words)]
        body = declaration[opening + 1 : find_closing(declaration, opening)] if opening >= 0 else ()
        if head[:1] == ["using"] and head[2:3] == ["="]:
            yield Alias(head[1], type_name(" ".join(head[3:])))
        elif head[:1] == ["typedef"] and opening < 0:
            yield Alias(head[-1], type_name(" ".join(head[1:-1])))
        elif any(space in head for space in SPACES):
            yield from ("::".join((*scope.names, name)) for name in _declared_names(declaration))
        elif structure := _structure(declaration, head, body, scope):
            structure = structure._replace(is_template=end > 0 or scope.is_template)
            yield structure
            members = _Scope(scope.macros, tuple(structure.name.split("::")), structure.is_template)
            yield from (s for s in _walk(members, body) if not isinstance(s, str))


def _structure(
    declaration: Sequence[Token], head: Sequence[str], body: Sequence[Token], scope: _Scope
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
    members = _members(body, is_public=words[tag] != "class", scope=scope, owner=names[0])
    return Structure(
        name="::".join((*scope.names, names[-1])),
        aliases=tuple(names),
        fields=tuple(member for member in members if member.name),
        is_template=False,
        is_complete=_UNKNOWN not in members and following == [],
    )


_UNKNOWN = Field("", "")  # stands for members whose names are not known


def _members(body: Sequence[Token], *, is_public: bool, scope: _Scope, owner: str = "") -> list[Field]:
    """Return the public members of a class, and `_UNKNOWN` if there may be other members."""
    fields: list[Field] = []
    for member in split_declarations(body):
        words = [token.text for token in member]
        if words[:1] and words[0] in _ACCESS:
            is_public = words[0] == "public"
        elif words:
            added = _member(member, scope, owner)
            fields += added if is_public or not added else [_UNKNOWN]
    return fields


def _member(member: Sequence[Token], scope: _Scope, owner: str) -> list[Field]:
    """Return the members that a declaration in a class declares."""
    words = [token.text for token in member]
    opening = words.index("{") if "{" in words else len(words)
    head = plain_words(words[:opening])
    is_unnamed = head[-1:] in (["struct"], ["union"])
    if not scope.macros.isdisjoint(words) or "virtual" in words or "#" in words or is_unnamed:
        return [_UNKNOWN]
    if "enum" in head and "(" not in head:
        has_name = opening == len(words) or find_closing(member, opening) < len(words) - 1
        return [_UNKNOWN] if has_name else []
    bare, names = _without_groups(member), _declared_names(member)
    if not names:
        return [] if _declares_no_member(bare, owner) else [_UNKNOWN]
    first = bare[: next((index for index, word in enumerate(bare) if word in (",", "=")), len(bare))]
    fields = [Field(name, type_name(" ".join(first[:-1]))) for name in names]
    return [*fields, _UNKNOWN] if ":" in bare else fields


def _declares_no_member(words: Sequence[str], owner: str) -> bool:
    """Return whether a declaration, in which no field name was read, really declares no field.

    It declares a function, a type or a static member. If in doubt, the result is False.
    """
    if not words or not _NOT_A_FIELD.isdisjoint(words) or words[0] == "static_assert":
        return True
    if not {"struct", "class", "union"}.isdisjoint(words[:1]):
        return len(words) == 2  # `struct Pair;` declares only a type
    opening = words.index("(") if "(" in words else 0
    before, after = words[:opening], words[opening + 1 : opening + 4]
    is_name = bool(before) and re.match(r"[A-Za-z_]", before[-1]) is not None
    is_pointer = after[:1] in (["*"], ["&"]) or after[1:] == ["::", "*"]
    is_function = len(before) > 1 and ":" not in before
    return is_name and not is_pointer and (before[-1] == owner or is_function)


def _declared_names(declaration: Sequence[Token]) -> list[str]:
    """Return the names of the members or variables that a declaration declares, without functions and bit fields."""
    words = _without_groups(declaration)
    if _NOT_A_FIELD & set(words) - ({"static", "extern"} if set(words) & set(SPACES) else set()) or "(" in words:
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

    The definition of a class with no name after its `}` gives [], because it declares no field.
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
