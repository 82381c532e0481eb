"""Shows a module in a notebook: a table of its kernels and what they use."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitload.loader.module import Module

_COLUMNS = ("kernel", "arch", "registers", "spills and local memory", "static shared memory", "max threads")
_LOCAL = _COLUMNS.index("spills and local memory")


def html_table(module: Module) -> str:
    """Return the table as HTML; local memory is marked, because it is slow."""
    rows = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in _rows(module))
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    others = "".join(f"<div><code>{html.escape(name)}(…)</code></div>" for name in _plain_functions(module))
    return f"<div>{html.escape(_title(module))}</div>{table}{others}"


def _cells(row: tuple[str, ...]) -> list[str]:
    cells = [f"<td>{html.escape(text)}</td>" for text in row]
    cells[0] = f'<td style="text-align: left"><code>{html.escape(row[0])}</code></td>'
    if row[_LOCAL] not in ("0 B", "-"):
        cells[_LOCAL] = f'<td style="color: #c00"><b>{html.escape(row[_LOCAL])}</b></td>'
    return cells


def text_table(module: Module) -> str:
    """Return the table as text; local memory is marked, because it is slow."""
    rows = [list(row) for row in _rows(module)]
    for row in rows:
        if row[_LOCAL] not in ("0 B", "-"):
            row[_LOCAL] += " !"
    lines = [_title(module)]
    for row in rows:
        facts = ", ".join(f"{name} {value}" for name, value in zip(_COLUMNS[2:], row[2:], strict=True) if value != "-")
        lines.append(f"  {row[0]}" + (f"\n    {row[1]}: {facts}" if facts else ""))
    return "\n".join([*lines, *(f"  {name}(…)" for name in _plain_functions(module))])


def _title(module: Module) -> str:
    facts, built_s = module._jitload_facts(), module.__dict__.get("_jitload_built_s", -1.0)
    origin = "from the cache" if built_s is None else f"built in {built_s:.2f} s" if built_s >= 0 else "loaded"
    return f"{facts['name'] or 'module'}: {origin}"


def _rows(module: Module) -> list[tuple[str, ...]]:
    return [
        (function["signature"], arch, *_resources(used))
        for function in module._jitload_facts()["functions"].values()
        if "kernel" in function
        for arch, used in (function.get("builds") or {function["arch"]: function["kernel"]}).items()
    ]


def _resources(used: dict[str, Any]) -> tuple[str, ...]:
    registers = used["registers"]
    memory = (used["local_bytes"], used["shared_bytes"])
    return (
        "-" if registers is None else str(registers),
        *("-" if size is None else f"{size} B" for size in memory),
        str(used["max_threads"]),
    )


def _plain_functions(module: Module) -> list[str]:
    kernels = {name for name, facts in module._jitload_facts()["functions"].items() if "kernel" in facts}
    return [name for name in module if name not in kernels]
