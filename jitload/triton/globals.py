"""A Triton function in, the values from outside that its machine code may depend on out.

Triton's `cache_key` covers the source of a function and of those it calls, and the constexprs among its globals. It
does not cover a global of a function that it calls, once that was looked at, nor the defaults of that one's parameters,
nor what is reached through a module or an object (`config.BLOCK`), nor what a `constexpr_function` reads, though all of
that is compiled in as well.
"""

from __future__ import annotations

import builtins
import enum
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (tuple, list, set, frozenset, dict)
_KNOWN_HOMES = ("triton", "builtins", "math")
_MOST = 10_000  # objects looked at before we give up


def outer_values(function: Any) -> tuple[tuple[str, str], ...] | None:
    """Return names and values of the constants that a function, and those it calls, may see; None if nobody can tell.

    This is more than what they use: another value gives another key, at the cost of a build.
    """
    search = _Search()
    search.visit_function(function)
    return tuple(sorted(search.found)) if search.is_complete else None


class _Search:
    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self.seen: dict[int, object] = {}  # holds what it has seen, so that no other object takes its place in memory
        self.is_complete = True

    def visit_function(self, function: Any) -> None:
        """Look at the names that a function uses, in its own scope."""
        raw = getattr(function, "fn", None) or getattr(function, "__func__", function)
        raw = getattr(raw, "fn", raw)
        code = getattr(raw, "__code__", None)
        if code is None or self._is_seen(raw):
            return
        names = {name for part in codes_in(code) for name in (*part.co_names, *part.co_freevars)}
        defaults = {**dict(enumerate(raw.__defaults__ or ())), **(raw.__kwdefaults__ or {})}  # made when it was defined
        named = {**dict(outer_names(raw)), **{f"{raw.__name__}={at}": value for at, value in defaults.items()}}
        for name, value in named.items():
            self._visit(name, value, names)

    def _visit(self, name: str, value: Any, names: set[str]) -> None:
        text = self._text(value)
        if text is not None:
            self.found.add((name, text))
        elif isinstance(value, ModuleType | type):
            if _home(value) not in _KNOWN_HOMES and not self._is_seen(value):
                self._visit_members(name, value, names)
        elif _home(value) not in _KNOWN_HOMES or isinstance(value, _CONTAINERS):
            self.is_complete = False  # an object of somebody's, of which we do not see all

    def _text(self, value: Any) -> str | None:
        """Return a value as text, or None where a text would say too little."""
        value = plain_value(value)
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name} {self._text(value.value)}"
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, _CONTAINERS):
            return self._text_of_several(value)
        if _is_triton_function(value):
            self.visit_function(value)
            return f"function {getattr(value, 'cache_key', '')} {getattr(value, 'debug', None)}"
        if isinstance(value, FunctionType) and _home(value) not in _KNOWN_HOMES:
            self.visit_function(value)
            return f"code {_code_text(value.__code__)}"
        return type_text(value)

    def _text_of_several(self, value: Any) -> str | None:
        if self._is_within(value):
            return None
        items = [item for pair in value.items() for item in pair] if isinstance(value, dict) else list(value)
        texts = [self._text(item) for item in items]
        if any(text is None for text in texts):
            return None
        return f"{type(value).__name__} {sorted(map(str, texts)) if isinstance(value, set | frozenset) else texts}"

    def _is_within(self, value: Any) -> bool:
        """Tell whether there is more in a container than we care to look at."""
        return len(value) > _MOST or str(value).count("...") > 0  # one that holds itself is shown so

    def _visit_members(self, name: str, value: Any, names: set[str]) -> None:
        """Look at what the function may ask of a module or a class: the members by names that it uses."""
        for member in names:
            try:
                inner = getattr(value, member)
            except Exception:  # noqa: BLE001, S112  a property of anybody's
                continue
            self._visit(f"{name}.{member}", inner, names)
        for method in getattr(value, "hash_attrs", ()):  # an aggregate's: its constructor runs under no name
            self._visit(f"{name}.{getattr(method, '__name__', '')}", method, names)

    def _is_seen(self, value: Any) -> bool:
        if id(value) in self.seen:
            return True
        self.seen[id(value)] = value
        self.is_complete = self.is_complete and len(self.seen) < _MOST
        return not self.is_complete


def outer_names(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names from outside that a function, or what is written within it, uses, with their values."""
    for name in {name for part in codes_in(function.__code__) for name in part.co_names}:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            yield name, cell.cell_contents


def dotted_names(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function itself reads from outside, `config` and `config.BLOCK`, with its value, or None."""
    from dis import get_instructions  # there already, wherever Triton is

    outer = {**vars(builtins), **dict(outer_names(function))}
    owner, value = "", None
    for step in get_instructions(function.__code__):
        name = str(step.argval)
        if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            owner, value = name, outer.get(name)
            yield owner, value
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and owner:
            owner, inner = f"{owner}.{name}", None
            with suppress(Exception):  # a property of anybody's
                inner = getattr(value, name)
            value = inner
            yield owner, value
        elif step.opname != "EXTENDED_ARG":
            owner = ""


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a piece of code, and those of the functions that are written within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def plain_value(value: Any) -> Any:
    """Return what a constexpr of Triton's holds; anything else is itself."""
    return value.value if type(value).__name__ == "constexpr" and _home(value) == "triton" else value


def type_text(value: Any) -> str | None:
    """Return a type of Triton's as text; None for anything else."""
    return f"dtype {value}" if type(value).__name__ in ("dtype", "pointer_type", "block_type") else None


def _code_text(code: CodeType) -> str:
    constants = [_code_text(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def _home(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__module__", name)
    return str(name or "").partition(".")[0]


def _is_triton_function(value: Any) -> bool:
    return any(base.__name__ in ("JITFunction", "JITCallable") for base in type(value).__mro__)
