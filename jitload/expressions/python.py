"""Translate a launch expression to Python, for sizes that torch may trace as symbols.

A launch expression has the meaning of the same Python expression, so the text changes little. Comparisons become
integers, because torch does not calculate with symbolic booleans.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from jitload.expressions.compiler import ScopeEntry, ceil_div, compile_expression
from jitload.expressions.parse import ExpressionText


def to_python(text: str, scope: Mapping[str, ScopeEntry], *, kernel: str, field: str) -> str:
    """Return a launch expression as Python code.

    Parameters get the prefix `a_`, and functions get the names in `FUNCTIONS`.

    Example:
        `to_python("ceil_div(n, 2)", scope, kernel="pool", field="out")` gives `_ceil_div(a_n, 2)`.

    Raises:
        LaunchSpecError: The expression is malformed, uses an unknown name, or always fails, like `1 // 0`.
    """
    compile_expression(text, scope, kernel=kernel, field=field)
    tree = ExpressionText.of(text, kernel, field).parse()
    return ast.unparse(_ToPython().visit(tree))


class _ToPython(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(f"a_{node.id}")

    def visit_Call(self, node: ast.Call) -> ast.Call:
        node.args = [self.visit(argument) for argument in node.args]
        if isinstance(node.func, ast.Name):
            node.func = ast.Name(f"_{node.func.id}")
        else:
            self.visit(node.func)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Call:
        return _as_integer(self.generic_visit(node))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _as_integer(node) if isinstance(node.op, ast.Not) else node


def _as_integer(node: Any) -> ast.Call:
    return ast.Call(ast.Name("_int"), [node], [])


def _next_power_of_2(n: Any) -> Any:
    power = 1  # n is only compared with numbers, so that a traced program is valid for all n up to the result
    while power < n:
        power *= 2
    return power if n > 0 else 0


FUNCTIONS = {"_ceil_div": ceil_div, "_next_power_of_2": _next_power_of_2, "_min": min, "_max": max, "_int": int}
