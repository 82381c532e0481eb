"""A Triton function in, the values from outside that its machine code may depend on out.

Triton's `cache_key` covers the source of a function and of those it calls, and the globals it names; it does not cover
what is reached through a module or an object (`config.BLOCK`), though that is compiled in as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
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
        self.seen: set[int] = set()
        self.is_complete = True

    def visit_function(self, function: Any) -> None:
        """Look at the names that a jit function uses, in its own scope."""
        raw = getattr(function, "fn", function)
        code = getattr(raw, "__code__", None)
        if code is None or self._is_seen(raw):
            return
        names = set(_names_of(code))
        scope = {name: raw.__globals__[name] for name in names if name in raw.__globals__}
        for name, cell in zip(code.co_freevars, raw.__closure__ or (), strict=True):
            try:
                scope[name] = cell.cell_contents
            except ValueError:
                continue
        for name, value in scope.items():
            self._visit(name, value, names)

    def _visit(self, name: str, value: Any, names: set[str]) -> None:
        if type(value).__name__ == "constexpr" and _home(value) == "triton":
            value = value.value
        if _is_plain(value):
            self.found.add((name, f"{type(value).__name__} {value!r}"))
        elif _is_triton_function(value):
            self.visit_function(value)
        elif _home(value) not in ("triton", "builtins", "math") and not self._is_seen(value):
            self._visit_members(name, value, names)

    def _visit_members(self, name: str, value: Any, names: set[str]) -> None:
        """Look at what the function may ask of a module, a class or an object: the members by names that it uses."""
        for member in names:
            try:
                inner = getattr(value, member)
            except Exception:  # noqa: BLE001, S112  a property of anybody's
                continue
            self._visit(f"{name}.{member}", inner, names)

    def _is_seen(self, value: Any) -> bool:
        if id(value) in self.seen:
            return True
        self.seen.add(id(value))
        self.is_complete = self.is_complete and len(self.seen) < _MOST
        return not self.is_complete


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _home(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__module__", name)
    return str(name or "").partition(".")[0]


def _is_triton_function(value: Any) -> bool:
    return any(base.__name__ in ("JITFunction", "JITCallable") for base in type(value).__mro__)
