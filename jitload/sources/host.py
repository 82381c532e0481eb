"""Hand-written C++: the C++ compiler builds it, or nvcc where it launches kernels with `<<<…>>>`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.errors import ToolchainError
from jitload.request.request import Request
from jitload.sources.common import Parts, Tools, find_tools, libc_version
from jitload.toolchain.cuda import CudaToolchain, Nvcc, find_cuda_headers, find_cuda_toolchain
from jitload.toolchain.host import find_compiler, tvm_ffi_version

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.cache.store import Work


def tools(request: Request, cache_dir: Path) -> Tools:
    """Return the C++ compiler, and nvcc, NVRTC for kernels that are embedded, or CUDA's headers."""

    def find_cuda() -> CudaToolchain | Nvcc | None:
        if request.host is not None and request.host.is_mixed:
            from jitload.toolchain.nvcc import find_nvcc

            try:
                return find_nvcc(request.settings, cache_dir, name=request.name)
            except ToolchainError:
                from jitload.host_cpp.functions import check_has_exports

                check_has_exports(request)  # nvcc would not help
                raise
        return find_cuda_toolchain(request.settings) if request.archs else find_cuda_headers(request.settings)

    return find_tools(request, cache_dir, find_cuda)


def key_parts(request: Request, _tools: Tools) -> Parts:
    """Return the units with their flags, what is linked, and the version of tvm-ffi, which stands for its headers."""
    host = request.host
    assert host is not None
    return (
        *(("unit", (unit.file, str(unit.is_file), str(len(unit.pieces)), *unit.flags)) for unit in host.units),
        ("objects", str(len(host.objects))),
        *((("makes", "object"),) if host.is_object else ()),
        ("cubins", tuple(part for name, data in host.cubins for part in (name, hashlib.sha256(data).hexdigest()))),
        ("flags", host.flags),
        ("link_flags", host.link_flags),
        ("tvm_ffi", tvm_ffi_version()),
        ("libc", libc_version()),
    )


def build(request: Request, tools: Tools, work: Work) -> Entry:
    """Build and publish the library, object file or program."""
    from jitload.building.ninja import check_is_made
    from jitload.host_cpp.library import build_host_library

    compiler = find_compiler(request.settings)
    dependencies = build_host_library(request, tools.cuda, compiler, work)
    check_is_made(work.dir / request.product, compiler.command)
    return work.publish(request.product, dependencies)
