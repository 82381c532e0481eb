"""Follow the preprocessor directives in C++ text: conditions, macros and the names of headers.

A text alone does not always tell which branch of an `#if` is compiled, or what a macro stands for. A condition that
cannot be decided has the value None, and both branches count. A macro defined under such a condition has several
possible definitions. A name that the text does not define counts as undefined, unless it begins with an underscore or
the text includes a user header, which may define it.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from jitload.cpptext.lexer import Token, join_lines, strip_comments, strip_header

INCLUDES = ("include", "include_next", "import")
# Macros that are defined either when NVRTC compiles or when nvcc compiles host code, but not in both cases. The values
# are those under NVRTC. None means undefined.
_UNKNOWN = "_jitload"  # stands for a number that is not known
NVRTC_MACROS: Final[Mapping[str, str | None]] = {"__CUDACC_RTC__": "1", "__NVCC__": None, "__CUDA_ARCH__": _UNKNOWN}
HEADER_NAME = r'"([^"\n]+)"|<([^>\n]+)>'

_DIRECTIVE = re.compile(r"\n[ \t]*#[ \t]*(\w*)([^\n]*)")
_DEFINITION = r"(?s)([\w$]+)(.*)"
_MACRO_OPTION = r"(?s)(?:-D|--define-macro=)(\w+)(?:=(.*))?"
_INTEGER = r"(0[xX][0-9a-fA-F]{1,16}|[1-9][0-9]{0,18}|0)[uUlL]*"
_WORD_OR_STRING = r""""[^"]*"|'[^']*'|\w+"""
_MAX_LENGTH = 2000  # characters of a condition or of an expansion; longer ones are not read
_MAX_EXPANSIONS = 1000  # limits the expansion of nested macros that have several definitions each
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[int, int], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt, ast.LtE: operator.le,
    ast.GtE: operator.ge,
}  # fmt: skip


# ---- directives ----------------------------------------------------------------------------------------------------


class Directive(NamedTuple):
    """A preprocessor directive: its name, such as `define`, and the rest of its line without comments."""

    name: str
    text: str


def read_directives(text: str) -> Iterator[Directive]:
    """Yield the directives of a text, without splitting the text into tokens.

    Lines of raw strings that look like directives are yielded, too.
    """
    return _find_directives(strip_comments(text))


def _find_directives(code: str) -> Iterator[Directive]:
    """Yield the directives of a text without comments."""
    return (Directive(match[1], match[2].strip()) for match in _DIRECTIVE.finditer(f"\n{join_lines(code)}"))


@functools.lru_cache(maxsize=1024)
def header_directives(text: str) -> tuple[Directive, ...]:
    """Return the directives of a header. They are remembered for the next source that includes the header."""
    return tuple(_find_directives(strip_header(text)))


Run = tuple[Directive | None, Sequence[Token]]


def split_directives(tokens: Sequence[Token]) -> Iterator[Run]:
    """Yield `(directive, tokens)` for each directive, and `(None, tokens)` for the code between directives."""
    start = 0
    while start < len(tokens):
        is_directive = tokens[start].in_directive
        end = start + 1
        while end < len(tokens) and tokens[end].in_directive is is_directive:
            if is_directive and tokens[end].text == "#" and tokens[end].line > tokens[end - 1].end_line:
                break  # the next directive begins
            end += 1
        run = tokens[start:end]
        name = run[1].text if run[1:] else ""
        yield (Directive(name, "".join(_spaced(run[2:])).strip()) if is_directive else None), run
        start = end


def macros_with(words: Collection[str], runs: Iterable[Run]) -> set[str]:
    """Return the names of the macros whose bodies contain one of the words, themselves or through other macros."""
    definitions = (run for directive, run in runs if directive and directive.name == "define" and run[2:])
    bodies = [(run[2].text, {token.text for token in run[3:]}) for run in definitions]
    found = {*words}
    while added := {name for name, body in bodies if not found.isdisjoint(body)} - found:
        found |= added
    return found.difference(words)


def _spaced(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the texts of tokens, and a space for each gap between two tokens."""
    end = 0
    for token in tokens:
        if token.start > end:
            yield " "
        yield token.text
        end = token.start + len(token.text)


class Conditional:
    """An `#if` up to its `#endif`.

    Attributes:
        line: The line of the `#if`.
        conditions: The directive at the start of each branch.
        sizes: Number of code tokens in each branch; a `#define`, `#include` or `#error` counts as one token.
    """

    __slots__ = ("conditions", "line", "sizes")

    def __init__(self, condition: Directive, line: int) -> None:
        self.line = line
        self.conditions = [condition]
        self.sizes = [0]

    @property
    def is_dead(self) -> bool:
        """Whether the conditional begins with `#if 0` or `#if false`."""
        return self.conditions[0] in (("if", "0"), ("if", "false"))

    def branch(self, macros: Macros) -> int | None:
        """Return the index of the branch that is compiled, -1 if none is, or None if that is not certain."""
        for index, (name, text) in enumerate(self.conditions):
            value = name == "else" or _value(Directive(name.removeprefix("el"), text), macros)
            if value is not False:
                return index if value else None
        return -1


def read_conditionals(tokens: Sequence[Token]) -> Iterator[tuple[Conditional, Sequence[Conditional]]]:
    """Yield the conditionals in the order of their `#endif`, without each `#if 0` and the conditionals inside it.

    Each comes with the conditionals that it is in, which have been read up to its `#endif`.
    """
    opened: list[Conditional] = []
    for directive, run in split_directives(tokens):
        name = directive.name if directive else ""
        if directive and name.startswith("if"):
            opened.append(Conditional(directive, run[0].line))
        elif directive and name.startswith("el") and opened:
            opened[-1].conditions.append(directive)
            opened[-1].sizes.append(0)
        elif name == "endif" and opened:
            closed = opened.pop()
            if not any(conditional.is_dead for conditional in (*opened, closed)):
                yield closed, opened
        else:
            for conditional in opened:
                conditional.sizes[-1] += len(run) if not directive else name in ("define", "include", "error")


def included_headers(directives: Iterable[Directive]) -> Iterator[tuple[str, bool]]:
    """Yield `(name, is_quoted)` for each header that directives include by its name, not by a macro."""
    for directive in directives:
        if directive.name in INCLUDES and (name := re.match(HEADER_NAME, directive.text)):
            yield name[1] or name[2], bool(name[1])


# ---- macros --------------------------------------------------------------------------------------------------------


class Macros:
    """The possible definitions of each macro.

    Attributes:
        may_have_others: Whether unknown macros may be defined, because a header is included.
    """

    def __init__(self, definitions: Mapping[str, str | None] | None = None, options: Sequence[str] = ()) -> None:
        """Begin with the macros in a compiler's options and in `definitions`. The value None means undefined."""
        self.may_have_others = False
        # The texts after a macro's name: those with parameters begin with "(". None: the macro may be undefined.
        self._definitions: dict[str, tuple[str | None, ...]] = {}
        for name, text in (definitions or {}).items():
            self._definitions[name] = (text,)
        for index, option in enumerate(options):
            whole = f"-D{options[index + 1]}" if option == "-D" and index + 1 < len(options) else option
            if match := re.fullmatch(_MACRO_OPTION, whole):
                self._definitions[match[1]] = ("1" if match[2] is None else f" {match[2]}",)
            elif "-include" in option:
                self.may_have_others = True

    def follow(self, directive: Directive, *, is_certain: bool) -> None:
        """Record a `#define`, `#undef` or `#include`.

        `is_certain` is false if a condition may exclude the directive.
        """
        if directive.name in INCLUDES and not directive.text.startswith("<"):
            self.may_have_others = True
        elif directive.name in ("define", "undef") and (match := re.match(_DEFINITION, directive.text)):
            name, body = match.groups()
            macro = body if directive.name == "define" else None
            before = () if is_certain else self._definitions.get(name, (None,))
            if macro not in before:
                self._definitions[name] = (*before, macro)

    def is_defined(self, name: str) -> bool | None:
        """Return whether a macro with this name is defined; None if that is not certain."""
        if name in self._definitions:
            are_defined = {macro is not None for macro in self._definitions[name]}
            return are_defined.pop() if len(are_defined) == 1 else None
        return None if self.may_have_others or name.startswith("_") else False

    def expansions(self, text: str, undefined: str | None = None) -> list[str] | None:
        """Return all possible macro expansions of a text; None if too many, or if a macro has parameters or `##`.

        A macro that may be undefined also expands to `undefined`, unless this is None.
        """
        expanded: list[str] = []
        pending = [text]
        for current in pending:  # grows meanwhile
            pairs = ((word, self._bodies(word[0], undefined)) for word in re.finditer(_WORD_OR_STRING, current))
            word, bodies = next((pair for pair in pairs if pair[1]), (None, []))
            if word is None:
                expanded.append(current)
                continue
            pending += [f"{current[: word.start()]}{body.strip()}{current[word.end() :]}" for body in bodies]
            is_unclear = any(body.startswith("(") or "##" in body for body in bodies)
            if is_unclear or len(pending) > _MAX_EXPANSIONS or len(current) > _MAX_LENGTH:
                return None
        return expanded

    def _bodies(self, name: str, undefined: str | None) -> list[str]:
        bodies = (undefined if body is None else body for body in self._definitions.get(name, ()))
        return [body for body in bodies if body is not None]


# ---- conditions ----------------------------------------------------------------------------------------------------


def live_tokens(tokens: Sequence[Token], macros: Macros) -> Iterator[Token]:
    """Yield the tokens of a text, except those in branches that are certainly not compiled.

    `macros` are the macros defined before the text. The text's own macros are added to `macros`.
    """
    branches: list[_Branch] = []
    for directive, run in split_directives(tokens):
        if directive:
            _follow(directive, branches, macros)
        if _may_be_live(branches):
            yield from run


# `_either` and `_both` return the value of `first || second` and `first && second`, or None if it is not certain.
def _either(first: int | None, second: int | None) -> bool | None:
    return True if first or second else None if None in (first, second) else False


def _both(first: int | None, second: int | None) -> bool | None:
    return False if 0 in (first, second) else None if None in (first, second) else True


class _Branch(NamedTuple):
    """The current branch of an open `#if`. An attribute is None if its value is not certain.

    Attributes:
        is_live: Whether this branch is compiled.
        is_decided: Whether this branch or an earlier one is compiled.
    """

    is_live: bool | None
    is_decided: bool | None


def _follow(directive: Directive, branches: list[_Branch], macros: Macros) -> None:
    """Update the branches and the macros for one directive. `branches` has one element for each open `#if`."""
    name = directive.name
    if name in ("if", "ifdef", "ifndef"):
        value = _value(directive, macros)
        branches.append(_Branch(value, value))
    elif name in ("elif", "elifdef", "elifndef", "else") and branches:
        value = name == "else" or _value(Directive(name.removeprefix("el"), directive.text), macros)
        before = branches.pop().is_decided
        branches.append(_Branch(_both(value, None if before is None else not before), _either(before, value)))
    elif name == "endif" and branches:
        branches.pop()
    elif _may_be_live(branches):
        macros.follow(directive, is_certain=all(branch.is_live for branch in branches))


def _may_be_live(branches: Sequence[_Branch]) -> bool:
    return all(branch.is_live is not False for branch in branches)


def _value(directive: Directive, macros: Macros) -> bool | None:
    if directive.name == "if":
        number = _condition(directive.text, macros)
        return None if number is None else bool(number)
    name = re.match(_DEFINITION, directive.text)
    is_defined = macros.is_defined(name[1]) if name else None
    return is_defined if is_defined is None or directive.name == "ifdef" else not is_defined


def _condition(text: str, macros: Macros) -> int | None:
    """Return the value of a condition: integers, macros, `defined`, `!`, comparisons, `&&`, `||` and parentheses."""

    def is_defined(match: re.Match[str]) -> str:
        value = macros.is_defined(match[1] or match[2])
        return _UNKNOWN if value is None else str(int(value))

    if not text.isascii():
        return None
    text = re.sub(r"\bdefined\b\s*(?:\(\s*(\w+)\s*\)|(\w+))", is_defined, text)
    values = {_value_of(expanded, macros) for expanded in macros.expansions(text, undefined="0") or ("",)}
    return values.pop() if len(values) == 1 else None


def _value_of(text: str, macros: Macros) -> int | None:
    """Return the value of a condition without macros; None if it is not certain.

    The condition is rewritten for Python's parser, with `~` for `!`, which has the same precedence.
    """
    if len(text) > _MAX_LENGTH or not text.isascii() or re.search(r"[~\"']|\b(?:True|False|None)\b", text):
        return None
    text = re.sub(rf"\b{_INTEGER}\b", r"\1", re.sub(r"!(?!=)|\bnot\b", "~", text))
    try:
        return _evaluate(ast.parse(text.replace("&&", " and ").replace("||", " or ").strip(), mode="eval").body, macros)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr, macros: Macros) -> int | None:
    """Return the value of a condition's syntax tree; None if it is not certain."""
    value: int | None = None
    match node:
        case ast.Constant(value=int(number)):
            value = int(number)
        case ast.Name("true" | "false" as name):
            value = int(name == "true")
        case ast.Name(name):
            value = 0 if macros.is_defined(name) is False else None
        case ast.Call():  # a macro with parameters may stand for anything
            raise ValueError(ast.unparse(node))
        case ast.UnaryOp(ast.Invert(), operand):
            inner = _evaluate(operand, macros)
            value = None if inner is None else int(not inner)
        case ast.BoolOp(op, operands):
            values = (_evaluate(operand, macros) for operand in operands)
            value = functools.reduce(_either if isinstance(op, ast.Or) else _both, values)
        case ast.Compare(left, [op], [right]) if type(op) in _COMPARISONS:
            first, second = _evaluate(left, macros), _evaluate(right, macros)
            value = None if first is None or second is None else int(_COMPARISONS[type(op)](first, second))
    return value
