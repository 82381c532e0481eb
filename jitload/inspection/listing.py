"""Text of PTX and machine code that shows itself in colours in a notebook."""

from __future__ import annotations

import html
from typing import Any


class Listing(str):
    """Assembly language as a `str`. The interpreter shows it as it is, and a notebook in colours (with Pygments)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        try:
            from pygments import highlight
            from pygments.formatters import HtmlFormatter
        except ImportError:
            return f"<pre>{html.escape(self)}</pre>"
        text: str = highlight(str(self), _lexer(), HtmlFormatter(noclasses=True, nobackground=True))
        return text


def _lexer() -> Any:
    """Return a lexer for both PTX and SASS."""
    from pygments import token
    from pygments.lexer import RegexLexer

    class _AssemblyLexer(RegexLexer):  # type: ignore[misc]  # Pygments may be missing
        name = "CUDA assembly"
        tokens = {  # noqa: RUF012  Pygments reads it from the class
            "root": [
                (r"//[^\n]*|/\*.*?\*/", token.Comment),
                (r"^[ \t]*[.$\w]+:", token.Name.Label),
                (r"`?\([.$\w]+\)", token.Name.Label),
                (r'"[^"\n]*"', token.String),
                (r"@!?%?[\w]+", token.Keyword.Pseudo),
                (r"%[\w.]+|\bU?[RP](?:\d+|Z|T)\b(?:\.\w+)*|\bSR_[\w.]+", token.Name.Variable),
                (r"-?\b0[xXfFdD][0-9a-fA-F]+|-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b", token.Number),
                (r"\.[a-z_]\w*", token.Keyword.Type),
                (r"\b[A-Z][A-Z0-9]+(?:\.[\w.]+)?|\b[a-z]\w*(?:\.[\w:.]+)+", token.Keyword),
                (r"[\w.$]+", token.Name),
                (r"\s+", token.Whitespace),
                (r".", token.Punctuation),
            ],
        }

    return _AssemblyLexer()
