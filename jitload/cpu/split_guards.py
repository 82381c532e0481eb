"""A stretch between two barriers that is one `if (threadIdx.x < k) …` in, which threads are meant out.

The loop over the threads need not come to the others. Then `s[t] += s[t + k]`, a step of a sum in shared memory, writes
nothing that it reads, and with the bound near at hand the compiler sees that no sum wraps.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitload.cpu.split_names import Names
from jitload.cpu.split_words import TYPES

_INDEX = ["threadIdx", ".", "x"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What a thread's number is compared with.

    Attributes:
        limit: The tokens of the expression.
        name: The variable's name, where it is one.
        body: The tokens of what the threads below it do.
    """

    limit: tuple[int, int]
    name: str
    body: tuple[int, int]


def find_guard(names: Names, first: int, last: int) -> Guard | None:
    """Return the guard of a statement that is `if (threadIdx.x < …) …` and nothing else."""
    scopes = names.scopes
    if [scopes.text(first), scopes.text(first + 1)] != ["if", "("]:
        return None
    closing = scopes.closing[first + 1]
    less = next((at for at in range(first + 2, closing) if scopes.text(at) == "<"), -1)
    limit = (less + 1, closing - 1)
    words = {scopes.text(at) for at in range(closing + 1, last + 1)}
    if less < 0 or not _is_index(names, first + 2, less - 1) or words & {"else", "return", "break", "continue"}:
        return None
    is_plain = not any(scopes.text(at) in ("<", ">", "?", "&", "|", "^", "=") for at in range(limit[0], limit[1] + 1))
    is_same = is_plain and names.is_uniform(*limit) and names.is_settled(limit, (first, last))
    if not is_same or names.may_divide(*limit):
        return None
    variable = scopes.find(scopes.text(limit[0]), limit[0]) if limit[0] == limit[1] else None
    is_number = variable is None or all(word.text in TYPES or word.text == "const" for word in variable.specifiers)
    if not is_number or (variable is not None and variable.pointer):
        return None
    return Guard(limit=limit, name=variable.name if variable else "", body=(closing + 1, last))


def _is_index(names: Names, first: int, last: int) -> bool:
    """Tell whether an expression is the thread's number in its row."""
    scopes = names.scopes
    texts = [scopes.text(at) for at in range(first, last + 1)]
    variable = scopes.find(texts[0], first) if len(texts) == 1 else None
    if variable is None or variable not in names.again:
        return texts == _INDEX
    value = [scopes.text(at) for at in range(variable.value[0], variable.value[1] + 1)]
    is_wide = not {"char", "float", "double", "short", "bool"} & {word.text for word in variable.specifiers}
    return is_wide and value == _INDEX
