"""Compiles the variants of a Triton kernel, and writes the record that describes how they are launched."""

from __future__ import annotations

import inspect
from pathlib import Path

from jitload.building.stages import stage
from jitload.model import Cubin
from jitload.request.request import Request, TritonSource, VariantSource
from jitload.toolchain.arch import capability_of
from jitload.triton.compile import compile_cubin
from jitload.triton.wrapper import TritonFunction, write_triton_sources


def write_triton_kernels(request: Request, work_dir: Path) -> tuple[str, ...]:
    """Compile a Triton kernel in a work directory. Return the cubins' files in the order of the record."""
    source = request.triton
    assert source is not None
    variants = tuple(
        variant._replace(cubins=variant.cubins or tuple(_compile(source, variant, arch) for arch in request.archs))
        for variant in source.variants
    )
    doc = inspect.cleandoc(source.kernel.function.__doc__ or "") if source.kernel else ""
    function = TritonFunction(name=source.name, doc=doc, grid=source.grid, variants=variants, choice=source.choice)
    return write_triton_sources(request.name, (function,), work_dir)


def _compile(source: TritonSource, variant: VariantSource, arch: str) -> Cubin:
    assert source.kernel is not None
    assert source.triton is not None
    assert variant.plan is not None
    capability, _ = capability_of(arch)
    with stage(f"Triton compiles {source.name} for {arch}"):
        return compile_cubin(source.kernel, variant.plan, source.triton, capability)
