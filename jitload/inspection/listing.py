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
        formatter = HtmlFormatter(style=_style(), noclasses=True, nobackground=True)
        text: str = highlight(str(self), _lexer(), formatter)
        return text


def _style() -> Any:
    """Return colours that can be read on a light and on a dark background."""
    from pygments import token
    from pygments.style import Style

    class _AssemblyStyle(Style):  # type: ignore[misc]  # Pygments may be missing
        styles = {  # noqa: RUF012  Pygments reads it from the class
            token.Comment: "italic #767676",
            token.Keyword: "bold",
            token.Keyword.Pseudo: "#b0559b",
            token.Keyword.Type: "#2b8755",
            token.Name.Label: "#b8584a",
            token.Name.Variable: "#2a7fc4",
            token.Number: "#a8690b",
            token.String: "#2b8755",
        }

    return _AssemblyStyle


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
