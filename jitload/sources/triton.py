"""Triton kernels: Triton compiles them to cubins. From there on, they are built as other kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jitload.request.request import Request
from jitload.sources.common import Parts, Tools, build_kernels
from jitload.sources.common import no_tools as tools  # Triton was found when the request was made

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.cache.store import Work

__all__ = ["build", "key_parts", "tools"]


def key_parts(request: Request, _tools: Tools) -> Parts:
    """Return what determines Triton's machine code, and Triton's version."""
    assert request.triton is not None
    return request.triton.parts


def build(request: Request, _tools: Tools, work: Work) -> Entry:
    """Compile kernels, write their record and, if it is needed, link their library. Publish the result."""

    def write_kernels() -> tuple[Path, ...]:
        from jitload.triton.compile import write_triton_kernels

        write_triton_kernels(request, work.dir)
        return ()

    return build_kernels(request, work, write_kernels)
