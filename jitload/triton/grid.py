"""Translates the grid of a Triton launch, if it is a function, to launch expressions such as "ceil_div(n, BLOCK)".

The function is called once, with operands in place of parameters. An operand is a launch expression, and arithmetic on
operands makes longer expressions. The function runs with the names that launch expressions have, and no others.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import math
from collections.abc import Mapping
from types import CellType, FunctionType
from typing import Any, NamedTuple, NoReturn

from jitload.errors import LaunchSpecError, warn_once
from jitload.request.launch import Extent
from jitload.triton.kernel import plain_value
from jitload.triton.key import code_objects, outer_names

_HINT = 'Write it as an expression over the kernel\'s parameters: grid="ceil_div(n, BLOCK)", or a tuple of them.'
_METHODS = ("numel", "size", "stride", "dim")
_MAX_LENGTH = 5_000  # characters of an expression; `Launch` has a limit for expressions without needless parentheses
# Instructions of conditions and loops. Their results would be those for the stand-ins.
_CONDITIONS = frozenset(
    (*dis.hasjrel, *dis.hasjabs, *(dis.opmap[name] for name in ("COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_NOT")))
)


class GridScope(NamedTuple):
    """The names that a grid may use.

    Attributes:
        kernel: The kernel's name, for messages.
        arguments: Names of the run-time parameters.
        constexprs: Names of the constexprs.
        examples: The example arguments, by name.
    """

    kernel: str
    arguments: tuple[str, ...]
    constexprs: tuple[str, ...]
    examples: Mapping[str, Any]


def read_grid(grid: Any, scope: GridScope) -> Extent | None:
    """Return a grid function as a tuple of launch expressions. A grid that is not callable is returned unchanged."""
    if not callable(grid):
        expressions: Extent | None = tuple(grid) if isinstance(grid, list) else grid
        return expressions  # `Launch` checks the expressions
    if not isinstance(grid, FunctionType):
        raise _error(f"must be an expression or a function, got {type(grid).__name__}", scope)
    if grid.__code__.co_argcount != 1:
        raise _error("the function must take one argument, Triton's mapping of the parameters", scope)
    has_handler = bool(getattr(grid.__code__, "co_exceptiontable", b""))  # since Python 3.11; before, `try` is a jump
    if has_handler or any(instruction.opcode in _CONDITIONS for instruction in dis.get_instructions(grid)):
        raise _error("the function has a condition or a loop, which is not supported", scope)
    if len([*code_objects(grid.__code__)]) > 1:  # its conditions were not seen
        raise _error("the function has a function inside, which is not supported", scope)
    meta = grid.__code__.co_varnames[0]
    names = {**vars(builtins), **dict.fromkeys(scope.arguments), **dict(outer_names(grid))}
    own = {name: _outer_value(name, value, meta, scope) for name, value in names.items()}
    cells = tuple(CellType(own.get(name)) for name in grid.__code__.co_freevars)
    function = FunctionType(grid.__code__, {**own, "__builtins__": {}}, grid.__name__, grid.__defaults__, cells)
    try:
        result = function(_Meta(scope))
        extents = tuple(map(_text, result if isinstance(result, tuple | list) else [result]))
    except Exception as error:
        raise _error(f"the function cannot be translated to launch expressions: {error}", scope) from error
    texts = tuple(ast.unparse(ast.parse(extent, mode="eval")) for extent in extents)
    if constants := [f"{name}={own[name]}" for name in grid.__code__.co_freevars if isinstance(own.get(name), int)]:
        warn_once(
            f"kernel {scope.kernel!r}: the grid is ({', '.join(texts)}) for all calls, with the constants "
            f"{', '.join(constants)}. If they depend on the arguments, write {meta}['…'] with the name of a parameter, "
            "or leave grid= out and pass the grid to each call"
        )
    return texts


def _error(problem: str, scope: GridScope) -> LaunchSpecError:
    return LaunchSpecError(problem, kernel=scope.kernel, field="grid", hint=_HINT)


# ---- what a function reads -------------------------------------------------------------------------------------------


class _StandIn:
    """Stands for a value that is not known. It cannot be compared, looked up in a `dict` or formatted."""

    __hash__ = __iter__ = None  # type: ignore[assignment]

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("its result would depend on a value that is not known")

    __eq__ = __repr__ = _refuse


class _Meta(_StandIn):
    """Stands for Triton's mapping of the parameters."""

    def __init__(self, scope: GridScope) -> None:
        self._names = (*scope.arguments, *scope.constexprs)

    def __getitem__(self, name: str) -> _Operand:
        if name not in self._names:
            raise LookupError(f"there is no parameter {name!r}; the parameters are {', '.join(self._names)}")
        return _Operand(name)


class _Object(_StandIn):
    """Stands for a module or another object, of which a function may read integers and functions."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __getattr__(self, name: str) -> Any:
        return _known_value(f"{self._name}.{name}", getattr(self._value, name))

    def __call__(self, *_: Any) -> NoReturn:
        raise TypeError(f"launch expressions have no {self._name}()")


def _outer_value(name: str, value: Any, meta: str, scope: GridScope) -> Any:
    """Return what stands for a variable outside of the function."""
    parameter, value = _parameter_of(name, value, scope.examples), plain_value(value)
    if parameter in scope.arguments:
        example = scope.examples.get(name, value)
        if not isinstance(value, int) or not isinstance(example, int) or value == example:
            return _Operand(parameter)
        problem = f"{name!r} is both a variable with the value {value} and a parameter of the kernel (here {example})"
        return _Operand(name, f"{problem}; write {meta}[{name!r}] for the parameter, or rename the variable")
    if hasattr(value, "data_ptr"):
        problem = f"the tensor {name!r} is not the argument of exactly one parameter; write {meta}['…'] with the name"
        return _Operand(name, f"{problem} of a parameter: {', '.join(scope.arguments)}")
    return _known_value(name, value)


def _parameter_of(name: str, value: Any, examples: Mapping[str, Any]) -> str:
    """Return the parameter that a variable stands for, or "" if this is not clear.

    It is the parameter for which a tensor was passed, and otherwise the parameter with the name of the variable.
    """
    if not examples or not hasattr(value, "data_ptr"):
        return name
    parameters = [parameter for parameter, example in examples.items() if example is value]
    if name in parameters or (not parameters and getattr(examples.get(name), "shape", None) == value.shape):
        return name
    return parameters[0] if len(parameters) == 1 else ""


def _known_value(name: str, value: Any) -> Any:
    value = plain_value(value)
    if isinstance(value, int):
        return int(value)
    if value is min or value is max:
        return functools.partial(_call, value.__name__)
    if value is int:
        return lambda number: _Operand(_text(number))
    if value is math.ceil:
        return _ceil
    if str(getattr(value, "__module__", "") or "").partition(".")[0] == "triton":
        names = {"cdiv": "ceil_div", "next_power_of_2": "next_power_of_2"}
        if function := names.get(getattr(value, "__name__", "")):
            return functools.partial(_call, function)
    return _Object(name, value)


# ---- expressions -----------------------------------------------------------------------------------------------------


class _Operand(_StandIn):
    """A launch expression, or what may not be used: then, `problem` says why."""

    def __init__(self, text: str, problem: str = "") -> None:
        self.text, self.problem = text, problem

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return functools.partial(_call, f"{_text(self)}.{name}")
        return _Operand(f"{_text(self)}.{name}")  # `Launch` checks the name

    def __getitem__(self, index: Any) -> _Operand:
        return _Operand(f"{_text(self)}[{_text(index)}]")

    def __neg__(self) -> _Operand:
        return _Operand(f"(-{_text(self)})")


def _joined(symbol: str, first: Any, second: Any) -> _Operand:
    return _Operand(f"({_text(first)} {symbol} {_text(second)})")


for _name, _symbol in {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/"}.items():
    setattr(_Operand, f"__{_name}__", lambda a, b, symbol=_symbol: _joined(symbol, a, b))
    setattr(_Operand, f"__r{_name}__", lambda a, b, symbol=_symbol: _joined(symbol, b, a))


def _text(value: Any) -> str:
    if isinstance(value, int):
        return str(int(value))
    if not isinstance(value, _Operand):
        name = getattr(value, "_name", None) or repr(value)
        raise TypeError(f"{name} is neither a run-time parameter nor an integer")
    if value.problem or len(value.text) > _MAX_LENGTH:
        raise ValueError(value.problem or "an expression is too long")
    return value.text


def _call(function: str, *arguments: Any) -> _Operand:
    return _Operand(f"{function}({', '.join(map(_text, arguments))})")


def _ceil(value: Any) -> _Operand:
    """Return `math.ceil(a / b)`."""
    match ast.parse(_text(value), mode="eval").body:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _Operand(f"ceil_div({ast.unparse(left)}, {ast.unparse(right)})")
    raise TypeError("launch expressions have math.ceil() only of a division")
