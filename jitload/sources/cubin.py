"""Cubins that were compiled elsewhere, whose kernels become functions."""

from __future__ import annotations

import hashlib
import os

from jitload.request.request import Request
from jitload.sources.common import Parts, Tools
from jitload.sources.common import no_tools as tools
from jitload.sources.device import build  # the same, without anything to compile

__all__ = ["build", "key_parts", "tools"]


def key_parts(request: Request, _tools: Tools) -> Parts:
    """Return the digests of the cubins, and what is known of their kernels."""
    return tuple(
        ("image", (os.path.basename(cubin.label), hashlib.sha256(cubin.data).hexdigest(), repr(cubin.kernels)))
        for cubin in request.cubins
    )
