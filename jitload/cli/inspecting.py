"""`jitload inspect`: what a built library holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitload.cli.output import format_part, json_option, print_json, print_lines, print_table
from jitload.errors import JitLoadError

if TYPE_CHECKING:
    from jitload.loader.module import Module

_RESOURCES = ("registers", "shared_bytes", "local_bytes", "max_threads")


@click.command("inspect")
@click.argument("library", type=click.Path(path_type=Path))
@json_option
def inspect_command(library: Path, *, as_json: bool) -> None:
    """Show what a library holds.

    Show its functions, kernels, variables and architectures, and what it was made of. The library is loaded,
    which runs its code: inspect only libraries that you trust.
    """
    from jitload.api import load_module

    module = load_module(library)
    facts, rows, parts = module._jitload_facts(), kernel_rows(module), _read_parts(library)
    if as_json:
        described = {"name": facts["name"], "archs": facts["archs"], "variables": facts["variables"]}
        print_json(described | {"functions": list(module), "kernels": rows, "made_of": parts})
        return
    print_lines([f"{facts['name'] or library.stem} ({', '.join(facts['archs']) or 'C++ alone'})"])
    print_lines(f"  {facts['functions'].get(name, {}).get('signature', name + '(...)')}" for name in module)
    print_lines(f"  variable {row['name']}, {row['size']} bytes" for row in facts["variables"])
    print_kernels(rows)
    print_lines(["Made of:", *(f"  {label}: {format_part(value)}" for label, value in parts.items())] if parts else [])


def _read_parts(library: Path) -> dict[str, Any]:
    """Return the parts of a library's key, from the manifest next to it in a cache or a bundle; empty elsewhere."""
    from jitload.cache.entry import read_manifest

    try:
        return dict(read_manifest(library.resolve().parent)["parts"])
    except (OSError, JitLoadError):
        return {}


def kernel_rows(module: Module) -> list[dict[str, Any]]:
    """Return what each kernel of a library uses on each of its architectures."""
    return [
        {"name": name, "arch": arch, "signature": function["signature"]} | {label: used[label] for label in _RESOURCES}
        for name, function in module._jitload_facts()["functions"].items()
        if "kernel" in function
        for arch, used in (function.get("builds") or {function["arch"]: function["kernel"]}).items()
    ]


def print_kernels(rows: list[dict[str, Any]]) -> None:
    """Print what kernels use as a table; memory is in bytes."""
    labels = [label for label in (*_RESOURCES, "spill_bytes") if any(row.get(label) is not None for row in rows)]
    if rows:
        columns = ("kernel", "arch", *(label.replace("_", " ") for label in labels))
        cells = [["-" if row.get(label) is None else str(row[label]) for label in labels] for row in rows]
        print_table(columns, [(row["name"], row["arch"], *used) for row, used in zip(rows, cells, strict=True)])
