"""`jitload inspect`: shows what a built library contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitload.cache.key import part_text
from jitload.cli.output import json_option, print_result, table_lines
from jitload.loader.display import kernel_builds
from jitload.tables import RESOURCES, format_resource

if TYPE_CHECKING:
    from jitload.loader.module import Module

_TITLES = {"spill_bytes": "spills", "max_threads": "max threads"}


@click.command("inspect")
@click.argument("library", type=click.Path(path_type=Path))
@json_option
def inspect_command(library: Path, *, as_json: bool) -> None:
    """Show what a library contains.

    Show its functions, kernels, variables and architectures, and what it was built from. The library is loaded,
    which runs its code: inspect only libraries that you trust.
    """
    from jitload.api import load_module

    module = load_module(library)
    facts, rows, parts = module._jitload_facts(), kernel_rows(module), _read_parts(library)
    tuned = {name: function["tune"]["digest"] for name, function in facts["functions"].items() if "tune" in function}
    described = {"name": facts["name"], "archs": facts["archs"], "variables": facts["variables"]}
    described |= {"functions": list(module), "kernels": rows, "tuned": tuned, "made_of": parts}
    signatures = [facts["functions"].get(name, {}).get("signature", name + "(...)") for name in module]
    lines = [
        f"{facts['name'] or library.stem} ({', '.join(facts['archs']) or 'C++ alone'})",
        *(f"  {signature}" for signature in signatures or ["no functions that Python can call"]),
        *(f"  variable {row['name']}, {row['size']} bytes" for row in facts["variables"]),
        *kernel_table(rows),
        *(f"  {name} is tuned, SHA-256 of the measurements: {digest}" for name, digest in tuned.items() if digest),
        *(["Made of:"] if parts else []),
        *(f"  {label}: {part_text(value)}" for label, value in parts.items()),
    ]
    print_result(described, lines, as_json=as_json)


def _read_parts(library: Path) -> dict[str, Any]:
    """Return the inputs that a library was built from, according to its manifest, or {} without a manifest."""
    from jitload.inspection.code import read_entry

    parts = (read_entry(library.resolve()) or {}).get("parts")
    return parts if isinstance(parts, dict) else {}


def kernel_rows(module: Module) -> list[dict[str, Any]]:
    """Return a row for each kernel and architecture of a library. A row contains the resources that the kernel uses."""
    return [
        {"name": function["name"], "arch": arch, "signature": function["signature"]}
        | {label: used.get(label) for label in RESOURCES}
        for function, arch, used in kernel_builds(module)
    ]


def kernel_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of the resources that kernels use. A `!` marks register spills."""
    if not rows:
        return []
    columns = RESOURCES if any(row["registers"] is not None for row in rows) else ("max_threads",)
    titles = ("kernel", "arch", *(_TITLES.get(label, label.removesuffix("_bytes")) for label in columns))
    cells = [(row["name"], row["arch"], *(format_resource(row, label) for label in columns)) for row in rows]
    return table_lines(titles, cells)
