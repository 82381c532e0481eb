"""Translates the grid of a Triton launch, if it is a function, to launch expressions such as "ceil_div(n, BLOCK)"."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, NamedTuple, NoReturn

from jitload.errors import LaunchSpecError
from jitload.request.launch import Extent
from jitload.triton.kernel import plain_value
from jitload.triton.key import outer_names

_logger = logging.getLogger(__name__)
_HINT = 'Write it as an expression over the kernel\'s parameters: grid="ceil_div(n, BLOCK)", or a tuple of them.'
_MAX_NODES = 1000  # nodes of a grid's syntax tree, after local variables were replaced by their values
_METHODS = ("numel", "size", "stride", "dim")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_FunctionNode = ast.Lambda | ast.FunctionDef


class GridScope(NamedTuple):
    """The names that a grid may use.

    Attributes:
        kernel: The kernel's name, for messages.
        arguments: Names of the run-time parameters.
        constexprs: Names of the constexprs.
        examples: Example values of run-time parameters, by name.
        tensors: The run-time parameters for which tensors of a grid function were passed, by the tensors' names in the
            function. A tensor that was not passed for exactly one parameter has "".
    """

    kernel: str
    arguments: tuple[str, ...]
    constexprs: tuple[str, ...]
    examples: Mapping[str, Any]
    tensors: Mapping[str, str]


def read_grid(grid: Any, scope: GridScope) -> Extent | None:
    """Return a grid function as a tuple of launch expressions. A grid that is not callable is returned unchanged."""
    if not callable(grid):
        expressions: Extent | None = grid  # `Launch` checks the expressions
        return expressions
    if not isinstance(grid, FunctionType):
        raise LaunchSpecError(
            f"must be an expression or a function, got {type(grid).__name__}",
            kernel=scope.kernel,
            field="grid",
            hint=_HINT,
        )
    return _Translator(grid, scope).run()


class _Inliner(ast.NodeTransformer):
    """Replaces names by expressions."""

    def __init__(self, variables: Mapping[str, ast.expr]) -> None:
        self.variables = variables

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.variables.get(node.id, node)


class _Translator:
    """Translates one function to launch expressions."""

    def __init__(self, grid: FunctionType, scope: GridScope) -> None:
        self.scope = scope
        self.outer = dict(outer_names(grid))
        self.function = grid
        self.meta = grid.__code__.co_varnames[0] if grid.__code__.co_argcount == 1 else ""
        self.constants: dict[str, int] = {}  # integers of the function that defines the grid, by name

    def run(self) -> Extent:
        if not self.meta:
            self.fail("must take one argument, Triton's mapping of the parameters", None)
        body = self.returned(_find_node(self.function, self.fail))
        extents = body.elts if isinstance(body, ast.Tuple | ast.List) else [body]
        expressions = tuple(ast.unparse(self.translate(extent)) for extent in extents)
        if self.constants:
            _logger.warning(
                "kernel %r: the grid is (%s) for all calls, with the constants %s. If they depend on the arguments, "
                "write %s['…'] with the name of a parameter, or leave grid= out and pass the grid to each call",
                self.scope.kernel,
                ", ".join(expressions),
                ", ".join(f"{name}={value}" for name, value in self.constants.items()),
                self.meta,
            )
        return expressions

    def fail(self, problem: str, node: ast.AST | None) -> NoReturn:
        text = ast.unparse(node) if node is not None else self.function.__name__
        raise LaunchSpecError(
            f"the function {problem}", kernel=self.scope.kernel, field="grid", expression=text, hint=_HINT
        )

    def returned(self, node: _FunctionNode) -> ast.expr:
        """Return the expression that a function returns, with local variables replaced by their values."""
        if isinstance(node, ast.Lambda):
            return node.body
        variables: dict[str, ast.expr] = {}
        for statement in node.body:
            match statement:
                case ast.Expr(value=ast.Constant()):  # a docstring
                    continue
                case ast.Return(value=ast.expr() as value) if statement is node.body[-1]:
                    return self.inline(value, variables)
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    self.assign(target, self.inline(value, variables), variables)
                case _:
                    self.fail("may only set local variables and return the grid", statement)
        return self.fail("must return the grid", node.body[-1])

    def inline(self, node: ast.expr, variables: Mapping[str, ast.expr]) -> ast.expr:
        """Return an expression with local variables replaced by their values."""
        inlined: ast.expr = _Inliner(variables).visit(copy.deepcopy(node))
        if sum(1 for _ in ast.walk(inlined)) > _MAX_NODES:
            self.fail("is too long, if its local variables are replaced by their values", node)
        return inlined

    def assign(self, target: ast.expr, value: ast.expr, variables: dict[str, ast.expr]) -> None:
        match target, value:
            case ast.Name(id=name), _:
                variables[name] = value
            case (ast.Tuple(elts=names), ast.Tuple(elts=values)) if len(names) == len(values):
                for part, item in zip(names, values, strict=True):
                    self.assign(part, item, variables)
            case _:
                self.fail("may only set local variables by name", target)

    def translate(self, node: ast.expr) -> ast.expr:  # noqa: C901, PLR0911  one line for each kind of node
        """Return a node as part of a launch expression."""
        match node:
            case ast.Constant(value=int()):
                return node
            case ast.Name():
                return self.translate_name(node)
            case ast.Subscript(value=ast.Name(id=meta)) if meta == self.meta:
                return self.translate_meta(node)
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape")) if tensor := self.tensor(owner):
                shape = ast.Attribute(value=tensor, attr="shape", ctx=ast.Load())
                return ast.Subscript(value=shape, slice=self.translate(node.slice), ctx=ast.Load())
            case ast.Attribute(value=owner, attr="ndim") if tensor := self.tensor(owner):
                return ast.Attribute(value=tensor, attr="ndim", ctx=ast.Load())
            case ast.BinOp(op=op) if isinstance(op, _OPERATORS):
                return ast.BinOp(left=self.translate(node.left), op=op, right=self.translate(node.right))
            case ast.UnaryOp() if not isinstance(node.op, ast.Invert):
                return ast.UnaryOp(op=node.op, operand=self.translate(node.operand))
            case ast.Compare():
                return ast.Compare(self.translate(node.left), node.ops, [self.translate(n) for n in node.comparators])
            case ast.BoolOp():
                return ast.BoolOp(op=node.op, values=[self.translate(value) for value in node.values])
            case ast.IfExp():
                return ast.IfExp(self.translate(node.test), self.translate(node.body), self.translate(node.orelse))
            case ast.Call():
                return self.translate_call(node)
        value = self.outer_value(node)
        if isinstance(value, int):
            return ast.Constant(int(value))
        return self.fail("has a part that launch expressions do not support", node)

    def tensor(self, node: ast.expr) -> ast.Name | None:
        """Return the run-time parameter for a node such as `x` or `META["x"]`, or None for any other node."""
        match node:
            case ast.Name(id=name) if name != self.meta and self.scope.tensors.get(name, name) in self.scope.arguments:
                return ast.Name(self.scope.tensors.get(name, name), ctx=ast.Load())
            case ast.Name(id=name) if hasattr(self.outer.get(name), "data_ptr"):
                self.fail(
                    f"reads the tensor {name!r}, which is not the argument of exactly one parameter; write "
                    f"{self.meta}['…'] with the name of a parameter: {', '.join(self.scope.arguments)}",
                    node,
                )
            case ast.Subscript(value=ast.Name(id=self.meta), slice=ast.Constant(str(name))):
                return ast.Name(name, ctx=ast.Load()) if name in self.scope.arguments else None
        return None

    def translate_name(self, node: ast.Name) -> ast.expr:
        """Return the name of a run-time parameter unchanged; replace the name of a Python integer by its value."""
        value = plain_value(self.outer.get(node.id))
        if node.id in self.scope.arguments:
            example = self.scope.examples.get(node.id, value)
            if isinstance(value, int) and isinstance(example, int) and value != example:
                self.fail(
                    f"uses {node.id!r}, which is both a variable with the value {value} and a parameter of the kernel "
                    f"(here {example}); write {self.meta}[{node.id!r}] for the parameter, or rename the variable",
                    node,
                )
            return node
        if isinstance(value, int):
            if node.id in self.function.__code__.co_freevars:
                self.constants[node.id] = int(value)
            return ast.Constant(int(value))
        constexprs = (f"{self.meta}[{name!r}]" for name in self.scope.constexprs)
        names = ", ".join((*self.scope.arguments, *constexprs))
        return self.fail(
            f"uses {node.id!r}, which is neither a run-time parameter nor an integer; the parameters are {names}", node
        )

    def translate_meta(self, node: ast.Subscript) -> ast.expr:
        names = (*self.scope.arguments, *self.scope.constexprs)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(key, str) and key in names:
            return ast.Name(key, ctx=ast.Load())
        return self.fail(f"uses {ast.unparse(node)}; the parameters of the kernel are {', '.join(names)}", node)

    def translate_call(self, node: ast.Call) -> ast.expr:
        if node.keywords:
            self.fail("passes an argument by name, which launch expressions do not support", node)
        match node.func:
            case ast.Attribute(value=owner, attr=attr) if attr in _METHODS and (tensor := self.tensor(owner)):
                method = ast.Attribute(value=tensor, attr=attr, ctx=ast.Load())
                return ast.Call(method, [self.translate(argument) for argument in node.args], [])
        function = self.outer_value(node.func)
        match node.args:
            case [ast.BinOp(left=left, op=ast.Div(), right=right)] if function is math.ceil:
                return self.call("ceil_div", [left, right])
            case [number] if function is int:
                return self.translate(number)
        name = _expression_function(function)
        if not name:
            self.fail(f"calls {ast.unparse(node.func)}(), which launch expressions do not support", node)
        return self.call(name, node.args)

    def call(self, name: str, arguments: list[ast.expr]) -> ast.expr:
        return ast.Call(ast.Name(name, ctx=ast.Load()), [self.translate(argument) for argument in arguments], [])

    def outer_value(self, node: ast.expr) -> Any:
        """Return the Python object for a name or an attribute, such as `triton.cdiv`, or None if there is none."""
        if isinstance(node, ast.Name):
            return self.outer.get(node.id, getattr(builtins, node.id, None))
        if isinstance(node, ast.Attribute):
            owner = self.outer_value(node.value)
            return None if owner is None else getattr(owner, node.attr, None)
        return None


def _expression_function(function: Any) -> str:
    """Return a function's name in launch expressions, or "" if launch expressions do not have the function."""
    if function is min or function is max:
        return str(function.__name__)
    if str(getattr(function, "__module__", "") or "").partition(".")[0] != "triton":
        return ""
    names = {"cdiv": "ceil_div", "next_power_of_2": "next_power_of_2"}
    return names.get(getattr(function, "__name__", ""), "")


def _find_node(function: FunctionType, fail: Callable[[str, ast.AST | None], NoReturn]) -> _FunctionNode:
    """Return the syntax tree of a function. The function is found in its source file by its first line and its code."""
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
    if not nodes:
        fail("cannot be found in its file, which may have changed since", None)
    if len({ast.dump(node) for node in nodes}) > 1:
        fail("shares its line with other functions", None)
    return nodes[0]


def _first_line(node: _FunctionNode) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min(node.lineno, *(decorator.lineno for decorator in decorators)) if decorators else node.lineno


def _has_code(node: _FunctionNode, code: CodeType) -> bool:
    """Return whether a node may be the source of a code object. For a lambda, compare the positions in the file.

    The result is True for a `def`, and in Python 3.10, which does not record positions.
    """
    if not hasattr(code, "co_positions") or not isinstance(node, ast.Lambda):
        return True
    body = node.body
    return (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in set(code.co_positions())
