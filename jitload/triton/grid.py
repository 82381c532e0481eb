"""The grid of a Triton launch in, launch expressions out: the lambda that Triton takes is read and written as one."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, NoReturn

from jitload.errors import LaunchSpecError
from jitload.launch import Extent
from jitload.triton.globals import outer_names, plain_value

_HINT = 'Write it as an expression over the kernel\'s parameters: grid="ceil_div(n, BLOCK)", or a tuple of them.'
_METHODS = ("numel", "size", "stride", "dim")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_Node = ast.Lambda | ast.FunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class GridNames:
    """What a grid may speak of.

    Attributes:
        kernel: The kernel's name, for messages.
        arguments: The run-time parameters.
        constexprs: Names of the constexprs.
        examples: Values of run-time parameters that were given as examples.
    """

    kernel: str
    arguments: tuple[str, ...]
    constexprs: tuple[str, ...]
    examples: Mapping[str, Any] = field(default_factory=dict)


def read_grid(grid: Any, names: GridNames) -> Extent | None:
    """Return a grid as launch expressions: one that is such already, or a function of Triton's form.

    Raises:
        LaunchSpecError: It is a function that cannot be written so.
    """
    if not callable(grid):
        return grid  # type: ignore[no-any-return]  # Launch looks at it
    if not isinstance(grid, FunctionType):
        raise LaunchSpecError(f"is a {type(grid).__name__}", kernel=names.kernel, field="grid", hint=_HINT)
    return _Writer(grid, names).run()


class _Writer:
    """Writes a function of Triton's form as launch expressions."""

    def __init__(self, grid: FunctionType, names: GridNames) -> None:
        self.names = names
        self.outer = dict(outer_names(grid))
        self.given = grid
        self.meta = grid.__code__.co_varnames[0] if grid.__code__.co_argcount == 1 else ""
        self.text = grid.__name__

    def run(self) -> Extent:
        if not self.meta:
            self.fail("must take one argument, the mapping of Triton's", None)
        body = self._body(_find_node(self.given, self.fail))
        parts = body.elts if isinstance(body, ast.Tuple | ast.List) else [body]
        return tuple(ast.unparse(self.write(part)) for part in parts)

    def fail(self, problem: str, node: ast.AST | None) -> NoReturn:
        shown = ast.unparse(node) if node is not None else self.text
        raise LaunchSpecError(
            f"the function {problem}", kernel=self.names.kernel, field="grid", expression=shown, hint=_HINT
        )

    def _body(self, node: _Node) -> ast.expr:
        if isinstance(node, ast.Lambda):
            return node.body
        last = node.body[-1]
        docs = [isinstance(other, ast.Expr) and isinstance(other.value, ast.Constant) for other in node.body[:-1]]
        if not isinstance(last, ast.Return) or last.value is None or not all(docs):
            self.fail("must do nothing but return the grid", last)
        return last.value

    def write(self, node: ast.expr) -> ast.expr:  # noqa: C901, PLR0911  one line a kind of node
        """Return a node as it stands in a launch expression."""
        match node:
            case ast.Constant(value=int()):
                return node
            case ast.Name():
                return self.name(node)
            case ast.Subscript(value=ast.Name(id=meta)) if meta == self.meta:
                return self.of_meta(node)
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape")) if tensor := self.tensor(owner):
                shape = ast.Attribute(value=tensor, attr="shape", ctx=ast.Load())
                return ast.Subscript(value=shape, slice=self.write(node.slice), ctx=ast.Load())
            case ast.Attribute(value=owner, attr="ndim") if tensor := self.tensor(owner):
                return ast.Attribute(value=tensor, attr="ndim", ctx=ast.Load())
            case ast.BinOp(op=op) if isinstance(op, _OPERATORS):
                return ast.BinOp(left=self.write(node.left), op=op, right=self.write(node.right))
            case ast.UnaryOp() if not isinstance(node.op, ast.Invert):
                return ast.UnaryOp(op=node.op, operand=self.write(node.operand))
            case ast.Compare():
                return ast.Compare(self.write(node.left), node.ops, [self.write(other) for other in node.comparators])
            case ast.BoolOp():
                return ast.BoolOp(op=node.op, values=[self.write(value) for value in node.values])
            case ast.IfExp():
                return ast.IfExp(self.write(node.test), self.write(node.body), self.write(node.orelse))
            case ast.Call():
                return self.call(node)
        value = self.value_of(node)
        if isinstance(value, int):
            return ast.Constant(int(value))
        return self.fail("has a part that launch expressions do not know", node)

    def tensor(self, node: ast.expr) -> ast.Name | None:
        """Return the run-time parameter whose attribute is asked for: `x` and `META["x"]` are the same one."""
        match node:
            case ast.Name(id=name) if name != self.meta and name in self.names.arguments:
                return node
            case ast.Subscript(value=ast.Name(id=self.meta), slice=ast.Constant(str(name))):
                return ast.Name(name, ctx=ast.Load()) if name in self.names.arguments else None
        return None

    def name(self, node: ast.Name) -> ast.expr:
        """Return a run-time parameter as itself and an integer from outside as its value."""
        value = plain_value(self.outer.get(node.id))
        if node.id in self.names.arguments:
            example = self.names.examples.get(node.id, value)
            if isinstance(value, int) and isinstance(example, int) and value != example:
                self.fail(
                    f"uses {node.id!r}, which is {value} outside and the kernel's parameter (here {example}); say "
                    f"{self.meta}[{node.id!r}] for the parameter, or rename the other",
                    node,
                )
            return node
        if isinstance(value, int):
            return ast.Constant(int(value))
        known = ", ".join((*self.names.arguments, *(f"{self.meta}[{name!r}]" for name in self.names.constexprs)))
        return self.fail(
            f"uses {node.id!r}, which is neither a run-time parameter nor an integer; there are {known}", node
        )

    def of_meta(self, node: ast.Subscript) -> ast.expr:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(key, str) and key in (*self.names.arguments, *self.names.constexprs):
            return ast.Name(key, ctx=ast.Load())
        known = ", ".join((*self.names.arguments, *self.names.constexprs))
        return self.fail(f"asks for {ast.unparse(node)}; the kernel has {known}", node)

    def call(self, node: ast.Call) -> ast.expr:
        if node.keywords:
            self.fail("gives an argument by name", node)
        match node.func:
            case ast.Attribute(value=owner, attr=attr) if attr in _METHODS and (tensor := self.tensor(owner)):
                method = ast.Attribute(value=tensor, attr=attr, ctx=ast.Load())
                return ast.Call(method, [self.write(argument) for argument in node.args], [])
        function = self.value_of(node.func)
        if function is math.ceil and isinstance(node.args[0], ast.BinOp) and isinstance(node.args[0].op, ast.Div):
            return self.function("ceil_div", [node.args[0].left, node.args[0].right])
        if function is int:
            return self.write(node.args[0])
        name = _function_name(function)
        if not name:
            self.fail(f"calls {ast.unparse(node.func)}(), which launch expressions do not know", node)
        return self.function(name, node.args)

    def function(self, name: str, arguments: list[ast.expr]) -> ast.expr:
        return ast.Call(ast.Name(name, ctx=ast.Load()), [self.write(argument) for argument in arguments], [])

    def value_of(self, node: ast.expr) -> Any:
        """Return the object behind a name from outside, or an attribute of such, or None."""
        if isinstance(node, ast.Name):
            return self.outer.get(node.id, getattr(builtins, node.id, None))
        if isinstance(node, ast.Attribute):
            owner = self.value_of(node.value)
            return None if owner is None else getattr(owner, node.attr, None)
        return None


def _function_name(function: Any) -> str:
    """Return the launch expressions' name of a function, or an empty one."""
    if function is min or function is max:
        return str(function.__name__)
    home = str(getattr(function, "__module__", "") or "")
    known = {"cdiv": "ceil_div", "next_power_of_2": "next_power_of_2"}
    return known.get(getattr(function, "__name__", ""), "") if home.partition(".")[0] == "triton" else ""


def _find_node(function: FunctionType, fail: Callable[[str, ast.AST | None], NoReturn]) -> _Node:
    """Return the syntax tree of a function: the one on its line that has its code."""
    try:
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
    except (OSError, SyntaxError, ValueError):
        fail("cannot be read: its source is not in a file", None)
    code = function.__code__
    kind = ast.Lambda if function.__name__ == "<lambda>" else ast.FunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, kind) and _first_line(node) == code.co_firstlineno]
    if len(nodes) > 1:
        nodes = [node for node in nodes if _has_code(node, code)]
    texts = {ast.dump(node) for node in nodes}
    if len(texts) != 1:
        fail(
            "cannot be found in its file, which may have changed since" if not nodes else "shares its line with others",
            None,
        )
    return nodes[0]


def _first_line(node: _Node) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min(node.lineno, *(decorator.lineno for decorator in decorators)) if decorators else node.lineno


def _has_code(node: _Node, code: CodeType) -> bool:
    """Tell whether a node is where a code object's instructions stand; Python 3.10 does not say."""
    if not hasattr(code, "co_positions") or not isinstance(node, ast.Lambda):
        return True
    body = node.body
    return (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in set(code.co_positions())
