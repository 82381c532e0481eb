"""Translate a launch expression to C++.

The syntax tree becomes calls of the functions in `jitload/expression.h` that keep Python's semantics: `//` and `%`
round down, `and` and `or` return one of their operands, and operands that are not needed are not evaluated. Only
integers and argument positions of the user's text reach the C++.
"""

from __future__ import annotations

import ast
import operator
from functools import lru_cache
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
        computed: C++ text that computes the value, for example from `Launch.args`. None if the caller passes the value.
    """

    position: int
    kind: Literal["tensor", "int", "other"]
    type: str = ""
    computed: str | None = None


def compile_expression(text: Expression, scope: Mapping[str, ScopeEntry], *, kernel: str, field: str) -> str:
    """Return a launch expression as a C++ expression of integer type.

    The C++ expression needs a variable `e` of the type `jitload_eval*`. `kernel` and `field` are for messages: the
    exported name, and the field of the `Launch`, such as `grid[0]`.

    Example:
        `compile_expression("ceil_div(n, 256)", scope, kernel="add", field="grid")` gives
        `jitload_ceil_div(e, jitload_int(e, 2), 256)`.

    Raises:
        LaunchSpecError: The expression is malformed, uses an unknown name, or always fails, like `1 // 0`.
    """
    if isinstance(text, int):
        return write_constant(int(text)).text
    source = ExpressionText.of(text, kernel, field)
    tree = source.parse()
    return _Compiler(source, scope).compile(tree).text


@lru_cache(maxsize=4096)  # programs often create the same Launch for each call of load_inline
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
_FUNCTIONS: dict[str, tuple[range, str, Callable[..., int]]] = {  # (allowed argument counts, these in words, function)
    "ceil_div": (range(2, 3), "two integers", ceil_div),
    "max": (range(2, MAX_LENGTH), "two or more integers", max),
    "min": (range(2, MAX_LENGTH), "two or more integers", min),
    "next_power_of_2": (range(1, 2), "one integer", _next_power_of_2),
}
_METHODS = {"numel": (0, "numel"), "dim": (0, "ndim"), "size": (1, "size"), "stride": (1, "stride")}

_UNSUPPORTED: dict[type[ast.AST], str] = {
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
    """A translator of one expression. Without a scope, it only checks the expression and collects the names in it."""

    def __init__(self, source: ExpressionText, scope: Mapping[str, ScopeEntry] | None) -> None:
        self.source = source
        self.scope = scope
        self.names: set[str] = set()
        self.depth = 0
        self.lazy = 0
        self.temporaries = 0

    def compile(self, node: ast.expr, *, lazily: bool = False) -> Code:
        """Translate a node. If `lazily` is true, the code may never run, so a failure such as `1 // 0` is allowed."""
        self.depth += 1
        self.lazy += lazily
        if self.depth > MAX_DEPTH:
            raise self.source.too_deep()
        compiled = self.dispatch(node)
        self.depth -= 1
        self.lazy -= lazily
        return compiled

    def dispatch(self, node: ast.expr) -> Code:  # noqa: C901, PLR0911  one line for each kind of node
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
                raise self.source.error("only .shape can be indexed", node, _TENSOR)
            case ast.Attribute():
                return self.attribute(node)
        segment = ast.get_source_segment(self.source.text, node) or ""
        raise self.unsupported(_UNSUPPORTED.get(type(node), segment), node)

    def unsupported(self, construct: str, position: ast.expr | int) -> LaunchSpecError:
        hint = _HINTS.get(construct, LANGUAGE)
        return self.source.error(f"{construct} is not part of launch expressions", position, hint)

    def integer(self, value: int, node: ast.expr) -> Code:
        if value not in INT64:
            raise self.source.error("the integer does not fit 64 bits", node)
        return write_constant(int(value))

    def name(self, node: ast.Name) -> Code:
        entry = self.entry(node)
        if entry is None:
            return Code("0")
        if entry.kind == "int":
            return Code(entry.computed) if entry.computed else write_call("int", entry.position)
        if entry.kind == "tensor":
            raise self.source.error(f"{node.id!r} is a tensor, not an integer", node, _TENSOR)
        raise self.source.error(f"{node.id!r} is a {entry.type!r} parameter, not an integer", node, LANGUAGE)

    def entry(self, node: ast.Name) -> ScopeEntry | None:
        """Look up a name; without a scope every name is accepted."""
        self.names.add(node.id)
        if self.scope is None:
            return None
        if entry := self.scope.get(node.id):
            return entry
        hint = f"The names here are {', '.join(self.scope)}." if self.scope else "The kernel has no parameters."
        raise self.source.error(f"there is no parameter {node.id!r}", node, hint)

    def apply(self, name: str, fold: Callable[..., int], operands: Sequence[Code], node: ast.expr | int) -> Code:
        """Return a call of the C++ function `name`, or the value that `fold` computes if all operands are constants."""
        values = [operand.value for operand in operands if operand.value is not None]
        problem = ""
        if len(values) == len(operands):
            try:
                value = fold(*values)
            except ZeroDivisionError:
                problem = f"division of {values[0]} by zero"
            else:
                if value in INT64:
                    return write_constant(value)
                problem = f"the result, {value}, does not fit 64 bits"
        elif name in ("floordiv", "mod", "ceil_div") and operands[1].value == 0:
            problem = "division by zero"
        if problem and not self.lazy:
            raise self.source.error(problem, node)
        return write_call(name, *operands)

    def unary(self, node: ast.UnaryOp) -> Code:
        if isinstance(node.op, ast.Invert):
            raise self.unsupported("~", node)
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant) and node.operand.value == 2**63:
            return write_constant(-(2**63))  # -(2**63) fits 64 bits, but 2**63 alone does not
        operand = self.compile(node.operand)
        if isinstance(node.op, ast.USub):
            return self.apply("neg", operator.neg, [operand], node)
        if isinstance(node.op, ast.UAdd):
            return operand
        if operand.value is not None:
            return write_constant(int(not operand.value))
        return write_not(operand)

    def binary(self, node: ast.BinOp) -> Code:
        column = self.source.operator_column(node)
        if type(node.op) not in _BINARY:
            raise self.unsupported(_UNSUPPORTED[type(node.op)], column)
        name, fold = _BINARY[type(node.op)]
        return self.apply(name, fold, [self.compile(node.left), self.compile(node.right)], column)

    def comparison(self, node: ast.Compare) -> Code:
        if unsupported := next((op for op in node.ops if type(op) not in _COMPARISONS), None):
            raise self.unsupported(_UNSUPPORTED[type(unsupported)], node)
        operations = [_COMPARISONS[type(op)] for op in node.ops]
        codes = [self.compile(node.left), self.compile(node.comparators[0])]
        codes += [self.compile(operand, lazily=True) for operand in node.comparators[1:]]
        values = [part.value for part in codes if part.value is not None]
        if len(values) == len(codes):
            steps = zip(operations, values, values[1:], strict=False)
            return write_constant(int(all(holds(left, right) for (_, holds), left, right in steps)))
        return write_comparison([symbol for symbol, _ in operations], codes, self.temporary)

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
                continue  # the operand has been checked, but it is never evaluated
            if codes and codes[-1].value is not None:
                codes.pop()  # this constant neither decides the result nor comes last
            codes.append(part)
            is_decided = part.value is not None and bool(part.value) == is_or
        return write_balanced(codes, write_or if is_or else write_and)

    def conditional(self, node: ast.IfExp) -> Code:
        test = self.compile(node.test)
        is_constant = test.value is not None
        body = self.compile(node.body, lazily=not (is_constant and test.value))
        orelse = self.compile(node.orelse, lazily=not is_constant or bool(test.value))
        if is_constant:
            return body if test.value else orelse
        return write_conditional(test, body, orelse)

    def function(self, node: ast.Call) -> Code:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            problem = f"there is no function {name!r}" if name else "only functions can be called"
            raise self.source.error(problem, node, "Use ceil_div(a, b)." if name == "cdiv" else LANGUAGE)
        arity, expected, fold = _FUNCTIONS[name]
        self.check_plain(node)
        if len(node.args) not in arity:
            raise self.source.error(f"{name}() takes {expected}, got {len(node.args)}", node)
        codes = [self.compile(argument) for argument in node.args]
        if len(arity) == 1 or all(part.value is not None for part in codes):
            return self.apply(name, fold, codes, node)
        return write_balanced(codes, lambda left, right: Code(f"jitload_{name}({left.text}, {right.text})"))

    def check_plain(self, node: ast.Call) -> None:
        starred = (argument for argument in node.args if isinstance(argument, ast.Starred))
        if argument := next(starred, None) or next((k.value for k in node.keywords), None):
            raise self.source.error("expressions take only positional arguments", argument)

    def method(self, node: ast.Call, method: ast.Attribute) -> Code:
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

    def attribute(self, node: ast.Attribute) -> Code:
        if node.attr == "ndim":
            return self.query("ndim", node)
        self.tensor(node)
        raise self.source.error(f".{node.attr} alone is not an integer", node, _TENSOR)

    def query(self, query: str, node: ast.Attribute, *arguments: Code) -> Code:
        return write_call(query, self.tensor(node), *arguments)

    def tensor(self, node: ast.Attribute) -> int:
        """Return the position of the tensor argument in a node such as `x.ndim`."""
        if not isinstance(node.value, ast.Name):
            raise self.source.error(f"only a tensor has .{node.attr}", node, _TENSOR)
        entry = self.entry(node.value)
        if entry is not None and entry.kind != "tensor":
            raise self.source.error(f"{node.value.id!r} is not a tensor and has no .{node.attr}", node, _TENSOR)
        return entry.position if entry else 0


# ---- C++ text -----------------------------------------------------------------------------------------------------


class Code(NamedTuple):
    """C++ text of a subexpression.

    Attributes:
        text: An expression of integer type.
        value: The value of the expression if it is constant, otherwise None.
        is_boolean: Whether the value can only be 0 or 1.
        is_atom: Whether the text needs no parentheses as an operand.
    """

    text: str
    value: int | None = None
    is_boolean: bool = False
    is_atom: bool = True

    @property
    def operand(self) -> str:
        """The text as an operand of another operator."""
        return self.text if self.is_atom else f"({self.text})"

    @property
    def truth(self) -> str:
        """The text as a condition in C++."""
        # Compilers warn about `a ? b : c` within a condition, but not about `(a ? b : c) != 0`.
        return self.operand if self.is_atom or self.is_boolean else f"(({self.text}) != 0)"


def write_constant(value: int) -> Code:
    """Return code for a 64-bit integer."""
    if value == INT64.start:
        return Code(f"(-{INT64.stop - 1} - 1)", value)  # C++ has no negative literals, and 2**63 does not fit
    return Code(str(value), value, is_boolean=value in (0, 1))


def write_call(function: str, *arguments: Code | int) -> Code:
    """Return code that calls a function of `expression.h`. The argument `e` records whether the function fails."""
    texts = (argument.text if isinstance(argument, Code) else str(argument) for argument in arguments)
    return Code(f"jitload_{function}({', '.join(('e', *texts))})")


def write_and(left: Code, right: Code) -> Code:
    """Return code for `left and right`. If `left` is 0, the result is 0."""
    if left.is_boolean and right.is_boolean:
        return Code(f"{left.operand} && {right.operand}", is_boolean=True, is_atom=False)
    return Code(f"{left.truth} ? {right.operand} : 0", is_atom=False)


def write_or(left: Code, right: Code) -> Code:
    """Return code for `left or right`."""
    if left.is_boolean and right.is_boolean:
        return Code(f"{left.operand} || {right.operand}", is_boolean=True, is_atom=False)
    if left.is_boolean:
        return Code(f"{left.operand} ? 1 : {right.operand}", is_atom=False)
    return Code(f"{left.operand} ?: {right.operand}", is_atom=False)


def write_not(operand: Code) -> Code:
    """Return code for `not operand`."""
    return Code(f"!{operand.truth}", is_boolean=True, is_atom=False)


def write_conditional(test: Code, body: Code, orelse: Code) -> Code:
    """Return code for `body if test else orelse`."""
    are_boolean = body.is_boolean and orelse.is_boolean
    return Code(f"{test.truth} ? {body.operand} : {orelse.operand}", is_boolean=are_boolean, is_atom=False)


def write_comparison(symbols: Sequence[str], codes: Sequence[Code], temporary: Callable[[], str]) -> Code:
    """Return code for `a < b < c` that evaluates `b` once, and `c` only if `a < b`."""
    temporaries: list[str] = []
    links: list[str] = []
    left = codes[0].operand
    for symbol, code in zip(symbols, codes[1:], strict=True):
        right = following = code.operand
        if code is not codes[-1] and code.value is None:
            following = temporary()
            right = f"({following} = {code.text})"
            temporaries.append(following)
        links.append(f"{left} {symbol} {right}")
        left = following
    text = " && ".join(links)
    if not temporaries:
        return Code(text, is_boolean=True, is_atom=False)
    return Code(f"({{ int64_t {', '.join(temporaries)}; {text}; }})", is_boolean=True)


def write_balanced(codes: Sequence[Code], pair: Callable[[Code, Code], Code]) -> Code:
    """Join operands with `pair` in a balanced tree, because compilers limit the nesting of parentheses."""
    if len(codes) == 1:
        return codes[0]
    half = len(codes) // 2
    return pair(write_balanced(codes[:half], pair), write_balanced(codes[half:], pair))
