"""Translate a launch expression to steps for the evaluator in `runtime/core/expression.cc`.

The steps keep Python's semantics: `//` and `%` round down, `and` and `or` return one of their operands, and operands
that are not needed are not evaluated. Only integers and argument positions of the user's text reach the steps.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Literal, NamedTuple

from jitload.expressions.parse import LANGUAGE, MAX_DEPTH, MAX_LENGTH, Expression, ExpressionText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jitload.errors import LaunchSpecError


class ScopeEntry(NamedTuple):
    """The meaning of a name in an expression.

    Attributes:
        position: Position of the argument in the call.
        kind: `tensor`, `int` or `other`. A bool or an enum is an `int`. Expressions cannot use `other`.
        type: The parameter's C++ type, for messages.
        computed: The number of a parameter that is computed before the launch, for `Launch.args`. None if the caller
            passes the value.
        planned: The number of an extent of the grid or the block in the plan of a launch, for checks of bounds.
        constant: The value of a name that is known before the launch, such as a constexpr of Triton.
        is_nullable: Whether the argument may be None. Only then may an expression test `x is None`.
    """

    position: int
    kind: Literal["tensor", "int", "other"]
    type: str = ""
    computed: int | None = None
    planned: int | None = None
    constant: int | None = None
    is_nullable: bool = False


class Op(NamedTuple):
    """A step of the evaluator, with the name that it has in `jitload/expression.h` after `JITLOAD_OP_`."""

    name: str
    operand: int = 0
    value: int = 0


def compile_expression(text: Expression, scope: Mapping[str, ScopeEntry], *, kernel: str, field: str) -> tuple[Op, ...]:
    """Return the steps that leave the value of a launch expression on the evaluator's stack.

    `kernel` and `field` are for messages: the exported name, and the field of the `Launch`, such as `grid[0]`.

    Example:
        `compile_expression("ceil_div(n, 256)", scope, kernel="add", field="grid")` gives
        `(Op("INT", 2), Op("CONSTANT", value=256), Op("CEIL_DIV"))`.

    Raises:
        LaunchSpecError: The expression is malformed, uses an unknown name, or always fails, like `1 // 0`.
    """
    if isinstance(text, int):
        return _constant(int(text)).ops
    source = ExpressionText.of(text, kernel, field)
    tree = source.parse()
    return _Compiler(source, scope).compile(tree).ops


@functools.lru_cache(maxsize=4096)  # programs often create the same Launch for each call of load_inline
def check_expression(text: str, field: str) -> tuple[int | None, frozenset[str]]:
    """Check a launch expression whose kernel is not known yet.

    Return the value of the expression (None if it is not constant), and the names in the expression.
    """
    source = ExpressionText.of(text, "", field)
    tree = source.parse()
    compiler = _Compiler(source, None)
    return compiler.compile(tree).value, frozenset(compiler.names)


# ---- tables -------------------------------------------------------------------------------------------------------


INT64 = range(-(2**63), 2**63)


def ceil_div(a: int, b: int) -> int:
    """Return a quotient, rounded up."""
    return -(-a // b)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 0


_BINARY = {ast.Add: "ADD", ast.Sub: "SUB", ast.Mult: "MUL", ast.FloorDiv: "FLOORDIV", ast.Mod: "MOD"}
_COMPARISONS = {ast.Lt: "LT", ast.LtE: "LE", ast.Gt: "GT", ast.GtE: "GE", ast.Eq: "EQ", ast.NotEq: "NE"}
_FUNCTIONS: dict[str, tuple[range, str, Callable[..., int]]] = {  # (allowed argument counts, these in words, function)
    "ceil_div": (range(2, 3), "two integers", ceil_div),
    "max": (range(2, MAX_LENGTH), "two or more integers", max),
    "min": (range(2, MAX_LENGTH), "two or more integers", min),
    "next_power_of_2": (range(1, 2), "one integer", _next_power_of_2),
}
_METHODS = {"numel": (0, "NUMEL"), "dim": (0, "NDIM"), "size": (1, "SIZE"), "stride": (1, "STRIDE")}

_TENSOR = "A tensor has .numel(), .size(i), .shape[i], .stride(i), .ndim, .dim() and x.shape == y.shape."
_HINTS: dict[type[ast.AST], str] = {
    ast.Div: "Use // to round down, or ceil_div(a, b) to round up.",
    ast.Tuple: 'Several dimensions are a tuple of expressions: ("a", "b").',
    ast.Is: "Use ==, or x is None for a pointer that may be None.",
    ast.IsNot: "Use !=, or x is not None for a pointer that may be None.",
}

# ---- the compiler -------------------------------------------------------------------------------------------------


class _Compiler:
    """A translator of one expression. Without a scope, it only checks the expression and collects the names in it."""

    def __init__(self, source: ExpressionText, scope: Mapping[str, ScopeEntry] | None) -> None:
        self.source = source
        self.scope = scope
        self.names: set[str] = set()
        self.lookups = 0
        self.depth = 0
        self.lazy = 0

    def compile(self, node: ast.expr, *, lazily: bool = False) -> _Code:
        """Translate a node. If `lazily` is true, the code may never run, so a failure such as `1 // 0` is allowed."""
        self.depth += 1
        self.lazy += lazily
        if self.depth > MAX_DEPTH:
            raise self.source.too_deep()
        lookups = self.lookups
        compiled = self.dispatch(node)
        if self.lookups == lookups and compiled.value is None:
            compiled = self.fold(node, compiled)
        self.depth -= 1
        self.lazy -= lazily
        return compiled

    def fold(self, node: ast.expr, compiled: _Code) -> _Code:
        """Return the value of a node without names, or its own code if it fails but may never run."""
        functions = {name: function for name, (_, _, function) in _FUNCTIONS.items()}
        try:
            value = int(eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": functions}))  # noqa: S307  checked
            problem = "" if value in INT64 else f"the result, {value}, does not fit 64 bits"
        except ZeroDivisionError:
            problem = "division by zero"
        if not problem:
            return _constant(value)
        if self.lazy:
            return compiled
        raise self.source.error(problem, self.source.operator_column(node) if isinstance(node, ast.BinOp) else node)

    def dispatch(self, node: ast.expr) -> _Code:  # noqa: C901, PLR0911, PLR0912  a case for each kind of node
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
                return self.query("SIZE", shape, self.compile(node.slice))
            case ast.Subscript():
                raise self.source.error("only .shape can be indexed", node, _TENSOR)
            case ast.Attribute(attr="ndim"):
                return self.query("NDIM", node)
            case ast.Attribute():
                self.tensor(node)
                raise self.source.error(f".{node.attr} alone is not an integer", node, _TENSOR)
        raise self.unsupported(node, node)

    def unsupported(self, node: ast.expr, construct: ast.AST) -> LaunchSpecError:
        segment = ast.get_source_segment(self.source.text, node) or ""
        hint = _HINTS.get(type(construct), LANGUAGE)
        return self.source.error(f"{segment!r} is not part of launch expressions", node, hint)

    def integer(self, value: int, node: ast.expr) -> _Code:
        if value not in INT64:
            raise self.source.error("the integer does not fit 64 bits", node)
        return _constant(int(value))

    def name(self, node: ast.Name) -> _Code:
        entry = self.entry(node)
        if entry is None:
            return _Code((Op("CONSTANT"),))
        if entry.kind == "int":
            return _Code((_int_op(entry),))
        if entry.kind == "tensor":
            raise self.source.error(f"{node.id!r} is a tensor, not an integer", node, _TENSOR)
        raise self.source.error(f"{node.id!r} is a {entry.type!r} parameter, not an integer", node, LANGUAGE)

    def entry(self, node: ast.Name) -> ScopeEntry | None:
        """Look up a name; without a scope every name is accepted."""
        self.names.add(node.id)
        self.lookups += 1
        if self.scope is None:
            return None
        if entry := self.scope.get(node.id):
            return entry
        hint = f"The names here are {', '.join(self.scope)}." if self.scope else "The kernel has no parameters."
        raise self.source.error(f"there is no parameter {node.id!r}", node, hint)

    def unary(self, node: ast.UnaryOp) -> _Code:
        if isinstance(node.op, ast.Invert):
            raise self.unsupported(node, node.op)
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant) and node.operand.value == 2**63:
            return _constant(-(2**63))  # -(2**63) fits 64 bits, but 2**63 alone does not
        operand = self.compile(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        return _join(operand, Op("NEG" if isinstance(node.op, ast.USub) else "NOT"))

    def binary(self, node: ast.BinOp) -> _Code:
        name = _BINARY.get(type(node.op))
        if name is None:
            raise self.unsupported(node, node.op)
        left, right = self.compile(node.left), self.compile(node.right)
        if name in ("FLOORDIV", "MOD") and right.value == 0 and not self.lazy:
            raise self.source.error("division by zero", self.source.operator_column(node))
        return _binary(name, left, right)

    def comparison(self, node: ast.Compare) -> _Code:
        match node:
            case ast.Compare(ast.Name() as name, [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]):
                is_none = self.none_test(name)
                return is_none if isinstance(op, ast.Is) else _join(is_none, Op("NOT"))
            case ast.Compare(ast.Attribute(attr="shape") as left, [op], [ast.Attribute(attr="shape") as right]):
                return self.shape_test(left, op, right)
        if unsupported := next((op for op in node.ops if type(op) not in _COMPARISONS), None):
            raise self.unsupported(node, unsupported)
        codes = [self.compile(node.left), self.compile(node.comparators[0])]
        codes += [self.compile(operand, lazily=True) for operand in node.comparators[1:]]
        return _comparison([_COMPARISONS[type(op)] for op in node.ops], codes)

    def shape_test(self, left: ast.Attribute, op: ast.cmpop, right: ast.Attribute) -> _Code:
        """Translate `x.shape == y.shape`."""
        if not isinstance(op, ast.Eq | ast.NotEq):
            raise self.source.error("shapes can only be compared with == and !=", left)
        is_same = _Code((Op("SAME_SHAPE", self.tensor(left), self.tensor(right)),))
        return is_same if isinstance(op, ast.Eq) else _join(is_same, Op("NOT"))

    def none_test(self, node: ast.Name) -> _Code:
        """Translate `x is None`."""
        entry = self.entry(node)
        if entry is not None and not entry.is_nullable:
            hint = "Only pointers in Launch.nullable, and optional arguments in a schema of torch, may be None."
            raise self.source.error(f"{node.id!r} is never None", node, hint)
        return _Code((Op("IS_NONE", entry.position if entry else 0),))

    def boolean(self, node: ast.BoolOp) -> _Code:
        """Return the steps of `a and b and …` or `a or b or …`. The first operand that decides ends them."""
        name = "OR" if isinstance(node.op, ast.Or) else "AND"
        codes = [self.compile(operand, lazily=number > 0) for number, operand in enumerate(node.values)]
        steps = codes[-1]
        for code in reversed(codes[:-1]):
            steps = _join(code, Op(name, len(steps.ops)), steps)
        return steps

    def conditional(self, node: ast.IfExp) -> _Code:
        test = self.compile(node.test)
        body, orelse = self.compile(node.body, lazily=True), self.compile(node.orelse, lazily=True)
        return _join(test, Op("SKIP_IF_NOT", len(body.ops) + 1), body, Op("SKIP", len(orelse.ops)), orelse)

    def function(self, node: ast.Call) -> _Code:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            problem = f"there is no function {name!r}" if name else "only functions can be called"
            raise self.source.error(problem, node, "Use ceil_div(a, b)." if name == "cdiv" else LANGUAGE)
        arity, expected, _ = _FUNCTIONS[name]
        self.check_plain(node)
        if len(node.args) not in arity:
            raise self.source.error(f"{name}() takes {expected}, got {len(node.args)}", node)
        codes = [self.compile(argument) for argument in node.args]
        if name == "ceil_div" and codes[1].value == 0 and not self.lazy:
            raise self.source.error("division by zero", node)
        if len(codes) == 1:
            return _join(*codes, Op(name.upper()))
        return functools.reduce(functools.partial(_binary, name.upper()), codes)

    def check_plain(self, node: ast.Call) -> None:
        starred = (argument for argument in node.args if isinstance(argument, ast.Starred))
        if argument := next(starred, None) or next((k.value for k in node.keywords), None):
            raise self.source.error("expressions take only positional arguments", argument)

    def method(self, node: ast.Call, method: ast.Attribute) -> _Code:
        if method.attr == "cdiv":  # as in `triton.cdiv(a, b)`
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

    def query(self, query: str, node: ast.Attribute, *arguments: _Code) -> _Code:
        return _join(*arguments, Op(query, self.tensor(node)))

    def tensor(self, node: ast.Attribute) -> int:
        """Return the position of the tensor argument in a node such as `x.ndim`."""
        if not isinstance(node.value, ast.Name):
            raise self.source.error(f"only a tensor has .{node.attr}", node, _TENSOR)
        entry = self.entry(node.value)
        if entry is not None and entry.kind != "tensor":
            raise self.source.error(f"{node.value.id!r} is not a tensor and has no .{node.attr}", node, _TENSOR)
        return entry.position if entry else 0


# ---- steps --------------------------------------------------------------------------------------------------------


class _Code(NamedTuple):
    """The steps of a subexpression, and its value if it is constant."""

    ops: tuple[Op, ...]
    value: int | None = None


def _constant(value: int) -> _Code:
    return _Code((Op("CONSTANT", value=value),), value)


def _int_op(entry: ScopeEntry) -> Op:
    if entry.constant is not None:
        return Op("CONSTANT", value=entry.constant)
    if entry.planned is not None:
        return Op("PLANNED", entry.planned)
    return Op("INT", entry.position) if entry.computed is None else Op("COMPUTED", entry.computed)


def _join(*parts: _Code | Op) -> _Code:
    return _Code(tuple(op for part in parts for op in (part.ops if isinstance(part, _Code) else (part,))))


def _binary(name: str, left: _Code, right: _Code) -> _Code:
    """Return the steps of an operation. A constant on the right is part of the operation's own step."""
    if right.value is not None:
        return _join(left, Op(name, 1, right.value))
    return _join(left, right, Op(name))


def _comparison(names: Sequence[str], codes: Sequence[_Code]) -> _Code:
    """Return the steps of `a < b < c`, which evaluate `b` once, and `c` only if `a < b`."""
    steps = _binary(names[-1], _Code(()), codes[-1])
    for name, code in zip(reversed(names[:-1]), reversed(codes[1:-1]), strict=True):
        steps = _join(code, Op("CHAIN", len(steps.ops), [*_COMPARISONS.values()].index(name)), steps)
    return _join(codes[0], steps)
