"""Parse a launch expression with Python's own parser.

Strings, comments, floats and overlong texts are rejected before Python parses the text. So users never see a warning of
Python's parser and never reach its limits.
"""

from __future__ import annotations

import ast
import keyword
import re
from typing import NamedTuple

from jitload.errors import LaunchSpecError

Expression = int | str

MAX_LENGTH = 1000
MAX_DEPTH = 50

LANGUAGE = (
    "Expressions have integers, + - * // %, comparisons, and, or, not, a if c else b, "
    "and the functions ceil_div, max, min and next_power_of_2."
)

# Python's parser warns about some strings ("\d") and about numbers followed by a keyword (1if). These tokens are
# refused before the text is parsed, so the warning filters, which all threads share, need not be changed.
_TOKEN = re.compile(r"""(?P<string>['"])|(?P<comment>\#)|(?P<character>[\\\0])|(?P<number>\.?[0-9][\w.]*)|[^\W\d]\w*""")
_INTEGER = re.compile(r"0[xX](_?[0-9a-fA-F])+|0[oO](_?[0-7])+|0[bB](_?[01])+|[1-9](_?[0-9])*|0(_?0)*")
_WHITE = str.maketrans("\n\r\t\f", "    ")
_ALLOWED_KEYWORDS = frozenset({"and", "or", "not", "if", "else", "is", "None", "True", "False"})


def python_name(name: str) -> str:
    """Return the Python name of a parameter: `in_` for the keyword `in`."""
    return f"{name}_" if keyword.iskeyword(name) else name


class ExpressionText(NamedTuple):
    """An expression as the user wrote it, on one line, with the kernel and the field that it belongs to."""

    text: str
    kernel: str
    field: str

    @classmethod
    def of(cls, text: str, kernel: str, field: str) -> ExpressionText:
        """Put an expression on one line, so that a column identifies a position in it."""
        return cls(text=text.translate(_WHITE).strip(), kernel=kernel, field=field)

    def parse(self) -> ast.expr:
        """Return the syntax tree, which may contain nodes that launch expressions do not support."""
        if not self.text:
            raise self.error("the expression is empty")
        if len(self.text) > MAX_LENGTH:
            raise self.error(f"the expression has {len(self.text)} characters; at most {MAX_LENGTH} are allowed")
        self._check_tokens()
        try:
            return ast.parse(self.text, mode="eval").body
        except (RecursionError, MemoryError) as error:
            raise self.too_deep() from error
        except SyntaxError as error:
            if "too many nested" in str(error.msg):
                raise self.too_deep() from error
            # An offset of 0 means that the error is at the end of the text.
            column = min(error.offset - 1, len(self.text)) if error.offset else len(self.text)
            raise self.error(f"this is not an expression: {error.msg}", column, self._keyword_hint()) from error
        except ValueError as error:  # raised for a lone surrogate
            raise self.error("the expression is not valid Unicode: it contains a lone surrogate") from error

    def error(self, problem: str, position: ast.expr | int | None = None, hint: str = "") -> LaunchSpecError:
        """Return the error for a problem. `position` is a node or a column, or None for the whole expression."""
        shown = self.text if len(self.text) <= MAX_LENGTH else self.text[:60] + "…"
        column = self.column(position.col_offset) if isinstance(position, ast.expr) else position
        return LaunchSpecError(
            problem, kernel=self.kernel, field=self.field, expression=shown, column=column, hint=hint
        )

    def too_deep(self) -> LaunchSpecError:
        """Return the error for an expression that is nested too deeply."""
        return self.error(f"the expression is nested more than {MAX_DEPTH} deep")

    def column(self, offset: int) -> int:
        """Convert a byte offset of `ast` to an offset in characters."""
        return len(self.text.encode()[:offset].decode())

    def operator_column(self, node: ast.BinOp) -> int:
        """Return the column of the operator. `ast` records only the columns of the operands."""
        column = self.column(node.left.end_col_offset or 0)
        while self.text[column] in " )":
            column += 1
        return column

    def _check_tokens(self) -> None:
        for token in _TOKEN.finditer(self.text):
            kind, word, column = token.lastgroup, token[0], token.start()
            if kind == "number" and _INTEGER.fullmatch(word):
                continue
            if kind == "number":
                raise self.error(f"{word} is not an integer", column, LANGUAGE)
            if kind == "character":
                raise self.error(f"the character {word!r} is not part of launch expressions", column)
            if kind is not None:
                raise self.error(f"a {kind} is not part of launch expressions", column, LANGUAGE)

    def _keyword_hint(self) -> str:
        words = (token[0] for token in _TOKEN.finditer(self.text))
        word = next((word for word in words if keyword.iskeyword(word) and word not in _ALLOWED_KEYWORDS), None)
        return f"A parameter named {word!r} is written {word}_ in expressions." if word else ""


# ---- requirements ------------------------------------------------------------------------------------------------


def split_terms(text: str, field: str) -> list[str]:
    """Return the terms of a `Launch(requires=…)`, so that a message can name the one that is false.

    The terms are the operands of `and`, with a comparison such as `0 < n <= m` as two.

    Example:
        `split_terms("0 < n <= m and k % 16 == 0", "requires")` gives `["0 < n", "n <= m", "k % 16 == 0"]`.
    """
    source = ExpressionText.of(text, "", field)
    return [term for node in _operands(source.parse()) for term in _split(node, source.text)]


def _operands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [operand for value in node.values for operand in _operands(value)]
    return [node]


def _split(node: ast.expr, text: str) -> list[str]:
    if not isinstance(node, ast.Compare):
        return [ast.get_source_segment(text, node) or text]
    operands = [node.left, *node.comparators]
    pairs = zip(operands, node.ops, operands[1:], strict=False)
    return [ast.unparse(ast.Compare(left, [op], [right])) for left, op, right in pairs]
