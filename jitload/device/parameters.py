"""The tokens of a C++ parameter list in, the text of each type and each name out."""

from __future__ import annotations

from collections.abc import Sequence

from jitload.device.lexer import Token
from jitload.launch import python_name

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ATTRIBUTES = frozenset({"__attribute__", "__attribute", "__declspec", "__align__", "alignas"})
_DROPPED = frozenset({"__grid_constant__", "__restrict__", "__restrict", "restrict", "register", "typename"})
_NOT_A_TYPE = frozenset({"const", "volatile", "struct", "class", "union", "enum"})
_BUILTINS = ("void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "auto")
_NOT_A_NAME = _NOT_A_TYPE.union(_BUILTINS, ("wchar_t", "char8_t", "char16_t", "char32_t", "__int128"))


def read_parameters(tokens: Sequence[Token]) -> tuple[tuple[str, str], ...]:
    """Return type text and name of each parameter; the name is "" where there is none.

    Args:
        tokens: What stands between the parentheses, without comments.

    Example:
        >>> read_parameters(tokenize("const float *x, int in = 3, void (*f)(int)"))
        (('const float*', 'x'), ('int', 'in_'), ('void (*)(int)', 'f'))
    """
    pieces = _split_at_commas(tokens)
    if [token.text for token in tokens] in ([], ["void"]):
        return ()
    return tuple(_read_parameter(piece) for piece in pieces)


def find_closing(tokens: Sequence[Token], start: int) -> int:
    """Return the index of the bracket that closes the one at `start`, or -1."""
    opening, closing, depth = tokens[start].text, _CLOSING[tokens[start].text], 0
    for at in range(start, len(tokens)):
        depth += (tokens[at].text == opening) - (tokens[at].text == closing)
        if depth == 0:
            return at
    return -1


def find_angle(tokens: Sequence[Token], start: int) -> int:
    """Return the index of the `>` that closes the `<` at `start`, or -1 if that is a less-than sign."""
    depth, at = 0, start
    while at < len(tokens):
        text = tokens[at].text
        if text in _CLOSING:
            at = find_closing(tokens, at)
            if at < 0:
                return -1
        elif text in (")", "]", "}", ";"):
            return -1
        depth += (text == "<") - (text == ">")
        if depth == 0:
            return at
        at += 1
    return -1


def write_tokens(tokens: Sequence[Token]) -> str:
    """Write tokens with the spaces that a person would put between them."""
    written = ""
    for before, token in zip((None, *tokens), tokens, strict=False):
        is_apart = before is not None and (
            before.text == ","
            or (token.kind != "mark" and before.kind != "mark")
            or (token.kind == "word" and before.text in ("*", "&", ">", "]", ")"))
            or (token.text == "(" and before.kind == "word" and before.text != "decltype")
        )
        written += (" " if is_apart else "") + token.text
    return written


def _split_at_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    pieces: list[list[Token]] = [[]]
    at = 0
    while at < len(tokens):
        end = _group_end(tokens, at)
        if tokens[at].text == ",":
            pieces.append([])
        else:
            pieces[-1] += tokens[at : end + 1]
        at = end + 1
    return pieces


def _group_end(tokens: Sequence[Token], at: int) -> int:
    """Return the end of the bracketed group that begins at `at`, or `at` itself."""
    text = tokens[at].text
    if text in _CLOSING:
        return max(find_closing(tokens, at), at)
    is_template = text == "<" and at > 0 and tokens[at - 1].kind == "word"
    return max(find_angle(tokens, at), at) if is_template else at


def _read_parameter(tokens: Sequence[Token]) -> tuple[str, str]:
    declaration = _declaration(tokens)
    inner = _inner_declarator(declaration)
    if inner is not None:
        names = [at for at in range(*inner) if _is_name(declaration, at)]
        kept = [token for at, token in enumerate(declaration) if at not in names[-1:]]
        return write_tokens(kept), python_name(declaration[names[-1]].text) if names else ""
    dimensions: list[Token] = []
    while declaration and declaration[-1].text == "]":
        start = max(at for at in range(len(declaration)) if declaration[at].text == "[")
        dimensions = declaration[start:] + dimensions
        declaration = declaration[:start]
    name = ""
    if declaration and _is_parameter_name(declaration):
        name = python_name(declaration.pop().text)
    return write_tokens(declaration) + _decay(dimensions), name


def _declaration(tokens: Sequence[Token]) -> list[Token]:
    """Drop the default value, attributes and words that are no part of the type."""
    kept: list[Token] = []
    at = 0
    while at < len(tokens):
        text, following = (tokens[at].text, tokens[at + 1].text if at + 1 < len(tokens) else "")
        if text == "=":
            break
        end = _group_end(tokens, at)
        if text == "[" and following == "[":
            pass
        elif text in _ATTRIBUTES and following == "(":
            end = _group_end(tokens, at + 1)
        elif text not in _DROPPED:
            kept += tokens[at : end + 1]
        at = end + 1
    return kept


def _inner_declarator(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """Return the range within the parentheses of `(*name)`, as in a pointer to a function or an array."""
    for at in range(1, len(tokens) - 1):
        if tokens[at].text == "(" and (tokens[at + 1].text in ("*", "&") or _is_member_pointer(tokens, at + 1)):
            end = find_closing(tokens, at)
            return (at + 1, end) if end > 0 else None
    return None


def _is_member_pointer(tokens: Sequence[Token], at: int) -> bool:
    while at + 1 < len(tokens) and tokens[at].kind == "word" and tokens[at + 1].text == "::":
        at += 2
        if at < len(tokens) and tokens[at].text == "*":
            return True
    return False


def _is_name(tokens: Sequence[Token], at: int) -> bool:
    following = tokens[at + 1].text if at + 1 < len(tokens) else ""
    return tokens[at].kind == "word" and tokens[at].text not in _NOT_A_NAME and following != "::"


def _is_parameter_name(tokens: Sequence[Token]) -> bool:
    """Tell whether the last word is the parameter's name rather than the end of its type."""
    before = tokens[:-1]
    has_type = any(token.kind == "word" and token.text not in _NOT_A_TYPE for token in before)
    return has_type and before[-1].text != "::" and _is_name(tokens, len(tokens) - 1)


def _decay(dimensions: Sequence[Token]) -> str:
    """Write an array parameter as the pointer that it is."""
    if not dimensions:
        return ""
    others = write_tokens(dimensions[find_closing(dimensions, 0) + 1 :])
    return f" (*){others}" if others else "*"
