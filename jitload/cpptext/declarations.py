"""Find the functions in C++ text that look like kernels, and the types and names of their parameters.

The functions are a guess from tokens. The compiler decides which of them are kernels, and what the types are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from jitload.candidate import Candidate
from jitload.cpptext.lexer import CLOSING, Token, tokenize
from jitload.cpptext.preprocessor import split_directives
from jitload.cpptext.scopes import declarations_in, find_angle, find_closing, split_branches
from jitload.expressions.parse import python_name

# ---- kernels -------------------------------------------------------------------------------------------------------

# Words that may stand before `(` in a declaration without being the name of what is declared.
_CUDA_ATTRIBUTES = ("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__align__")
_ATTRIBUTES = ("__attribute__", "__attribute", "__declspec", "alignas", "decltype", "noexcept", "requires", "explicit")
_NOT_A_FUNCTION = frozenset({*_CUDA_ATTRIBUTES, *_ATTRIBUTES, "void"})


@functools.lru_cache(maxsize=8)  # called before the compilation and once for each architecture
def find_candidates(pieces: tuple[str, ...]) -> tuple[Candidate, ...]:
    """Return the functions in a source's texts that look like kernels, that is, `__global__` functions.

    Comments, strings, preprocessor directives and explicit instantiations do not count. A kernel that is declared and
    later defined is returned once. If the definition leaves a parameter unnamed, the declaration's name is used.

    Example:
        >>> find_candidates(("namespace ns { __global__ void scale(float* x, int n) {} }",))[0].name
        'ns::scale'
    """
    candidates: dict[tuple[str, bool, tuple[str, ...]], Candidate] = {}
    for number, text in enumerate(pieces):
        if "__global__" not in text and "\\\n" not in text and "\\\r" not in text:
            continue
        for declared in _kernels_in(tokenize(text), number):
            key = (declared.name, declared.is_template, tuple(map(_without_top_const, declared.types)))
            candidates[key] = _merge(candidates[key], declared) if key in candidates else declared
    return tuple(candidates.values())


def find_unambiguous(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the functions that a name alone identifies: those that are neither templates nor overloaded."""
    names = [candidate.name for candidate in candidates]
    return tuple(c for c in candidates if not c.is_template and names.count(c.name) == 1)


def _kernels_in(tokens: Sequence[Token], piece: int) -> Iterator[Candidate]:
    """Yield each function that looks like a kernel."""
    code, left_out = split_branches(split_directives(tokens))
    kernels = [*_declared_kernels(code)]
    # A branch that is left out usually declares the same kernels in another way, in the same namespaces.
    scopes = {declarator.name: namespaces for namespaces, _, declarator in kernels}
    others = (kernel for run in left_out for kernel in _declared_kernels(run))
    kernels += [(scopes.get(kernel[2].name, ()), *kernel[1:]) for kernel in others]
    for namespaces, declaration, declarator in kernels:
        yield make_candidate(declaration, declarator, namespaces, piece)


def _declared_kernels(code: Sequence[Token]) -> Iterator[tuple[tuple[str, ...], Sequence[Token], Declarator]]:
    """Yield (namespaces, declaration, declarator) for each function that looks like a kernel.

    Explicit instantiations and friend declarations do not count.
    """
    for namespaces, declaration, head in declarations_in(code):
        words = [token.text for token in head]
        before = words[: words.index("__global__")] if "__global__" in words else words
        instantiates = any(first == "template" and second != "<" for first, second in pairwise([*before, ""]))
        declarator = find_declarator(declaration, len(before) + 1) if before is not words else None
        if declarator and not instantiates and "friend" not in before:
            yield namespaces, declaration, declarator


def make_candidate(
    declaration: Sequence[Token], declarator: Declarator, namespaces: Iterable[str], piece: int = 0
) -> Candidate:
    """Return the function that a declarator of a declaration names. `piece` is the index of the text."""
    head = [token.text for token in declaration[: declarator.name_index]]
    is_template = any(head[i : i + 2] == ["template", "<"] and head[i + 2 : i + 3] != [">"] for i in range(len(head)))
    parameters = read_parameters(declaration[declarator.open + 1 : declarator.close])
    is_template = is_template or any(re.search(r"\bauto\b", type_) for type_, _ in parameters)
    return Candidate(
        name="::".join([*namespaces, declarator.name]),
        is_template=is_template,
        parameters=tuple(name for _, name in parameters),
        types=tuple(type_ for type_, _ in parameters),
        piece=piece,
        line=declaration[declarator.name_index].line,
        is_definition=declarator.is_definition,
    )


class Declarator(NamedTuple):
    """A function's name, with the indices of three tokens: the name, `(` and `)`.

    `is_definition` says whether a body follows.
    """

    name: str
    name_index: int
    open: int
    close: int
    is_definition: bool


def find_declarator(code: Sequence[Token], index: int) -> Declarator | None:
    """Return the declarator of the function that is declared from `index` on, or None for other declarations.

    The declarator is the last `name(…)` before the body. Attributes such as `__launch_bounds__(…)` do not count.
    """
    last: tuple[int, int, int] | None = None  # the indices of the name, its `(` and its `)`
    while index < len(code) and code[index].text not in (";", "{", "}", "=", "->", "requires", "__global__"):
        token, end = code[index], index
        opening = _find_parameters(code, index)
        if token.kind == "word" and opening:
            end = find_closing(code, opening)
            if end < 0 or (code[end + 1 : end + 2] and code[end + 1].text == "(" and token.text not in _NOT_A_FUNCTION):
                # The parenthesis is never closed, or a macro makes the function's name, as in `NAME(k)(float* x)`.
                return None
            last = last if token.text in _NOT_A_FUNCTION else (index, opening, end)
        elif token.text == "[":
            end = max(find_closing(code, index), index)
        index = end + 1
    if last is None:
        return None
    terminator = next((token.text for token in code[index:] if token.text in (";", "{")), ";")
    name_index, opening, closing = last
    return Declarator(_qualified_name(code, name_index, opening), name_index, opening, closing, terminator == "{")


def _find_parameters(code: Sequence[Token], index: int) -> int:
    """Return the index of the `(` after a function's name, or 0 if there is no `(`.

    Template arguments may stand between the name and the `(`.
    """
    following = index + 1
    if following < len(code) and code[following].text == "<":
        following = find_angle(code, following) + 1
    return following if following < len(code) and code[following].text == "(" else 0


def _qualified_name(code: Sequence[Token], index: int, end: int) -> str:
    start = index
    while start > 1 and code[start - 1].text == "::" and code[start - 2].kind == "word":
        start -= 2
    return write_tokens(code[start:end])


def _without_top_const(type_: str) -> str:
    """Remove a parameter's top-level `const`, which does not distinguish overloads."""
    return re.sub(r"^const (?=[^*&]*$)|(?<=\*) const$", "", type_)


def _merge(first: Candidate, second: Candidate) -> Candidate:
    """Merge two declarations of one kernel. A definition takes precedence.

    Of two definitions, only one is compiled, and the text does not tell which. Parameters whose names differ between
    the two definitions become unnamed.
    """
    main, other = (second, first) if second.is_definition and not first.is_definition else (first, second)
    pairs = zip(main.parameters, other.parameters, strict=True)
    if other.is_definition:
        return main._replace(parameters=tuple(mine if mine == theirs else "" for mine, theirs in pairs))
    return main._replace(parameters=tuple(mine or theirs for mine, theirs in pairs))


# ---- parameters ----------------------------------------------------------------------------------------------------

_ATTRIBUTES_WITH_ARGUMENTS = ("__attribute__", "__attribute", "__declspec", "__align__", "__builtin_align__", "alignas")
_DROPPED = frozenset({
    *_ATTRIBUTES_WITH_ARGUMENTS, "__grid_constant__", "__restrict__", "__restrict", "restrict", "register", "typename",
})  # fmt: skip
_NOT_A_TYPE = frozenset({"const", "volatile", "struct", "class", "union", "enum"})
_BUILTINS = ("void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "auto")
_NOT_A_NAME = _NOT_A_TYPE.union(_BUILTINS, ("wchar_t", "char8_t", "char16_t", "char32_t", "__int128"))


def read_parameters(tokens: Sequence[Token]) -> tuple[tuple[str, str], ...]:
    """Return a `(type, name)` pair for each parameter; an unnamed parameter has the name "".

    Args:
        tokens: The tokens between the parentheses, without comments.

    Example:
        >>> read_parameters(tokenize("const float *x, int in = 3, void (*f)(int)"))
        (('const float*', 'x'), ('int', 'in_'), ('void (*)(int)', 'f'))
    """
    if [token.text for token in tokens] in ([], ["void"]):
        return ()
    types, names = zip(*map(_read_parameter, _split_at_commas(tokens)), strict=True)
    return tuple(zip(types, map(python_name, names), strict=True))


def write_tokens(tokens: Sequence[Token]) -> str:
    """Return tokens as C++ text with the usual spaces."""
    written = ""
    for before, token in zip((None, *tokens), tokens, strict=False):
        needs_space = before is not None and (
            before.text == ","
            or (token.kind != "punctuator" and before.kind != "punctuator")
            or (token.kind == "word" and before.text in ("*", "&", ">", "]", ")"))
            or (token.text == "(" and before.kind == "word" and before.text != "decltype")
        )
        written += (" " if needs_space else "") + token.text
    return written


def read_variables(declaration: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Yield a `(type, name)` pair for each variable in a declaration, without functions and bit fields.

    The type of an array is that of its elements.

    Example:
        >>> list(read_variables(tokenize("Pair a[2] = {f(1)}, *b, c : 3, (*d)(int)")))
        [('Pair', 'a'), ('Pair*', 'b'), ('Pair (*)(int)', 'd')]
    """
    first, *others = map(_declaration, _split_at_commas(declaration))
    name = _read_parameter(first)[1]
    specifiers = [*takewhile(lambda token: token.text not in ("*", "&", "(", "[", name), first)]
    for tokens in (first, *([*specifiers, *other] for other in others)):
        groups = [tokens[start : end + 1] for start, end in _groups(tokens) if tokens[start].text != "["]
        starts = {group[0].text for group in groups}
        inner = _inner_declarator(tokens)
        if "(" in starts and (inner is None or any(token.text == "(" for token in tokens[slice(*inner)])):
            return  # a function, perhaps with the members that a constructor initializes
        type_, name = _read_parameter([token for group in groups for token in group])
        if name and ":" not in starts:
            yield type_, name


def _split_at_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    pieces: list[list[Token]] = [[]]
    for start, end in _groups(tokens):
        if tokens[start].text == ",":
            pieces.append([])
        else:
            pieces[-1] += tokens[start : end + 1]
    return pieces


def _groups(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index of each group in brackets, and of each token outside brackets."""
    end = -1
    while (start := end + 1) < len(tokens):
        end = _group_end(tokens, start)
        yield start, end


def _group_end(tokens: Sequence[Token], index: int) -> int:
    """Return the index of the bracket that closes the group at `index`, or `index` itself if no group begins there."""
    text = tokens[index].text
    if text in CLOSING:
        return max(find_closing(tokens, index), index)
    is_template = text == "<" and index > 0 and tokens[index - 1].kind == "word"
    return max(find_angle(tokens, index), index) if is_template else index


def _read_parameter(tokens: Sequence[Token]) -> tuple[str, str]:
    declaration = _declaration(tokens)
    inner = _inner_declarator(declaration)
    if inner is not None:
        names = [index for index in range(*inner) if _is_name(declaration, index)]
        kept = [token for index, token in enumerate(declaration) if index not in names[-1:]]
        return write_tokens(kept), declaration[names[-1]].text if names else ""
    dimensions: list[Token] = []
    while (starts := [i for i, token in enumerate(declaration) if token.text == "["]) and declaration[-1].text == "]":
        dimensions = declaration[starts[-1] :] + dimensions
        declaration = declaration[: starts[-1]]
    name = ""
    if declaration and _ends_with_name(declaration):
        name = declaration.pop().text
    return write_tokens(declaration) + _decay(dimensions), name


def _declaration(tokens: Sequence[Token]) -> list[Token]:
    """Return a type and a name without initializer, body of a class, attributes and words like `register`."""
    kept: list[Token] = []
    texts = [token.text for token in tokens]
    for start, end in _groups(tokens):
        text = texts[start]
        is_attribute = texts[start : start + 2] == ["[", "["] or (
            text == "(" and start > 0 and texts[start - 1] in _ATTRIBUTES_WITH_ARGUMENTS
        )
        if text == "=":
            break
        if not is_attribute and text != "{" and text not in _DROPPED:
            kept += tokens[start : end + 1]
    return kept


def _inner_declarator(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """Return the (start, end) of the tokens inside the `(*name)` of a function pointer, or None for other types."""
    groups = ((start + 1, end) for start, end in _groups(tokens) if start > 0 and tokens[start].text == "(")
    return next(((start, end) for start, end in groups if tokens[start].text in ("*", "&")), None)


def _is_name(tokens: Sequence[Token], index: int) -> bool:
    following = tokens[index + 1].text if index + 1 < len(tokens) else ""
    return tokens[index].kind == "word" and tokens[index].text not in _NOT_A_NAME and following != "::"


def _ends_with_name(tokens: Sequence[Token]) -> bool:
    """Return whether the last token is the parameter's name and not the end of its type."""
    before = tokens[:-1]
    has_type = any(token.kind == "word" and token.text not in _NOT_A_TYPE for token in before)
    return has_type and before[-1].text != "::" and _is_name(tokens, len(tokens) - 1)


def _decay(dimensions: Sequence[Token]) -> str:
    """Return the dimensions of an array parameter as part of a pointer type: `*` for `[4]`, ` (*)[3]` for `[4][3]`."""
    if not dimensions:
        return ""
    others = write_tokens(dimensions[find_closing(dimensions, 0) + 1 :])
    return f" (*){others}" if others else "*"
