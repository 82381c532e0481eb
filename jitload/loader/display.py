"""Shows a module in a notebook: a table of its kernels and the resources that they use."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any, Protocol

from jitload.tables import RESOURCE_TITLES, html_grid, resource_cells

_COLUMNS = (*RESOURCE_TITLES[:-1], "dynamic shared memory", RESOURCE_TITLES[-1])


class ShownModule(Protocol):
    """The part of a `Module` that is shown here and in stubs."""

    def _jitload_facts(self) -> dict[str, Any]: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str, /) -> Any: ...


def html_text(module: ShownModule) -> str:
    """Return the table of a module's kernels as HTML."""
    rows = [[signature, arch, *used] for signature, arch, used in _rows(module)]
    others = "".join(f"<div><code>{html.escape(line)}</code></div>" for line in _other_lines(module))
    return html_grid([["kernel", "arch", *_COLUMNS], *rows], _title(module)) + others


def _title(module: ShownModule) -> str:
    facts, built_s = module._jitload_facts(), module.__dict__.get("_jitload_built_s", -1.0)
    origin = "from the cache" if built_s is None else f"built in {built_s:.2f} s" if built_s >= 0 else "loaded"
    return f"{facts['name'] or 'module'}: {origin}"


def kernel_builds(module: ShownModule) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield (function, architecture, resources) for each kernel on each of its architectures.

    The function and the resources are dicts from the library's description.
    """
    for function in module._jitload_facts()["functions"].values():
        if "kernel" in function:
            for arch, used in (function.get("builds") or {function["arch"]: function["kernel"]}).items():
                yield function, arch, used


def _rows(module: ShownModule) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (signature, architecture, other cells of the row) for each kernel on each of its architectures."""
    for function, arch, used in kernel_builds(module):
        dynamic = function.get("triton", {}).get("shared_bytes", function.get("dynamic_shared", "at the call"))
        *texts, max_threads = resource_cells(used)
        dynamic = f"{dynamic} B" if str(dynamic).isdigit() else dynamic
        yield function["signature"], arch, [*texts, dynamic, max_threads]


def _other_lines(module: ShownModule) -> list[str]:
    """Return a line for each function that is no kernel."""
    kernels = {name for name, facts in module._jitload_facts()["functions"].items() if "kernel" in facts}
    return [f"{name}(…)" for name in module if name not in kernels]
