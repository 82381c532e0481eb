"""The subscripts in a turn of a loop with strides in, out those that count with the loop's counter.

In `x[row * n + i]` the sum may wrap, for all that a compiler knows, and then the elements are not side by side. It is
worked out before the loop, for its first and its last turn, whether that happens; if not, the element is found from
where the first thread's is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitload.cpu.split_names import Names
from jitload.cpu.split_strides import Range, Stride, is_written
from jitload.cpu.split_text import write_tokens_apart
from jitload.cpu.split_words import KEYWORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscript:
    """An expression that grows by one where the counter does.

    Attributes:
        text: The expression.
        is_uniform: Whether it is the same in all threads with the same counter.
        places: Where it stands: the tokens between the brackets.
    """

    text: str
    is_uniform: bool
    places: tuple[Range, ...]


def find_subscripts(names: Names, stride: Stride) -> list[Subscript]:
    """Return the subscripts of a turn that count with the counter, those that are nothing else apart."""
    found: dict[str, list[Range]] = {}
    uniform: dict[str, bool] = {}
    code = names.scopes.code
    for first, last in _brackets(names, stride):
        counters = [at for at in range(first, last + 1) if code[at].text == stride.name]
        if len(counters) != 1 or not _is_sum(names, (first, last), counters[0]):
            continue
        rest = [place for place in ((first, counters[0] - 1), (counters[0] + 1, last)) if place[0] <= place[1]]
        words = {code[at].text for place in rest for at in range(place[0], place[1] + 1) if code[at].kind == "word"}
        is_settled = all(names.is_settled(place, (stride.first, stride.last)) for place in rest)
        if (
            not is_settled
            or names.may_divide(first, last)
            or any(is_written(code, stride.body, word) for word in words)
        ):
            continue
        text = write_tokens_apart(code[first : last + 1])
        found.setdefault(text, []).append((first, last))
        uniform[text] = all(names.is_uniform(*place) for place in rest)
    return [Subscript(text=text, is_uniform=uniform[text], places=tuple(places)) for text, places in found.items()]


def _brackets(names: Names, stride: Stride) -> Iterator[Range]:
    """Yield what stands between the brackets behind a name, if it is more than a token."""
    code = names.scopes.code
    for at in range(stride.body[0] + 1, stride.body[1] + 1):
        before = code[at - 1]
        is_element = (before.kind == "word" and before.text not in KEYWORDS) or before.text in ("]", ")")
        if code[at].text == "[" and is_element and names.scopes.closing[at] > at + 2:
            yield at + 1, names.scopes.closing[at] - 1


def _is_sum(names: Names, place: Range, counter: int) -> bool:
    """Tell whether a counter is added as it is to something without it."""
    code = names.scopes.code
    if code[counter - 1].text not in ("[", "+") or code[counter + 1].text not in ("]", "+", "-"):
        return False
    at = place[0]
    while at <= place[1]:
        token = code[at]
        if token.kind == "punctuator" and token.text not in ("(", "+", "-", "*", "/", "%", "."):
            return False
        at = names.scopes.closing.get(at, at) + 1
    return True
