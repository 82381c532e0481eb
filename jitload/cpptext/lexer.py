"""Split C++ text into tokens, and remove its comments.

The lexer knows just enough of C++'s lexical grammar never to mistake a comment or a string for code.
"""

from __future__ import annotations

import functools
import os
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any, Literal, NamedTuple

TokenKind = Literal["word", "number", "literal", "punctuator"]

# The order matters: a raw string comes before a word, a comment before a punctuator. An unterminated comment or literal
# ends with its line or with the file, as in a compiler's error recovery. `>>` stays two tokens, because it usually
# closes two template argument lists.
_TOKEN = re.compile(
    r"""
      (?P<comment>    //[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<raw>        (?:u8|[uUL])?R"(?P<fence>[^\s()\\]{0,16})\((?:.*?)(?:\)(?P=fence)"|\Z) )
    | (?P<literal>    (?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?) )
    | (?P<word>       [^\W\d][\w$]* | \$[\w$]* )
    | (?P<number>     \.?\d(?:'?[\w.]|(?<=[eEpP])[+-])* )
    | (?P<newline>    \n )
    | (?P<punctuator> <<<|<<=?|<=>|<=|>=|::|->|\.\.\.|[^\s] )
    """,
    re.VERBOSE | re.DOTALL,
)
# Matches comments. Also matches literals and header names, because they may contain the characters that begin a
# comment. Every alternative begins with a fixed character, so that the search is quick: it runs on whole trees of
# headers.
_COMMENT = r"""(?xs)
      /(?: /(?:[^\n\\]|\\\r?\n|\\.)* | \*.*?(?:\*/|\Z) )
    | "(?: (?:(?<=\bR")|(?<=\b[uUL]R")|(?<=\bu8R")) (?P<fence>[^\s()\\]{0,16})\(.*?(?:\)(?P=fence)"|\Z)
         | (?:\\.|[^"\\\n])*"? )
    | '(?: (?<!\w')|(?<=\b[uUL]')|(?<=\bu8') ) (?:\\.|[^'\\\n])*'?
    | \#[ \t]*(?:include_next|include|import)[ \t]*<[^>\n]*
    """
_BRACKET = re.compile(r"[][(){}]")
CLOSING = {"(": ")", "[": "]", "{": "}"}
_CONTINUATION = re.compile(r"\\\r?\n")


class Token(NamedTuple):  # tens of thousands are created, a third faster than if it were a frozen dataclass
    """One token of a C++ text.

    Attributes:
        kind: `word` for identifiers and keywords, `number`, `literal` for strings and characters, or `punctuator`.
        text: Its characters, without line continuations.
        line: The line it begins on, counted from 1.
        end_line: The line it ends on.
        in_directive: Whether it belongs to a preprocessor directive, including the `#`.
        start: Its position in the source. Each line continuation before it counts as two characters.
    """

    kind: TokenKind
    text: str
    line: int
    end_line: int
    in_directive: bool
    start: int = 0


def tokenize(source: str) -> list[Token]:
    r"""Split a C++ text into tokens, without comments and white space.

    Example:
        >>> [token.text for token in tokenize('k(1\'000); // "x"')]
        ['k', '(', "1'000", ')', ';']
    """
    text, continuations = _join_lines(source.replace("\r\n", "\n"))
    tokens: list[Token] = []
    line, is_line_start, in_directive = 1, True, False
    for match in _TOKEN.finditer(text):
        kind: Any = match.lastgroup
        characters = match[0]
        if kind == "newline":
            line, is_line_start, in_directive = line + 1, True, False
            continue
        kind = "literal" if kind == "raw" else kind
        in_directive = in_directive or (is_line_start and characters == "#")
        is_line_start = is_line_start and kind == "comment"
        start, end_line = match.start(), line
        if "\n" in characters:
            end_line += characters.count("\n")
        first, last = line, end_line
        if continuations:
            joined = bisect_right(continuations, start)
            first, last = line + joined, end_line + bisect_right(continuations, match.end() - 1)
            start += 2 * joined
        line = end_line
        if kind != "comment":
            tokens.append(Token(kind, characters, first, last, in_directive, start))
    return tokens


def strip_comments(text: str) -> str:
    """Replace each comment of a C++ text by a space; this is some thirty times as fast as `tokenize`."""
    return re.sub(_COMMENT, lambda match: " " if match[0][0] == "/" else match[0], text)


def read_header(path: str | Path) -> str:
    """Return the text of a header. The file is read again only if its size, modification time or inode has changed."""
    status = os.stat(path)
    return _read_state(str(path), status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=1024)
def _read_state(path: str, *_: int) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")


@functools.lru_cache(maxsize=1024)
def strip_header(text: str) -> str:
    """Return a header without comments. The result is remembered for the next source that includes the header."""
    return strip_comments(text)


def has_matching_brackets(text: str) -> bool:
    """Return whether the brackets outside comments and literals match."""
    unclosed: list[str] = []
    for bracket in _BRACKET.findall(re.sub(_COMMENT, " ", text)):
        if bracket in CLOSING:
            unclosed.append(CLOSING[bracket])
        elif not unclosed or unclosed.pop() != bracket:
            return False
    return not unclosed


def join_lines(text: str) -> str:
    """Remove the line continuations of a text. As in g++, there may be spaces behind the backslash."""
    return re.sub(r"\\[ \t]*\r?\n", "", text) if "\\" in text else text


def _join_lines(text: str) -> tuple[str, list[int]]:
    """Return a text without its line continuations, and the position of each continuation in the returned text."""
    if "\\\n" not in text:
        return text, []
    lines = _CONTINUATION.split(text)
    positions, position = [], 0
    for line in lines[:-1]:
        position += len(line)
        positions.append(position)
    return "".join(lines), positions
