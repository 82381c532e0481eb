"""C++ text and names in, whether it defines functions of the host under them out."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from jitload.device.lexer import Token, tokenize
from jitload.device.parameters import find_closing

# What may stand before the name of a function that is surely none of the device: a macro could hide `__global__`.
_SPECIFIERS = r"static|inline|constexpr|const|noexcept|extern"
_TYPES = r"void|bool|char|short|int|long|unsigned|signed|float|double|size_t|u?int(?:8|16|32|64)_t|std|string|vector"
_PLAIN = re.compile(rf'{_SPECIFIERS}|{_TYPES}|cuda[A-Z]\w*|CU[a-z]\w*|"C"|[*&<>,]|::')
_ENDS = (";", "{", "}")


@functools.lru_cache(maxsize=64)
def defines_host_functions(texts: Sequence[str], names: Sequence[str]) -> bool:
    """Tell whether texts define a function of the host under each of the names, with nothing before it but plain types.

    Example:
        >>> [defines_host_functions((text,), ("f",)) for text in ("int f(int n) { return n; }", "KERNEL f() {}")]
        [True, False]
    """
    defined = {name for text in texts for name in _defined(text)}
    return bool(names) and defined.issuperset(names)


def _defined(text: str) -> Iterator[str]:
    tokens = [token for token in tokenize(text) if token.kind != "comment" and not token.in_directive]
    for at, token in enumerate(tokens[:-1]):
        if token.kind == "word" and tokens[at + 1].text == "(" and _is_plain(tokens, at) and _has_body(tokens, at + 1):
            yield token.text


def _is_plain(tokens: Sequence[Token], at: int) -> bool:
    """Tell whether what stands before a name, up to the end of what was before that, is a plain type."""
    begin = next((before + 1 for before in range(at - 1, -1, -1) if tokens[before].text in _ENDS), 0)
    return begin < at and all(_PLAIN.fullmatch(token.text) for token in tokens[begin:at])


def _has_body(tokens: Sequence[Token], at: int) -> bool:
    closing = find_closing(tokens, at)
    following = [token.text for token in tokens[closing + 1 : closing + 3]] if closing >= 0 else []
    return following[:1] == ["{"] or following == ["noexcept", "{"]
