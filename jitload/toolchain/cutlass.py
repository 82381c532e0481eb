"""Finds CUTLASS, whose headers kernels and C++ may include, in wheels or where `JITLOAD_CUTLASS` says."""

from __future__ import annotations

import re
from pathlib import Path

from jitload.errors import ToolchainError
from jitload.toolchain.host import package_dirs

# The packages of the wheels that contain CUTLASS, and its directory in each.
_CUTLASS = {"cutlass_library": "source", "flashinfer": "data/cutlass", "tilelang": "3rdparty/cutlass"}
_VERSION = "include/cutlass/version.h"


def find_cutlass(chosen: str = "") -> Path | None:
    """Return the CUTLASS that `JITLOAD_CUTLASS` names, or without it the newest that an installed wheel contains."""
    if chosen:
        if not ((root := Path(chosen).expanduser()) / _VERSION).is_file():
            raise ToolchainError(f"JITLOAD_CUTLASS={chosen}: this directory has no {_VERSION}.")
        return root
    roots = (root / path for package, path in _CUTLASS.items() for root in package_dirs(package))
    return max((root for root in roots if (root / _VERSION).is_file()), key=cutlass_version, default=None)


def cutlass_version(root: Path) -> tuple[int, ...]:
    """Return the version of the CUTLASS in a directory, such as (4, 2, 0)."""
    text = (root / _VERSION).read_text("utf-8", "replace")
    return tuple(map(int, re.findall(r"#define CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", text)))


def cutlass_dirs(chosen: str = "") -> tuple[Path, ...]:
    """Return the header directories of the CUTLASS that is found. A compiler is to search those of a wheel last."""
    root = find_cutlass(chosen)
    return (root / "include", root / "tools/util/include") if root else ()


def cutlass_hint(problem: str) -> str:
    """Return advice if the missing header or the log `problem` is about CUTLASS, otherwise ""."""
    if problem.startswith(("cutlass/", "cute/")):
        return f"{problem} belongs to CUTLASS: pip install nvidia-cutlass, or set JITLOAD_CUTLASS to its directory."
    # CuTe 4.2 works with CCCL 13.0, and CuTe 4.5 with CCCL 13.0 to 13.2. Later ones declare templates differently.
    is_older = problem == "cuda/std/__tuple_dir/structured_bindings.h" or (
        "/cute/" in problem and "incompatible with template parameter" in problem
    )
    return "This CUTLASS is older than the installed CCCL: pip install 'nvidia-cuda-cccl==13.0.*'" if is_older else ""
