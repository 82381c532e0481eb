"""The C++ that evaluates the expressions of a launch before each call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jitload.expressions.compiler import ScopeEntry, compile_expression
from jitload.launch import Launch
from jitload.signature.exports import Export

_GUARDS = {"grid": "needs_grid", "block": "needs_block", "shared_bytes": "needs_shared_bytes"}


def compile_plan(export: Export, scope: Mapping[str, ScopeEntry]) -> tuple[list[str], list[str]]:
    """Return the texts of a launch's expressions, and the lines of C++ that evaluate them in that order."""
    numbers = {parameter.name: number for number, parameter in enumerate(export.kernel.parameters)}
    texts: list[str] = []
    lines: list[str] = []
    guard = ""
    for field, text in _expressions(export.launch):
        part, _, subscript = field.partition("[")
        parameter = subscript[1:-2]  # of "args['n']"
        target = f"plan->values[{numbers[parameter]}]" if part == "args" else _target(part, subscript)
        if _GUARDS.get(part, "") != guard:
            lines.extend(["}"] if guard else [])
            guard = _GUARDS.get(part, "")
            lines.extend([f"if (plan->{guard}) {{"] if guard else [])
        code = compile_expression(text, scope, kernel=export.name, field=field)
        indent = "  " if guard else ""
        lines += [f"{indent}e->expression = {len(texts)};", f"{indent}{target} = {code};"]
        texts.append(f"{parameter if part == 'args' else field} = {text}")
    return texts, [*lines, *(["}"] if guard else [])]


def _expressions(launch: Launch) -> Iterator[tuple[str, int | str]]:
    """Yield field and text of each expression, `("grid[0]", "ceil_div(n, 256)")`. Computed parameters come first."""
    yield from ((f"args[{name!r}]", text) for name, text in launch.args.items())
    for field, extent in (("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster)):
        if isinstance(extent, int | str):
            yield field, extent
        elif extent is not None:
            yield from ((f"{field}[{axis}]", text) for axis, text in enumerate(extent))
    if launch.shared_bytes != 0:
        yield "shared_bytes", launch.shared_bytes


def _target(part: str, subscript: str) -> str:
    """Return the C++ variable for a field of the launch; `subscript` is `0]`, or "" if the field is a single extent."""
    if part == "shared_bytes":
        return "plan->shared_bytes"
    return f"plan->{part}[{subscript[:-1] or 0}]"


def make_scope(export: Export, positions: Mapping[str, int]) -> dict[str, ScopeEntry]:
    """Return the names that a launch's expressions may use; `positions` has the argument index of each parameter."""
    kinds: dict[str, Any] = {"pointer": "tensor", "int": "int", "uint": "int", "bool": "int"}
    scope = {}
    for number, parameter in enumerate(export.kernel.parameters):
        scope[parameter.name] = ScopeEntry(
            position=positions.get(parameter.name, -1),
            kind=kinds.get(parameter.kind, "other"),
            type=parameter.type,
            computed=f"plan->values[{number}]" if parameter.name in export.launch.args else None,
        )
    return scope
