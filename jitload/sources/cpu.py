"""Kernels in CUDA C++ that run on the CPU, and possibly on GPUs from the same library: the C++ compiler builds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jitload.request.request import Request
from jitload.sources.common import Parts, Tools, find_tools, libc_version
from jitload.toolchain.cuda import Nvcc, find_cuda_headers, find_cuda_toolchain
from jitload.toolchain.host import find_compiler

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.cache.store import Work


def tools(request: Request, cache_dir: Path) -> Tools:
    """Return the C++ compiler, and NVRTC, which the CPU alone can do without."""
    find_cuda = find_cuda_headers if len(request.archs) == 1 else find_cuda_toolchain
    return find_tools(request, cache_dir, lambda: find_cuda(request.settings))


def key_parts(request: Request, _tools: Tools) -> Parts:
    """Return the options of the C++ compiler and the version of the C library.

    Kernels that NVRTC has not checked have a different key from kernels that it has checked. If the check is turned
    off, the part `gpu_check` makes the difference. If there is no NVRTC, the part `nvrtc` of the key is empty.
    """
    is_checked = request.settings.checks_for_gpu or len(request.archs) > 1
    return (
        *(() if is_checked else (("gpu_check", "off"),)),
        *((("bounds", "check"),) if request.settings.checks_bounds else ()),
        ("cpu_flags", request.cpu_flags),
        ("instrumentation", request.instrumentation),
        ("libc", libc_version()),
    )


def build(request: Request, tools: Tools, work: Work) -> Entry:
    """Build and publish the library."""
    from jitload.building.ninja import check_is_made
    from jitload.cpu.library import build_cpu_library

    assert not isinstance(tools.cuda, Nvcc)
    compiler = find_compiler(request.settings, needs_gcc=True)
    dependencies = build_cpu_library(request, tools.cuda, compiler, work)
    check_is_made(work.dir / request.product, compiler.command)
    return work.publish(request.product, dependencies)
