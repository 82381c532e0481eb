"""A loop that each thread goes through by itself in, out whether its turns may stand outside and the threads inside.

Nothing orders threads between two barriers, so that

    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];

may be gone through turn by turn, each turn by all threads: they read memory side by side, as on a GPU. The loop must
say where it ends and how far it steps in numbers that it does not change; where each thread begins is seen when it runs
(`split_turns`). A loop that is left by `break` or `return`, or whose counter is written to elsewhere, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from jitload.cpptext.lexer import Token
from jitload.cpu.split_declarations import Variable, read_declaration
from jitload.cpu.split_names import Names
from jitload.cpu.split_scopes import SCOPED
from jitload.cpu.split_tree import NotUnderstoodError, Statement
from jitload.cpu.split_words import ASSIGNMENTS, STEPS

Range = tuple[int, int]
_WHOLE = frozenset(
    """
    int unsigned signed long short char size_t uint ptrdiff_t ulong ushort uchar int8_t int16_t int32_t int64_t uint8_t
    uint16_t uint32_t uint64_t intptr_t uintptr_t
    """.split()  # noqa: SIM905  as a list it would take the whole page
)
_INDICES = frozenset("threadIdx blockIdx blockDim gridDim x y z".split())  # noqa: SIM905


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride:
    """A loop whose turns may stand outside.

    Attributes:
        first: Its first token.
        last: Its last one.
        name: Its counter.
        counter: The variable, where it is declared before the loop.
        type: The counter's type.
        start: The expression that it begins with; where there is none, it has its value already.
        limit: The expression that it stays below.
        reaches: Whether it may be as large as that.
        step: The expression that is added.
        body: The tokens of a turn.
        has_own_limit: Whether threads may differ in the limit.
    """

    first: int
    last: int
    name: str
    counter: Variable | None
    type: str
    start: Range
    limit: Range
    reaches: bool
    step: Range
    body: Range
    has_own_limit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of a loop that looks like one with strides."""

    name: int
    start: Range
    limit: Range
    reaches: bool
    step: Range
    body: Range


def mark_strides(code: Sequence[Token], statements: Sequence[Statement], closed: AbstractSet[int]) -> list[Statement]:
    """Return the statements, those around a loop with strides marked as ones that all threads go through together.

    Args:
        code: The tokens of the body.
        statements: Its statements.
        closed: The first tokens of those that cannot be.
    """
    marked: list[Statement] = []
    for one in statements:
        if one.kind in ("plain", "barrier", "warp") or one.first in closed:
            marked.append(one)
            continue
        body, other = (tuple(mark_strides(code, part, closed)) for part in (one.body, one.other))
        is_found = any(inner.has_barrier or _parts(code, inner) for inner in (*body, *other)) or is_shared_loop(
            code, one
        )
        is_read = one.kind != "for" or len(one.heads) == 3
        marked.append(replace(one, body=body, other=other, has_barrier=True) if is_found and is_read else one)
    return marked


def find_empty(marked: Sequence[Statement], statements: Sequence[Statement], strides: AbstractSet[int]) -> set[int]:
    """Return the statements that were marked and neither are nor hold a loop of those that begin at `strides`."""
    found: set[int] = set()
    for one, before in zip(marked, statements, strict=True):
        if one.has_barrier and not before.has_barrier and not any(one.first <= at < one.last for at in strides):
            found.add(one.first)
        else:
            found |= find_empty((*one.body, *one.other), (*before.body, *before.other), strides)
    return found


def find_strides(code: Sequence[Token], statements: Sequence[Statement]) -> bool:
    """Tell whether anything looks like a loop with strides."""
    return any(
        _parts(code, one) or is_shared_loop(code, one) or find_strides(code, (*one.body, *one.other))
        for one in statements
    )


def is_shared_loop(code: Sequence[Token], one: Statement) -> bool:
    """Tell by its look whether a loop does one thing to what each thread has with something that all of them read.

    `for (int i = 0; i < blockDim.x / 32; ++i) sum += part[i];` is one. Loops of a length that the compiler knows are
    not: it writes them out, and what they add up stays in a register.
    """
    if one.kind != "for" or len(one.heads) != 3 or len(one.body) != 1 or one.body[0].kind != "plain" or one.has_barrier:
        return False
    start, condition, stepping = one.heads
    body = [token.text for token in code[one.body[0].first : one.body[0].last]]
    is_counted = start[0] < start[1] and condition[0] < condition[1] and stepping[0] < stepping[1]
    has_length = any(code[at].text == "blockDim" for at in range(condition[0], condition[1] + 1))
    return is_counted and has_length and "[" in body and "{" not in body and code[one.body[0].first].text not in SCOPED


def reads_the_same(names: Names, one: Statement) -> bool:
    """Tell whether all threads read the same elements in the turns of a loop that looks like a shared one."""
    scopes = names.scopes
    brackets = [at for at in range(one.body[0].first, one.body[0].last) if scopes.text(at) == "["]
    is_changed = any(scopes.text(scopes.closing[at] + 1) in (*ASSIGNMENTS, *STEPS) for at in brackets)
    return not is_changed and all(names.is_uniform(at + 1, scopes.closing[at] - 1) for at in brackets)


def find_stride(names: Names, one: Statement) -> Stride | None:
    """Return what a loop is made of, or None where it has to stay as it is."""
    code = names.scopes.code
    parts = _parts(code, one)
    head = _head(names, one, parts) if parts else None
    if parts is None or head is None or any(token.text == "return" for token in code[one.first : one.last + 1]):
        return None
    counter, type_, start = head
    name, place = code[parts.name].text, (one.first, one.last)
    inside = [code[at].text for first, last in (start, parts.limit, parts.step) for at in range(first, last + 1)]
    is_settled = names.is_settled(parts.limit, place) and names.is_uniform(*parts.step)
    is_settled = is_settled and names.is_settled(parts.step, place) and not names.may_divide(*parts.step)
    if name in inside or not is_settled:
        return None
    if is_written(code, parts.body, name):
        return None
    return Stride(
        first=one.first, last=one.last, name=name, counter=counter, type=type_, start=start, limit=parts.limit,
        reaches=parts.reaches, step=parts.step, body=parts.body,
        has_own_limit=not names.is_uniform(*parts.limit) or names.may_divide(*parts.limit),
    )  # fmt: skip


def _head(names: Names, one: Statement, parts: _Parts) -> tuple[Variable | None, str, Range] | None:
    """Return a counter that each thread has for itself: where it is declared, its type, and what it begins with."""
    code, name = names.scopes.code, names.scopes.code[parts.name].text
    counter, start = names.scopes.find(name, parts.name), parts.start
    try:
        declared = read_declaration(code, *start, one.last) if start[0] <= start[1] else ()
    except NotUnderstoodError:
        return None
    if declared:
        type_ = _type(code, declared[0])
        is_one = len(declared) == 1 and declared[0].name == name and not names.is_uniform(*declared[0].value)
        return (None, type_, declared[0].value) if type_ and is_one else None
    found = _assigned(code, start, name)
    type_ = _type(code, counter) if counter else None
    if found is None or counter is None or type_ is None or not _is_own_counter(names, one, counter, found):
        return None
    return counter, type_, found


def _parts(code: Sequence[Token], one: Statement) -> _Parts | None:
    if one.has_barrier or _leaves(code, one.body, by="break"):
        return None
    body: Range
    if one.kind == "for" and len(one.heads) == 3:
        start, condition, stepping = one.heads
        body = (stepping[1] + 2, one.last)
    elif (
        one.kind == "while" and one.body and one.last > one.body[-1].last and not _leaves(code, one.body, by="continue")
    ):
        start, condition = (0, -1), one.heads[0]
        stepping = (one.body[-1].first, one.body[-1].last - 1)
        body = (condition[1] + 3, one.body[-1].first - 1)
    else:
        return None
    name, step = _read_step(code, stepping)
    if name < 0:
        return None
    limit = _read_limit(code, condition, code[name].text)
    if limit is None:
        return None
    reaches = any(code[at].text in ("<=", ">=") for at in (limit[0] - 1, limit[1] + 1))
    return _Parts(name=name, start=start, limit=limit, reaches=reaches, step=step, body=body)


def _leaves(code: Sequence[Token], statements: Sequence[Statement], *, by: str) -> bool:
    """Tell whether the loop around statements may be left, or its turn."""
    for one in statements:
        if one.kind == "plain" and (code[one.first].text == by or (by == "continue" and one.jumps)):
            return True
        if one.kind in ("if", "block") and _leaves(code, (*one.body, *one.other), by=by):
            return True
    return False


def _read_step(code: Sequence[Token], place: Range) -> tuple[int, Range]:
    """Return where the counter's name is in `i += …` or `i = i + …`, and what is added."""
    first, last = place
    texts = [token.text for token in code[first : last + 1]]
    if len(texts) < 3 or code[first].kind != "word" or "," in texts:
        return -1, place
    if texts[1] == "+=":
        return first, (first + 2, last)
    is_sum = len(texts) > 4 and texts[1:4] == ["=", texts[0], "+"]
    if is_sum and all(
        code[at].kind in ("word", "number") or code[at].text in ".*" for at in range(first + 4, last + 1)
    ):
        return first, (first + 4, last)
    return -1, place


def _read_limit(code: Sequence[Token], condition: Range, name: str) -> Range | None:
    """Return the other side of `i < …`, `i <= …`, `… > i`, `… >= i`."""
    first, last = condition
    if last - first < 2:
        return None
    if code[first].text == name and code[first + 1].text in ("<", "<="):
        limit = (first + 2, last)
    elif code[last].text == name and code[last - 1].text in (">", ">="):
        limit = (first, last - 2)
    else:
        return None
    depth = 0
    for at in range(limit[0], limit[1] + 1):
        text = code[at].text
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        if depth == 0 and text in (
            *ASSIGNMENTS,
            "&&",
            "||",
            "?",
            ":",
            ",",
            "==",
            "!=",
            "<",
            ">",
            "<=",
            ">=",
            "&",
            "|",
            "^",
        ):
            return None
    return limit


def _type(code: Sequence[Token], variable: Variable) -> str | None:
    """Return the type of a counter, if it is a whole number's."""
    words = [token.text for token in variable.specifiers]
    if variable.pointer or variable.dimensions or not words:
        return None
    if words == ["auto"]:
        value = code[variable.value[0] : variable.value[1] + 1]
        is_index = any(token.text == "threadIdx" for token in value) and all(
            token.text in _INDICES or token.text in "+-*" or token.text.isdigit() or token.text == "."
            for token in value
        )
        return "unsigned" if is_index else None
    return " ".join(words) if all(word in _WHOLE for word in words) else None


def _assigned(code: Sequence[Token], place: Range, name: str) -> Range | None:
    """Return the expression in `i = …`; of no tokens, none."""
    first, last = place
    if first > last:
        return place
    texts = [token.text for token in code[first : last + 1]]
    is_one = len(texts) > 2 and texts[:2] == [name, "="] and not {",", *ASSIGNMENTS} & set(texts[2:])
    return (first + 2, last) if is_one else None


def _is_own_counter(names: Names, one: Statement, counter: Variable, start: Range) -> bool:
    """Tell whether each thread has a counter of its own, which begins differently in each."""
    odd = counter.is_shared or counter.says("static") or counter.says("volatile") or names.is_escaped(counter)
    if odd or counter in names.uniform:
        return False
    if start[0] <= start[1]:
        return not names.is_uniform(*start)
    is_set_elsewhere = any(not one.first <= at <= one.last for at in names.writes(counter))
    return is_set_elsewhere or not counter.initializer or not names.is_uniform(*counter.value)


def is_written(code: Sequence[Token], body: Range, name: str) -> bool:
    """Tell whether a name may be written to, or mean something else, in a turn."""
    for at in range(body[0], body[1] + 1):
        if code[at].text != name or code[at - 1].text in (".", "->", "::"):
            continue
        before, after = code[at - 1], code[at + 1].text
        is_address = before.text == "&" and code[at - 2].kind == "punctuator" and code[at - 2].text not in (")", "]")
        is_declared = before.kind == "word" and before.text not in ("return", "case", "else", "do")
        is_changed = after in (*ASSIGNMENTS, "(", "{") or after in STEPS or before.text in STEPS
        if is_changed or is_address or is_declared:
            return True
        if before.text in ("*", "&") and after in ("=", ";", "{", ":"):  # perhaps a declaration
            declares = code[at - 2].kind == "word" and code[at - 3].text in (";", "{", "(", "const")
            if declares:
                return True
    return False
