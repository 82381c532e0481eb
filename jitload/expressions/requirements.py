"""Splits what a `Launch` requires into terms, so that a message can name the term that is false."""

from __future__ import annotations

import ast
import itertools

from jitload.expressions.parse import ExpressionText


def split_terms(text: str, field: str) -> list[str]:
    """Return the operands of `and`, with a comparison such as `0 < n <= m` as two.

    Example:
        `split_terms("0 < n <= m and k % 16 == 0", "requires")` gives `["0 < n", "n <= m", "k % 16 == 0"]`.
    """
    source = ExpressionText.of(text, "", field)
    return [*itertools.chain.from_iterable(_split(node, source.text) for node in _operands(source.parse()))]


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
