"""Shows a module in a notebook or a terminal: a table of its kernels and the resources that they use."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitload.loader.module import Module

_COLUMNS = (
    "registers", "spills", "local memory", "static shared memory", "dynamic shared memory", "max threads per block",
)  # fmt: skip
_SPILLS = _COLUMNS.index("spills")
# A signature may be long. There are no colours, because themes differ.
_LEFT = "text-align: left; min-width: 16em; overflow-wrap: anywhere"


def html_table(module: Module) -> str:
    """Return the table of a module's kernels as HTML. Register spills are marked, because they are slow."""
    rows = "".join(f"<tr>{''.join(_cells(*row))}</tr>" for row in _rows(module))
    head = f'<th style="{_LEFT}">kernel</th>' + "".join(f"<th>{column}</th>" for column in ("arch", *_COLUMNS))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    others = "".join(f"<div><code>{html.escape(name)}(…)</code></div>" for name in _plain_functions(module))
    return f"<div>{html.escape(_title(module))}</div>{table}{others}"


def _cells(signature: str, arch: str, used: tuple[str, ...]) -> Iterator[str]:
    yield f'<td style="{_LEFT}"><code>{html.escape(signature)}</code></td>'
    for number, text in enumerate((arch, *used), -1):
        shown = html.escape(text)
        yield f"<td><b>{shown} !</b></td>" if _is_spill(number, text) else f"<td>{shown}</td>"


def text_table(module: Module, width: int) -> str:
    """Return the table of a module's kernels as text, without unused resources. Register spills are marked."""
    lines, last_signature = [_title(module)], ""
    for signature, arch, used in _rows(module):
        if signature != last_signature:
            lines += textwrap.wrap(signature, width, initial_indent="  ", subsequent_indent=" " * 6)
        facts = [
            f"{name} {value}{' !' if _is_spill(number, value) else ''}"
            for number, (name, value) in enumerate(zip(_COLUMNS, used, strict=True))
            if value not in ("-", "0 B", "at the call")
        ]
        text = f"{arch}: {', '.join(facts)}"
        lines += textwrap.wrap(text, width, initial_indent=" " * 4, subsequent_indent=" " * 6)
        last_signature = signature
    return "\n".join([*lines, *(f"  {name}(…)" for name in _plain_functions(module))])


def _is_spill(number: int, text: str) -> bool:
    return number == _SPILLS and text not in ("-", "0 B", "unknown")


def _title(module: Module) -> str:
    facts, built_s = module._jitload_facts(), module.__dict__.get("_jitload_built_s", -1.0)
    origin = "from the cache" if built_s is None else f"built in {built_s:.2f} s" if built_s >= 0 else "loaded"
    return f"{facts['name'] or 'module'}: {origin}"


def kernel_builds(module: Module) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield (function, architecture, resources) for each kernel on each of its architectures.

    The function is its description in the library. The resources are what the kernel uses on the architecture.
    """
    for function in module._jitload_facts()["functions"].values():
        if "kernel" in function:
            for arch, used in (function.get("builds") or {function["arch"]: function["kernel"]}).items():
                yield function, arch, used


def _rows(module: Module) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return a signature, an architecture and the texts of the columns for each kernel on each architecture."""
    return [(function["signature"], arch, _resources(function, used)) for function, arch, used in kernel_builds(module)]


def _resources(function: dict[str, Any], used: dict[str, Any]) -> tuple[str, ...]:
    registers, sizes = used["registers"], (used.get("spill_bytes"), used["local_bytes"], used["shared_bytes"])
    absent = "-" if registers is None else "unknown"  # on the CPU there are no registers
    dynamic = function.get("triton", {}).get("shared_bytes", function.get("dynamic_shared", "at the call"))
    return (
        "-" if registers is None else str(registers),
        *(absent if size is None else f"{size} B" for size in sizes),
        f"{dynamic} B" if str(dynamic).isdigit() else dynamic,
        str(used["max_threads"]),
    )


def _plain_functions(module: Module) -> list[str]:
    kernels = {name for name, facts in module._jitload_facts()["functions"].items() if "kernel" in facts}
    return [name for name in module if name not in kernels]
