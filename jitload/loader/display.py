"""Shows a module in a notebook: a table of its kernels and the resources that they use."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jitload.tables import RESOURCE_TITLES, html_grid, resource_cells

if TYPE_CHECKING:
    from jitload.loader.module import Module

_COLUMNS = (*RESOURCE_TITLES[:-1], "dynamic shared memory", RESOURCE_TITLES[-1])


def html_text(module: Module) -> str:
    """Return the table of a module's kernels as HTML, with a line for each function that is no kernel."""
    facts, built_s = module._jitload_facts(), module.__dict__.get("_jitload_built_s", -1.0)
    origin = "from the cache" if built_s is None else f"built in {built_s:.2f} s" if built_s >= 0 else "loaded"
    rows, kernels = [["kernel", "arch", *_COLUMNS]], set()
    for function, arch, used in kernel_builds(module):
        dynamic = function.get("triton", {}).get("shared_bytes", function.get("dynamic_shared", "at the call"))
        *texts, max_threads = resource_cells(used)
        dynamic = f"{dynamic} B" if str(dynamic).isdigit() else dynamic
        rows.append([function["signature"], arch, *texts, dynamic, max_threads])
        kernels.add(function["name"])
    others = "".join(f"<div><code>{html.escape(name)}(…)</code></div>" for name in module if name not in kernels)
    return html_grid(rows, f"{facts['name'] or 'module'}: {origin}") + others


def kernel_builds(module: Module) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield (function, architecture, resources) for each kernel on each of its architectures.

    The function and the resources are dicts from the library's description.
    """
    for function in module._jitload_facts()["functions"].values():
        if "kernel" in function:
            for arch, used in (function.get("builds") or {function["arch"]: function["kernel"]}).items():
                yield function, arch, used
