"""Follow the preprocessor directives in C++ text: conditions, macros and the names of headers.

A text alone does not always tell which branch of an `#if` is compiled, or what a macro stands for. A condition that
cannot be decided has the value None, and both branches count. A macro defined under such a condition has several
possible definitions. A name that the text does not define counts as undefined, unless it begins with an underscore or
the text includes a user header, which may define it.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from jitload.cpptext.lexer import Token, join_lines, strip_comments, strip_header, tokenize

INCLUDES = ("include", "include_next", "import")
# Macros that are defined either when NVRTC compiles or when nvcc compiles host code, but not in both cases. The values
# are those under NVRTC: None means undefined, and "" means that the value is not known.
NVRTC_MACROS: Final[Mapping[str, str | None]] = {"__CUDACC_RTC__": "1", "__NVCC__": None, "__CUDA_ARCH__": ""}
HEADER_NAME = r'"([^"\n]+)"|<([^>\n]+)>'

_DIRECTIVE = re.compile(r"\n[ \t]*#[ \t]*(\w*)([^\n]*)")
_DEFINITION = r"(?s)([\w$]+)(?:\(([^)]*)\))?\s*(.*)"
_MACRO_OPTION = r"(?s)(?:-D|--define-macro=)(\w+)(?:=(.*))?"
_INTEGER = r"(0[xX][0-9a-fA-F]{1,16}|[1-9][0-9]{0,18}|0)[uUlL]*"
_MAX_WORDS = 100  # a longer condition is not read, because the parser is recursive
_MAX_STEPS = 2000  # limits the expansion of nested macros that have several definitions each
_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
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
            if is_directive and _begins_directive(tokens, end):
                break
            end += 1
        run = tokens[start:end]
        yield (_directive_of(run) if is_directive else None), run
        start = end


def macros_with(words: Collection[str], runs: Iterable[Run]) -> set[str]:
    """Return the names of the macros whose bodies contain one of the words."""
    definitions = (directive.text for directive, _ in runs if directive and directive.name == "define")
    parts = (text.partition(" ") for text in definitions)
    return {name.partition("(")[0] for name, _, body in parts if any(word in body for word in words)}


def _begins_directive(tokens: Sequence[Token], index: int) -> bool:
    return tokens[index].text == "#" and tokens[index].line > tokens[index - 1].end_line


def _directive_of(tokens: Sequence[Token]) -> Directive:
    return Directive(tokens[1].text if tokens[1:] else "", "".join(_spaced(tokens[2:])).strip())


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


class Macro(NamedTuple):
    """One definition of a macro; `parameters` is None for a macro without parentheses."""

    parameters: tuple[str, ...] | None
    body: str


class Macros:
    """The possible definitions of each macro.

    Attributes:
        may_have_others: Whether unknown macros may be defined, because a header is included.
    """

    def __init__(self, definitions: Mapping[str, str | None] | None = None, options: Sequence[str] = ()) -> None:
        """Begin with the macros in a compiler's options and in `definitions`. The value None means undefined."""
        self.may_have_others = False
        self._steps_left = 0
        self._definitions: dict[str, tuple[Macro | None, ...]] = {}  # None: the macro may be undefined
        for name, text in (definitions or {}).items():
            self._definitions[name] = (None if text is None else Macro(None, text),)
        for index, option in enumerate(options):
            whole = f"-D{options[index + 1]}" if option == "-D" and index + 1 < len(options) else option
            if match := re.fullmatch(_MACRO_OPTION, whole):
                self._definitions[match[1]] = (Macro(None, "1" if match[2] is None else match[2]),)
            elif "-include" in option:
                self.may_have_others = True

    def follow(self, directive: Directive, *, is_certain: bool) -> None:
        """Record a `#define`, `#undef` or `#include`.

        `is_certain` is false if a condition may exclude the directive.
        """
        if directive.name in INCLUDES and not directive.text.startswith("<"):
            self.may_have_others = True
        elif directive.name in ("define", "undef") and (match := re.match(_DEFINITION, directive.text)):
            name, parameters, body = match.groups()
            macro = None
            if directive.name == "define":
                names = None if parameters is None else tuple(word.strip() for word in parameters.split(","))
                macro = Macro(names, body)
            before = () if is_certain else self._definitions.get(name, (None,))
            if macro not in before:
                self._definitions[name] = (*before, macro)

    def is_defined(self, name: str) -> bool | None:
        """Return whether a macro with this name is defined; None if that is not certain."""
        if name in self._definitions:
            are_defined = {macro is not None for macro in self._definitions[name]}
            return are_defined.pop() if len(are_defined) == 1 else None
        return None if self.may_have_others or name.startswith("_") else False

    def number(self, name: str) -> int | None:
        """Return the integer that a macro stands for; None if its value is not certain or not an integer."""
        bodies = {macro.body if macro and macro.parameters is None else "" for macro in self._definitions.get(name, ())}
        return read_integer(bodies.pop()) if len(bodies) == 1 else None

    def expansions(self, text: str) -> list[str] | None:
        """Return all possible macro expansions of a text; None if there are too many."""
        self._steps_left = _MAX_STEPS
        try:
            return list(dict.fromkeys("".join(pieces).strip() for pieces in self._expand(_pieces(text), frozenset())))
        except RecursionError:
            return None

    def _expand(self, pieces: list[str], hidden: frozenset[str]) -> Iterator[list[str]]:
        """Yield the possible macro expansions of tokens, as lists of token texts. `pieces` are the texts of the tokens.

        `hidden` are the macros whose expansion gave `pieces`. They are not expanded again.
        """
        self._steps_left -= 1
        if self._steps_left < 0:
            raise RecursionError
        for index, piece in enumerate(pieces):
            macros = [macro for macro in self._definitions.get(piece, ()) if macro]
            if not macros or piece in hidden:
                continue
            end, arguments = _read_arguments(pieces, index + 1)
            uses = [macro for macro in macros if macro.parameters is None or arguments is not None]
            for macro in uses:
                rest = pieces[index + 1 if macro.parameters is None else end :]
                for replaced in self._substitute(macro, arguments or [], hidden):
                    for first in self._expand(replaced, hidden | {piece}):
                        yield from ([*pieces[:index], *first, *last] for last in self._expand(rest, hidden))
            if uses:
                return
        yield pieces

    def _substitute(self, macro: Macro, arguments: list[list[str]], hidden: frozenset[str]) -> Iterator[list[str]]:
        """Yield a macro's body with its arguments in place, once for each combination of the arguments' expansions.

        An argument has several expansions if it contains a macro with several possible definitions. Arguments next to
        `#` or `##` are not expanded.
        """
        body = _pieces(macro.body)
        raw = _by_parameter(macro.parameters or (), arguments)
        choices = [list(self._expand(argument, hidden)) for argument in raw.values()]
        for expanded in product(*choices):
            yield _replace_parameters(body, raw, dict(zip(raw, expanded, strict=True)))


def _pieces(text: str) -> list[str]:
    """Split C++ code into the texts of its tokens, with `" "` for each gap. `##` is one token."""
    pieces: list[str] = []
    for piece in _spaced(tokenize(text)):
        if piece == "#" and pieces[-1:] == ["#"]:
            pieces[-1] = "##"
        else:
            pieces.append(piece)
    return pieces


def _read_arguments(pieces: Sequence[str], start: int) -> tuple[int, list[list[str]] | None]:
    """Return the index after a macro call's `(…)`, and the arguments inside. Without `(…)`, the arguments are None."""
    while pieces[start : start + 1] == [" "]:
        start += 1
    if pieces[start : start + 1] != ["("]:
        return start, None
    arguments: list[list[str]] = [[]]
    depth = 0
    for index in range(start, len(pieces)):
        piece = pieces[index]
        depth += (piece == "(") - (piece == ")")
        if depth == 0:
            return index + 1, [_stripped(argument) for argument in arguments]
        if depth == 1 and piece == ",":
            arguments.append([])
        elif index > start:
            arguments[-1].append(piece)
    return start, None


def _stripped(pieces: list[str]) -> list[str]:
    first, last = pieces[:1] == [" "], len(pieces) > 1 and pieces[-1] == " "
    return pieces[first : len(pieces) - last]


def _by_parameter(parameters: Sequence[str], arguments: list[list[str]]) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for index, parameter in enumerate(parameters):
        if parameter.endswith("..."):
            rest = [piece for argument in arguments[index:] for piece in (",", *argument)]
            named[parameter.removesuffix("...").strip() or "__VA_ARGS__"] = rest[1:]
        elif parameter:
            named[parameter] = arguments[index] if index < len(arguments) else []
    return named


def _replace_parameters(
    body: Sequence[str], raw: Mapping[str, list[str]], expanded: Mapping[str, list[str]]
) -> list[str]:
    """Return a macro's body with its arguments in place. `#` quotes an argument, and `##` joins two tokens.

    `raw` and `expanded` map each parameter to its argument: `raw` before macro expansion, `expanded` after it.
    """
    words = [piece for piece in body if piece != " "]
    spaces = [before == " " for before, piece in zip((" ", *body), body, strict=False) if piece != " "]
    pieces: list[str] = []
    joins = False
    for index, word in enumerate(words):
        before, after = words[index - 1] if index else "", words[index + 1] if index + 1 < len(words) else ""
        if word == "##":
            joins = True
            continue
        if word == "#" and after in raw:
            continue
        replaced = [word]
        if word in raw:
            quoted = [f'"{"".join(raw[word])}"']
            replaced = quoted if before == "#" else raw[word] if "##" in (before, after) else expanded[word]
        if joins and pieces and replaced:
            pieces[-1] += replaced[0]
            pieces += replaced[1:]
        else:
            pieces += [*([" "] if spaces[index] and index and not joins else []), *replaced]
        joins = False
    return pieces


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
        number = _Condition(directive.text, macros).value()
        return None if number is None else bool(number)
    name = re.match(_DEFINITION, directive.text)
    is_defined = macros.is_defined(name[1]) if name else None
    return is_defined if is_defined is None or directive.name == "ifdef" else not is_defined


def read_integer(text: str) -> int | None:
    """Return the value of an integer literal; None for any other text."""
    match = re.fullmatch(_INTEGER, text)
    return int(match[1], 0 if match[1][:2] in ("0x", "0X") else 10) if match else None


class _Condition:
    """A parser for `#if` conditions of integers, macros, `defined`, `!`, comparisons, `&&`, `||` and parentheses."""

    def __init__(self, text: str, macros: Macros) -> None:
        self._words = _joined([token.text for token in tokenize(text)])
        self._macros = macros
        self._index = 0

    def value(self) -> int | None:
        if len(self._words) > _MAX_WORDS:
            return None
        value = self._any()
        return value if self._index == len(self._words) else None

    def _next(self) -> str:
        self._index += 1
        return self._words[self._index - 1] if self._index <= len(self._words) else ""

    def _takes(self, word: str) -> bool:
        is_next = self._words[self._index : self._index + 1] == [word]
        self._index += is_next
        return is_next

    def _any(self) -> int | None:
        value = self._all()
        while self._takes("||"):
            value = _either(value, self._all())
        return value

    def _all(self) -> int | None:
        value = self._comparison()
        while self._takes("&&"):
            value = _both(value, self._comparison())
        return value

    def _comparison(self) -> int | None:
        value = self._single()
        for sign, compare in _COMPARISONS.items():
            if self._takes(sign):
                other = self._single()
                return None if value is None or other is None else int(compare(value, other))
        return value

    def _single(self) -> int | None:
        if self._takes("!"):
            value = self._single()
            return None if value is None else int(not value)
        if self._takes("("):
            value = self._any()
            return value if self._takes(")") else None
        if self._takes("defined"):
            has_parenthesis = self._takes("(")
            is_defined = self._macros.is_defined(self._next())
            is_closed = not has_parenthesis or self._takes(")")
            return int(is_defined) if is_defined is not None and is_closed else None
        return self._number(self._next())

    def _number(self, word: str) -> int | None:
        if word in ("true", "false"):
            return int(word == "true")
        number = read_integer(word)
        if number is None and word.isidentifier():
            number = self._macros.number(word)
            is_call = self._words[self._index : self._index + 1] == ["("]
            if number is None and not is_call and self._macros.is_defined(word) is False:
                return 0
        return number


def _joined(words: Sequence[str]) -> list[str]:
    """Join operators such as `&&`, which the lexer splits into two tokens."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] + word in ("&&", "||", "==", "!="):
            joined[-1] += word
        else:
            joined.append(word)
    return joined
