"""One launch expression in, checked C++ text out.

The syntax tree is written again over the functions of `jitload/expression.h`, with Python's meaning: `//` and `%`
round down, `and` and `or` give one of their operands, what is not needed is not evaluated. Of the user's text, only
integers and the places of arguments reach the C++.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from jitload.expressions import emit as code
from jitload.expressions.emit import Code
from jitload.expressions.parse import LANGUAGE, MAX_DEPTH, MAX_LENGTH, Expression, ExpressionText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jitload.errors import LaunchSpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeEntry:
    """What a name in an expression stands for.

    Attributes:
        index: Position of the argument in the call.
        kind: `tensor`, `int` (bool and enums too), or `other`, which has no use here.
        type: The parameter's C++ type, for messages.
        computed: For an integer that `Launch.args` computes, and that is no argument: C++ text of its value.
    """

    index: int
    kind: Literal["tensor", "int", "other"]
    type: str = ""
    computed: str | None = None


def compile_expression(text: Expression, scope: Mapping[str, ScopeEntry], *, kernel: str, field: str) -> str:
    """Return C++ text of an integer type, to be used where `jitload_eval* e` is known.

    Example:
        `compile_expression("ceil_div(n, 256)", scope, kernel="add", field="grid")` gives
        `jitload_ceil_div(e, jitload_int(e, 2), 256)`.

    Args:
        text: The expression, or an integer.
        scope: What the names in it may be.
        kernel: The exported name, for messages.
        field: The part of the `Launch` it stands in, such as `grid[0]`, for messages.

    Raises:
        LaunchSpecError: The expression is malformed, fails whatever the arguments are, or does not fit the scope.
    """
    return _Compiler(text, scope, kernel, field).run().text


@lru_cache(maxsize=4096)  # a Launch is often made anew with each call of load_inline
def constant_value(text: Expression, *, field: str) -> int | None:
    """Check an expression as far as that goes without its kernel; return its value if it is a constant."""
    return _Compiler(text, None, "", field).run().value


@lru_cache(maxsize=4096)
def names_in(text: Expression) -> frozenset[str]:
    """Return the names of the parameters that an expression uses."""
    compiler = _Compiler(text, None, "", "")
    compiler.run()
    return frozenset(compiler.names)


# ---- tables -------------------------------------------------------------------------------------------------------


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 0


_BINARY: dict[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[int, int], bool]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_FUNCTIONS: dict[str, tuple[str, Callable[..., int]]] = {
    "ceil_div": ("two integers", _ceil_div),
    "max": ("two or more integers", max),
    "min": ("two or more integers", min),
    "next_power_of_2": ("one integer", _next_power_of_2),
}
_ARITY = {"ceil_div": (2, 2), "max": (2, MAX_LENGTH), "min": (2, MAX_LENGTH), "next_power_of_2": (1, 1)}
_METHODS = {"numel": (0, "numel"), "dim": (0, "ndim"), "size": (1, "size"), "stride": (1, "stride")}

_REFUSED: dict[type[ast.AST], str] = {
    ast.Div: "/", ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.MatMult: "@", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
    ast.Lambda: "lambda", ast.NamedExpr: ":=", ast.Tuple: "a tuple", ast.List: "a list", ast.Dict: "a dict",
    ast.Set: "a set", ast.ListComp: "a comprehension", ast.SetComp: "a comprehension", ast.Slice: "a slice",
    ast.DictComp: "a comprehension", ast.GeneratorExp: "a comprehension",
}  # fmt: skip
_TENSOR = "A tensor has .numel(), .size(i), .shape[i], .stride(i), .ndim and .dim()."
_HINTS = {
    "/": "Use // to round down, or ceil_div(a, b) to round up.",
    "a tuple": 'Several dimensions are a tuple of expressions: ("a", "b").',
    "is": "Use ==.",
    "is not": "Use !=.",
}

# ---- the compiler -------------------------------------------------------------------------------------------------


class _Compiler:
    """Compiles one expression; without a scope it only checks it and collects its names."""

    def __init__(self, text: Expression, scope: Mapping[str, ScopeEntry] | None, kernel: str, field: str) -> None:
        self.given = text
        self.source = ExpressionText.of("" if isinstance(text, int) else text, kernel, field)
        self.scope = scope
        self.names: set[str] = set()
        self.depth = 0
        self.lazy = 0
        self.temporaries = 0

    def run(self) -> Code:
        if isinstance(self.given, int):
            return self.integer(self.given, None)
        return self.compile(self.source.parse())

    def compile(self, node: ast.expr, *, lazily: bool = False) -> Code:
        """Compile one node; `lazily` where it may stay unevaluated, so that it may not fail now."""
        self.depth += 1
        self.lazy += lazily
        if self.depth > MAX_DEPTH:
            raise self.source.too_deep()
        compiled = self.dispatch(node)
        self.depth -= 1
        self.lazy -= lazily
        return compiled

    def dispatch(self, node: ast.expr) -> Code:  # noqa: C901, PLR0911  one line a kind of node
        match node:
            case ast.Constant(value=int(value)):
                return self.integer(value, node)
            case ast.Name():
                return self.name(node)
            case ast.UnaryOp():
                return self.unary(node)
            case ast.BinOp():
                return self.binary(node)
            case ast.Compare():
                return self.comparison(node)
            case ast.BoolOp():
                return self.boolean(node)
            case ast.IfExp():
                return self.conditional(node)
            case ast.Call(func=ast.Attribute() as method):
                return self.method(node, method)
            case ast.Call():
                return self.function(node)
            case ast.Subscript(value=ast.Attribute(attr="shape") as shape):
                return self.query("size", shape, self.compile(node.slice))
            case ast.Subscript():
                raise self.source.error("only .shape has an index", node, _TENSOR)
            case ast.Attribute():
                return self.attribute(node)
        segment = ast.get_source_segment(self.source.text, node) or ""
        raise self.refused(_REFUSED.get(type(node), segment), node)

    def refused(self, what: str, at: ast.expr | int) -> LaunchSpecError:
        return self.source.error(f"{what} is not part of launch expressions", at, _HINTS.get(what, LANGUAGE))

    def integer(self, value: int, at: ast.expr | None) -> Code:
        value = int(value)  # of an enum's member, a range would compare all its numbers
        if value not in code.INT64:
            raise self.source.error("the integer does not fit 64 bits", at)
        return code.constant(value)

    def name(self, node: ast.Name) -> Code:
        entry = self.entry(node)
        if entry is None:
            return Code("0")
        if entry.kind == "int":
            return Code(entry.computed) if entry.computed else code.call("int", entry.index)
        if entry.kind == "tensor":
            raise self.source.error(f"{node.id!r} is a tensor, not an integer", node, _TENSOR)
        raise self.source.error(f"{node.id!r} is a {entry.type!r} parameter, not an integer", node, LANGUAGE)

    def entry(self, node: ast.Name) -> ScopeEntry | None:
        """Look a name up; without a scope every name is good."""
        self.names.add(node.id)
        if self.scope is None:
            return None
        if entry := self.scope.get(node.id):
            return entry
        known = f"The names here are {', '.join(self.scope)}." if self.scope else "The kernel has no parameters."
        raise self.source.error(f"there is no parameter {node.id!r}", node, known)

    def apply(self, name: str, fold: Callable[..., int], operands: Sequence[Code], at: ast.expr | int) -> Code:
        """Apply a function that may fail, here if its operands are known."""
        values = [operand.value for operand in operands if operand.value is not None]
        problem = ""
        if len(values) == len(operands):
            try:
                value = fold(*values)
            except ZeroDivisionError:
                problem = f"division of {values[0]} by zero"
            else:
                if value in code.INT64:
                    return code.constant(value)
                problem = f"the result, {value}, does not fit 64 bits"
        elif name in ("floordiv", "mod", "ceil_div") and operands[1].value == 0:
            problem = "division by zero"
        if problem and not self.lazy:
            raise self.source.error(problem, at)
        return code.call(name, *operands)

    def unary(self, node: ast.UnaryOp) -> Code:
        if isinstance(node.op, ast.Invert):
            raise self.refused("~", node)
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant) and node.operand.value == 2**63:
            return code.constant(-(2**63))  # the one number whose absolute value does not fit
        operand = self.compile(node.operand)
        if isinstance(node.op, ast.USub):
            return self.apply("neg", operator.neg, [operand], node)
        if isinstance(node.op, ast.UAdd):
            return operand
        if operand.value is not None:
            return code.constant(int(not operand.value))
        return code.invert(operand)

    def binary(self, node: ast.BinOp) -> Code:
        at = self.source.operator_column(node)
        if type(node.op) not in _BINARY:
            raise self.refused(_REFUSED[type(node.op)], at)
        name, fold = _BINARY[type(node.op)]
        return self.apply(name, fold, [self.compile(node.left), self.compile(node.right)], at)

    def comparison(self, node: ast.Compare) -> Code:
        if refused := next((op for op in node.ops if type(op) not in _COMPARISONS), None):
            raise self.refused(_REFUSED[type(refused)], node)
        operations = [_COMPARISONS[type(op)] for op in node.ops]
        codes = [self.compile(node.left), self.compile(node.comparators[0])]
        codes += [self.compile(operand, lazily=True) for operand in node.comparators[1:]]
        values = [part.value for part in codes if part.value is not None]
        if len(values) == len(codes):
            steps = zip(operations, values, values[1:], strict=False)
            return code.constant(int(all(holds(left, right) for (_, holds), left, right in steps)))
        return code.chain([symbol for symbol, _ in operations], codes, self.temporary)

    def temporary(self) -> str:
        self.temporaries += 1
        return f"t{self.temporaries}"

    def boolean(self, node: ast.BoolOp) -> Code:
        is_or = isinstance(node.op, ast.Or)
        codes: list[Code] = []
        is_decided = False
        for operand in node.values:
            part = self.compile(operand, lazily=is_decided or any(part.value is None for part in codes))
            if is_decided:
                continue  # checked, and never evaluated
            if codes and codes[-1].value is not None:
                codes.pop()  # not the one that decides, and not the last
            codes.append(part)
            is_decided = part.value is not None and bool(part.value) == is_or
        return code.join(codes, code.either if is_or else code.both)

    def conditional(self, node: ast.IfExp) -> Code:
        test = self.compile(node.test)
        is_known = test.value is not None
        body = self.compile(node.body, lazily=not (is_known and test.value))
        orelse = self.compile(node.orelse, lazily=not is_known or bool(test.value))
        if is_known:
            return body if test.value else orelse
        return code.choose(test, body, orelse)

    def function(self, node: ast.Call) -> Code:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            problem = f"there is no function {name!r}" if name else "only a function can be called"
            raise self.source.error(problem, node, "Use ceil_div(a, b)." if name == "cdiv" else LANGUAGE)
        low, high = _ARITY[name]
        expected, fold = _FUNCTIONS[name]
        self.check_plain(node)
        if not low <= len(node.args) <= high:
            raise self.source.error(f"{name}() takes {expected}, got {len(node.args)}", node)
        codes = [self.compile(argument) for argument in node.args]
        if low == high or all(part.value is not None for part in codes):
            return self.apply(name, fold, codes, node)
        return code.join(codes, code.smaller if name == "min" else code.larger)

    def check_plain(self, node: ast.Call) -> None:
        starred = (argument for argument in node.args if isinstance(argument, ast.Starred))
        if odd := next(starred, None) or next((k.value for k in node.keywords), None):
            raise self.source.error("arguments are given by position only", odd)

    def method(self, node: ast.Call, method: ast.Attribute) -> Code:
        if method.attr == "cdiv":  # triton.cdiv
            raise self.source.error("there is no method 'cdiv'", node, "Use ceil_div(a, b).")
        self.tensor(method)
        if method.attr not in _METHODS:
            raise self.source.error(f"a tensor has no method {method.attr!r} here", node, _TENSOR)
        self.check_plain(node)
        count, query = _METHODS[method.attr]
        if len(node.args) != count:
            expected = "one axis" if count else "no argument"
            raise self.source.error(f"{method.attr}() takes {expected}, got {len(node.args)}", node, _TENSOR)
        return self.query(query, method, *map(self.compile, node.args))

    def attribute(self, node: ast.Attribute) -> Code:
        if node.attr == "ndim":
            return self.query("ndim", node)
        self.tensor(node)
        raise self.source.error(f".{node.attr} alone is not an integer", node, _TENSOR)

    def query(self, query: str, node: ast.Attribute, *arguments: Code) -> Code:
        return code.call(query, self.tensor(node), *arguments)

    def tensor(self, node: ast.Attribute) -> int:
        """Return the argument whose attribute is asked for."""
        if not isinstance(node.value, ast.Name):
            raise self.source.error(f"only a tensor has .{node.attr}", node, _TENSOR)
        entry = self.entry(node.value)
        if entry is not None and entry.kind != "tensor":
            raise self.source.error(f"{node.value.id!r} is no tensor and has no .{node.attr}", node, _TENSOR)
        return entry.index if entry else 0
