"""Shows a module in a notebook or a terminal: a table of its kernels and the resources that they use."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitload.loader.module import Module

RESOURCES = ("registers", "spill_bytes", "local_bytes", "shared_bytes", "max_threads")
_COLUMNS = (
    "registers", "spills", "local memory", "static shared memory", "dynamic shared memory", "max threads per block",
)  # fmt: skip
# A signature may be long. There are no colours, because themes differ.
_LEFT = "text-align: left; min-width: 16em; overflow-wrap: anywhere"


def format_resource(used: Mapping[str, Any], resource: str) -> str:
    """Return how much of a resource a kernel uses, as text. Register spills get a `!`, because they are slow."""
    value = used.get(resource)
    if value is None:
        return "-" if used["registers"] is None else "unknown"  # kernels on the CPU have no registers
    unit = " B" if resource.endswith("_bytes") else ""
    return f"{value}{unit}{' !' if resource == 'spill_bytes' and value else ''}"


def html_table(module: Module) -> str:
    """Return the table of a module's kernels as HTML."""
    rows = ""
    for signature, arch, used in _rows(module):
        texts = map(html.escape, (arch, *used))
        cells = "".join(f"<td><b>{text}</b></td>" if text.endswith(" !") else f"<td>{text}</td>" for text in texts)
        rows += f'<tr><td style="{_LEFT}"><code>{html.escape(signature)}</code></td>{cells}</tr>'
    head = f'<th style="{_LEFT}">kernel</th>' + "".join(f"<th>{column}</th>" for column in ("arch", *_COLUMNS))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    others = "".join(f"<div><code>{html.escape(name)}(…)</code></div>" for name in _plain_functions(module))
    return f"<div>{html.escape(_title(module))}</div>{table}{others}"


def text_table(module: Module, width: int) -> str:
    """Return the table of a module's kernels as text, without unused resources."""
    lines, last_signature = [_title(module)], ""
    for signature, arch, used in _rows(module):
        if signature != last_signature:
            lines += textwrap.wrap(signature, width, initial_indent="  ", subsequent_indent=" " * 6)
        pairs = zip(_COLUMNS, used, strict=True)
        facts = ", ".join(f"{name} {text}" for name, text in pairs if text not in ("-", "0 B", "at the call"))
        lines += textwrap.wrap(f"{arch}: {facts}", width, initial_indent=" " * 4, subsequent_indent=" " * 6)
        last_signature = signature
    return "\n".join([*lines, *(f"  {name}(…)" for name in _plain_functions(module))])


def _title(module: Module) -> str:
    facts, built_s = module._jitload_facts(), module.__dict__.get("_jitload_built_s", -1.0)
    origin = "from the cache" if built_s is None else f"built in {built_s:.2f} s" if built_s >= 0 else "loaded"
    return f"{facts['name'] or 'module'}: {origin}"


def kernel_builds(module: Module) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield (function, architecture, resources) for each kernel on each of its architectures.

    The function and the resources are dicts from the library's description.
    """
    for function in module._jitload_facts()["functions"].values():
        if "kernel" in function:
            for arch, used in (function.get("builds") or {function["arch"]: function["kernel"]}).items():
                yield function, arch, used


def _rows(module: Module) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (signature, architecture, other cells of the row) for each kernel on each of its architectures."""
    for function, arch, used in kernel_builds(module):
        dynamic = function.get("triton", {}).get("shared_bytes", function.get("dynamic_shared", "at the call"))
        *texts, max_threads = (format_resource(used, resource) for resource in RESOURCES)
        dynamic = f"{dynamic} B" if str(dynamic).isdigit() else dynamic
        yield function["signature"], arch, [*texts, dynamic, max_threads]


def _plain_functions(module: Module) -> list[str]:
    kernels = {name for name, facts in module._jitload_facts()["functions"].items() if "kernel" in facts}
    return [name for name in module if name not in kernels]
