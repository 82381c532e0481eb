"""A kernel's tokens in, the same with calls opened up: of functions whose threads meet, and of warp operations.

A function of the source that waits is written out where it is called, its names made new. A shuffle or a vote becomes
what each thread gives, a statement that all threads go through together, and what each thread gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from jitload.cpptext.declarations import find_closing
from jitload.cpptext.lexer import Token, tokenize
from jitload.cpu.split_declarations import Variable, read_declaration
from jitload.cpu.split_macros import join_operators
from jitload.cpu.split_source import read_parameters
from jitload.cpu.split_tree import BARRIER, WARP, NotUnderstoodError, Statement, match_brackets, read_statements

SHUFFLES = {"__shfl_sync": 0, "__shfl_up_sync": 1, "__shfl_down_sync": 2, "__shfl_xor_sync": 3}
VOTES = {"__ballot_sync": 4, "__any_sync": 5, "__all_sync": 6}
_FULL = frozenset({"0xffffffff", "0xffffffffu", "~0u", "~0", "-1", "0xfffffffful", "~0ul"})
_DEEPEST = 40
_RESULT = frozenset("__device__ __host__ __forceinline__ __noinline__ static inline __inline__".split())  # noqa: SIM905


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the source: its result's type, its parameters and its body."""

    result: tuple[Token, ...]
    parameters: tuple[Variable, ...]
    body: tuple[Token, ...]


def find_waiting(tokens: Sequence[Token]) -> dict[str, Function]:
    """Return the functions of a source, kernels apart, in which threads meet; of one name there is one."""
    found: dict[str, Function | None] = {}
    start = 0
    for at, token in enumerate(tokens[:-1]):
        if token.text == "__device__" and tokens[start].text != "template":
            one = _read_function(tokens, start)
            if one:
                found[one[0]] = None if one[0] in found else one[1]
        if token.text in (";", "{", "}"):
            start = at + 1
    return {name: one for name, one in found.items() if one is not None and _waits(one.body)}


def _waits(body: Sequence[Token]) -> bool:
    return any(t.text in (BARRIER, "__syncwarp") or t.text in SHUFFLES or t.text in VOTES for t in body)


def _read_function(tokens: Sequence[Token], start: int) -> tuple[str, Function] | None:
    at = start
    while at < len(tokens) and tokens[at].text not in ("(", ";", "{", "}", "="):
        at += 1
    if at >= len(tokens) or tokens[at].text != "(" or tokens[at - 1].kind != "word":
        return None
    closing = find_closing(tokens, at)
    if closing < 0 or [token.text for token in tokens[closing + 1 : closing + 2]] != ["{"]:
        return None
    try:
        parameters = read_parameters(tokens[at + 1 : closing], 0)
    except NotUnderstoodError:
        return None
    end = find_closing(tokens, closing + 1)
    result = tuple(token for token in tokens[start : at - 1] if token.text not in _RESULT)
    body = tuple(tokens[closing + 2 : end])
    return tokens[at - 1].text, Function(result=result, parameters=parameters, body=body)


class Inliner:
    """Opens the calls in one kernel."""

    def __init__(
        self,
        functions: Mapping[str, Function],
        parameters: Sequence[Variable],
        code: Sequence[Token],
        *,
        expand: Callable[[Sequence[Token]], list[Token]],
        ambiguous: AbstractSet[str],
    ) -> None:
        self._code = code
        self._expand = expand
        self._ambiguous = ambiguous
        self.words: set[str] = set()  # of functions that were written out
        self._functions = functions
        self._parameters = {variable.name for variable in parameters}
        self._count = 0
        self._offset = -(1 << 50)  # of tokens that stand nowhere
        self._shared: dict[str, list[Token]] = {}  # by function: its shared memory, which all calls have in common

    def open(self) -> list[Token]:
        """Return the tokens without calls that hide a wait.

        Raises:
            NotUnderstoodError: One cannot be opened.
        """
        code = list(self._code)
        for _ in range(_DEEPEST):
            names = {t.text for t in code}
            if not (names & self._functions.keys() or names & SHUFFLES.keys() or names & VOTES.keys()):
                shared = [token for tokens in self._shared.values() for token in tokens]
                return [*shared, *code]
            code = self._open_one(code)
        raise NotUnderstoodError("too many functions in each other")

    def _open_one(self, code: list[Token]) -> list[Token]:
        for one in _plain(read_statements(code)):
            calls = [at for at in range(one.first, one.last) if self._is_call(code, at)]
            if not calls:
                continue
            at = next(call for call in calls if not any(call < other < find_closing(code, call + 1) for other in calls))
            if code[one.first].text in ("return", "switch") or self._lambdas(code, one):
                raise NotUnderstoodError(f"{code[at].text} where it may not be come to")
            if found := _before(code, one.first, at) & {"&&", "||", "?", ","}:
                raise NotUnderstoodError(f"{code[at].text} behind {found.pop()!r}")
            before, value = self._opened(code, at)
            closing = find_closing(code, at + 1)
            inside = [*before, *code[one.first : at], *value, *code[closing + 1 : one.last + 1]]
            is_alone = one.first > 0 and code[one.first - 1].text in (")", "else", "do")
            braces = (self._tokens("{", code[one.first]), self._tokens("}", code[one.first])) if is_alone else ([], [])
            return [*code[: one.first], *braces[0], *inside, *braces[1], *code[one.last + 1 :]]
        raise NotUnderstoodError("a warp operation, or a function that waits, in a condition")

    @staticmethod
    def _lambdas(code: Sequence[Token], one: Statement) -> set[str]:
        return {
            "["
            for at in range(one.first + 1, one.last)
            if code[at].text == "[" and code[at - 1].kind != "word" and code[at - 1].text not in ("]", ")")
        }

    def _is_call(self, code: Sequence[Token], at: int) -> bool:
        text = code[at].text
        is_known = text in self._functions or text in SHUFFLES or text in VOTES
        if is_known and code[at + 1].text != "(":
            raise NotUnderstoodError(f"{text} that is not called")
        return is_known

    def _opened(self, code: Sequence[Token], at: int) -> tuple[list[Token], list[Token]]:
        """Return the statements that come before a call's statement, and what takes the call's place."""
        arguments = _arguments(code, at + 1)
        self._count += 1
        if code[at].text in self._functions:
            return self._written_out(self._functions[code[at].text], code[at], arguments)
        return self._exchange(code[at], arguments)

    def _exchange(self, name: Token, arguments: Sequence[Sequence[Token]]) -> tuple[list[Token], list[Token]]:
        texts = [_text(argument) for argument in arguments]
        if not texts or texts[0].replace(" ", "").lower() not in _FULL:
            raise NotUnderstoodError(f"{name.text} with a mask that is not written out as full")
        number = f"{self._count}"
        give, got, by, width = (f"__jitload_{what}{number}" for what in ("give", "got", "by", "width"))
        if name.text in VOTES:
            value, kind, texts = f"(unsigned)((int)({texts[1]}) != 0)", VOTES[name.text], [*texts[:2], "0"]
            result = f"({'unsigned' if kind == 4 else 'int'})__jitload_value<unsigned>({got})"
        else:
            value, kind = f"+({texts[1]})", SHUFFLES[name.text]
            result = f"__jitload_value<decltype(+({texts[1]}))>({got})"
        before = (
            f"unsigned long long {give} = __jitload_lane_bits({value}), {got}; int {by} = (int)({texts[2]}); "
            f"int {width} = {texts[3] if len(texts) > 3 else 32}; {WARP}({kind}, {give}, {by}, {width}, {got});"
        )
        return self._tokens(before, name), self._tokens(result, name)

    def _written_out(
        self, function: Function, name: Token, arguments: Sequence[Sequence[Token]]
    ) -> tuple[list[Token], list[Token]]:
        body, result = self._renamed(function, name.text)
        if len(arguments) != len(function.parameters) or any(v.is_reference for v in function.parameters):
            raise NotUnderstoodError(f"a call of {name.text} that cannot be written out")
        given = "".join(
            f"{_text(v.specifiers)} {_text(v.pointer)} {self._new(v.name)} = {_text(argument)}; "
            for v, argument in zip(function.parameters, arguments, strict=True)
        )
        start = self._tokens(f"{{ {given}", name)
        if not result:
            return [*start, *body, *self._tokens("}", name)], []
        made = f"__jitload_result{self._count}"
        head = self._tokens(f"{_text(function.result)} {made};", name)
        end = [*self._tokens(f"{made} =", name), *result, *self._tokens("; }", name)]
        return [*head, *start, *body, *end], self._tokens(made, name)

    def _new(self, name: str) -> str:
        return f"{name}__jitload_{self._count}"

    def _renamed(self, function: Function, name: str) -> tuple[list[Token], list[Token]]:
        """Return the body and the expression that is returned, with names of their own."""
        self.words |= {token.text for token in function.body if token.kind == "word"}
        body = self._expand(function.body)
        statements = read_statements(body)
        returned = [at for at, token in enumerate(body) if token.text == "return"]
        last = statements[-1]
        if returned and (returned != [last.first] or last.last == last.first + 1):
            raise NotUnderstoodError(f"a return in the middle of {name}")
        own, shared = _declared(body, statements)
        new = {v: self._new(v) for v in (*own, *(p.name for p in function.parameters))}
        new |= {v.name: f"{v.name}__jitload_{name}" for v in shared}
        free = {t.text for b, t in pairwise((function.body[0], *body)) if b.text not in (".", "->")}
        if free & (self._parameters | self._taken) - new.keys():
            raise NotUnderstoodError(f"a name in {name} that means something else in the kernel")
        if found := free & self._ambiguous - new.keys():
            raise NotUnderstoodError(f"{min(found)} in {name}, which is declared several times")
        skipped = {at for one in statements for v in shared if one.first <= v.at <= one.last for at in _range(one)}
        if shared and name not in self._shared:
            self._shared[name] = [_rename(body, at, new) for at in sorted(skipped)]
        end = last.first if returned else len(body)
        written = [_rename(body, at, new) for at in range(end) if at not in skipped]
        value = [_rename(body, at, new) for at in range(last.first + 1, last.last)] if returned else []
        return written, value

    @property
    def _taken(self) -> set[str]:
        """The kernel's own names, which a function's may not mean."""
        own, shared = _declared(self._code, read_statements(self._code))
        return {*own, *(v.name for v in shared)}

    def _tokens(self, text: str, near: Token) -> list[Token]:
        """Return tokens of a text, on the line of another token and next to none."""
        made = join_operators(tokenize(text))
        self._offset += 1 << 20
        return [t._replace(line=near.line, end_line=near.line, start=t.start + self._offset) for t in made]


def _range(one: Statement) -> Iterator[int]:
    yield from range(one.first, one.last + 1)


def _before(code: Sequence[Token], first: int, call: int) -> set[str]:
    """Return the marks before a call in its own expression and in those around it, commas between arguments apart."""
    brackets = match_brackets(code)
    found: set[str] = set()
    in_arguments, at = False, first
    while at < call:
        text = code[at].text
        if brackets.get(at, -1) > call:
            in_arguments = code[at - 1].kind == "word" and at > first
        elif not (text == "," and in_arguments):
            found.add(text)
        at = max(at, brackets[at] if at in brackets and brackets[at] < call else at) + 1
    return found


def _text(tokens: Sequence[Token]) -> str:
    return " ".join(token.text for token in tokens)


def _rename(code: Sequence[Token], at: int, new: Mapping[str, str]) -> Token:
    is_member = at > 0 and code[at - 1].text in (".", "->", "::")
    token = code[at]
    return token if is_member or token.text not in new else token._replace(text=new[token.text], start=-(at + 1) * 4096)


def _plain(statements: Sequence[Statement]) -> Iterator[Statement]:
    for one in statements:
        if one.kind == "plain":
            yield one
        yield from _plain((*one.body, *one.other))


def _declared(code: Sequence[Token], statements: Sequence[Statement]) -> tuple[set[str], list[Variable]]:
    """Return the names that are declared anywhere in a body, and its shared memory."""
    own: set[str] = set()
    shared: list[Variable] = []
    for one in statements:
        found: tuple[Variable, ...] = ()
        word = code[one.first].text
        if one.kind == "for":
            found = read_declaration(code, *one.heads[0], len(code))
        elif one.kind == "plain" and word in ("switch", "using", "typedef"):
            raise NotUnderstoodError(f"{word!r} where the names of a function that waits are made new")
        elif one.kind == "plain" and word not in ("return", "break", "continue"):
            found = read_declaration(code, one.first, one.last, len(code))
        if any(v.says("static") and not v.is_shared for v in found):
            raise NotUnderstoodError("a static variable beside a function that waits")
        shared += [v for v in found if v.is_shared]
        own |= {v.name for v in found if not v.is_shared}
        inner_own, inner_shared = _declared(code, (*one.body, *one.other))
        own |= inner_own
        shared += inner_shared
    return own, shared


def _arguments(code: Sequence[Token], opening: int) -> list[list[Token]]:
    closing = find_closing(code, opening)
    brackets = match_brackets(code)
    found: list[list[Token]] = [[]]
    at = opening + 1
    while at < closing:
        end = brackets.get(at, at)
        if code[at].text == ",":
            found.append([])
        else:
            found[-1] += code[at : end + 1]
        at = end + 1
    return found if found != [[]] else []
