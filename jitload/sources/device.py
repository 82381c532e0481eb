"""Kernels in CUDA C++ for GPUs: NVRTC compiles them to cubins, which are launched from a record or from a library."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.building.resources import run_in_background
from jitload.request.request import Request
from jitload.sources.common import Parts, Tools, build_kernels, find_tools
from jitload.toolchain.cuda import CudaToolchain, Nvcc, find_cuda_toolchain

if TYPE_CHECKING:
    from jitload.cache.entry import Entry
    from jitload.cache.store import Work

# The NVRTC that is loaded, and whether the modules that link libraries are.
_prepared: set[tuple[Path | None, bool]] = set()


def tools(request: Request, cache_dir: Path) -> Tools:
    """Return NVRTC and its headers."""
    return find_tools(request, cache_dir, lambda: find_cuda_toolchain(request.settings), needs_compiler=False)


def key_parts(request: Request, _tools: Tools) -> Parts:
    """Return whether all kernels check their accesses. All other parts are common."""
    return (("bounds", "check"),) if request.settings.checks_bounds else ()


def build(request: Request, tools: Tools, work: Work) -> Entry:
    """Compile kernels, write their record and, if it is needed, link their library. Publish the result."""

    def write_kernels() -> tuple[Path, ...]:
        assert not isinstance(tools.cuda, Nvcc)
        preparation = (tools.cuda and tools.cuda.nvrtc_path, work.needs_library)
        if request.settings.isolates or preparation not in _prepared:
            _prepared.add(preparation)
            run_in_background(_prepare_build, request, tools.cuda, work.needs_library)

        from jitload.kernels.bounds import add_bound_checks
        from jitload.kernels.compilation import compile_device_code
        from jitload.request.variants import groups

        # machine code, and the signatures of its kernels
        compiled = [compile_device_code(part, tools.cuda) for part in groups(request)]
        if tools.cuda is not None:
            pairs = zip(groups(request), compiled, strict=True)
            compiled = [add_bound_checks(part, codes, tools.cuda) for part, codes in pairs]

        from jitload.codegen.wrapper import write_sources

        write_sources(request, compiled, work.dir)
        return tuple(sorted({path for codes in compiled for code in codes for path in code.headers}))

    return build_kernels(request, work, write_kernels)


def _prepare_build(request: Request, cuda: CudaToolchain | None, needs_library: object) -> None:
    """Load NVRTC, and then the modules that the build needs next. A background thread calls this function.

    NVRTC comes first because the compile waits for it. NVRTC is opened and compiles without the GIL, so modules are
    loaded meanwhile: by the caller those that make the job for NVRTC, and here those that read its result.
    """
    if cuda is not None:
        if not request.settings.isolates:
            from jitload.cuda.bindings import open_nvrtc

            open_nvrtc(cuda.nvrtc_path)
        from jitload.cuda.nvrtc import prepare_nvrtc

        prepare_nvrtc(cuda.nvrtc_path, is_isolated=request.settings.isolates)
    for name in ("model", "elf.cubin", "signature.kernels", "codegen.wrapper"):
        importlib.import_module(f"jitload.{name}")
    if needs_library:
        from jitload.codegen.wrapper import load_template

        load_template()
    else:  # a record is made to be loaded at once
        for name in ("loader.module", "building.native", "building.background"):
            importlib.import_module(f"jitload.{name}")
