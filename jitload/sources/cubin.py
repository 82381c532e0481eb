"""Cubins that were compiled elsewhere, whose kernels become functions."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from jitload.request.request import Request
from jitload.sources.common import Parts, Tools
from jitload.sources.device import build  # the same, without anything to compile

__all__ = ["build", "key_parts", "tools"]


def tools(_request: Request, _cache_dir: Path) -> Tools:
    """Return no tools: none is needed."""
    return Tools()


def key_parts(request: Request, _tools: Tools) -> Parts:
    """Return the digests of the cubins, and what is known of their kernels."""
    return tuple(
        ("image", (os.path.basename(cubin.label), hashlib.sha256(cubin.data).hexdigest(), repr(cubin.kernels)))
        for cubin in request.cubins
    )
