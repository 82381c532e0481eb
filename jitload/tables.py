"""Tables of kernels and the resources that they use, for notebooks and terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

RESOURCES = ("registers", "spill_bytes", "local_bytes", "shared_bytes", "max_threads")
RESOURCE_TITLES = ("registers", "spills", "local memory", "static shared memory", "max threads per block")
# A signature may be long. There are no colours, because themes differ.
_LEFT = "text-align: left; min-width: 16em; overflow-wrap: anywhere"


def format_resource(used: Mapping[str, Any], resource: str) -> str:
    """Return how much of a resource a kernel uses, as text. Register spills get a `!`, because they are slow."""
    value = used.get(resource)
    if value is None:
        return "-" if used["registers"] is None else "unknown"  # kernels on the CPU have no registers
    unit = " B" if resource.endswith("_bytes") else ""
    return f"{value}{unit}{' !' if resource == 'spill_bytes' and value else ''}"


def resource_cells(used: Any) -> list[str]:
    """Return the texts of the resources that a kernel uses. They are the attributes or the items of `used`."""
    values = used if isinstance(used, Mapping) else {label: getattr(used, label) for label in RESOURCES}
    return [format_resource(values, resource) for resource in RESOURCES]


def used_resources(titles: Sequence[str], cells: Sequence[str]) -> str:
    """Return the cells of a row as a sentence, without those that say that nothing is used."""
    pairs = zip(titles, cells, strict=True)
    return ", ".join(f"{title} {text}" for title, text in pairs if text not in ("-", "0 B", "at the call"))


def html_table(titles: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Return a table of kernels as HTML, or "" without rows. A row is a kernel's signature and its other cells."""
    import html  # imported here because most programs never need it

    body = ""
    for signature, cells in rows:
        texts = map(html.escape, cells)
        columns = "".join(f"<td><b>{text}</b></td>" if text.endswith(" !") else f"<td>{text}</td>" for text in texts)
        body += f'<tr><td style="{_LEFT}"><code>{html.escape(signature)}</code></td>{columns}</tr>'
    head = f'<th style="{_LEFT}">kernel</th>' + "".join(f"<th>{title}</th>" for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
