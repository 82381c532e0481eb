"""Turns compiled kernels into the files of a library, and the commands that compile and link them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jitload.building.ninja import COMPILE_FLAGS, Step, compile_step, link_step
from jitload.building.runtime import include_flags
from jitload.codegen.wrapper import EmbeddedImage, Wrapper, render_wrapper
from jitload.request.request import Request
from jitload.signature.exports import choose_exports
from jitload.toolchain.arch import CPU, capability_of
from jitload.toolchain.host import Compiler

if TYPE_CHECKING:
    from jitload.model import CompiledSource, CpuProgram


def write_sources(
    request: Request, compiled: Sequence[CompiledSource], work_dir: Path, cpu: CpuProgram | None = None
) -> None:
    """Write the cubins and the wrapper, and for people who inspect the code its source and PTX."""
    images = []
    for code in compiled:
        arch = code.cubin.arch
        capability, suffix = capability_of(arch)
        identifier = re.sub(r"\W", "_", request.slug)
        image = EmbeddedImage(name=f"{identifier}_{arch}", file=f"{arch}.cubin", capability=capability, suffix=suffix)
        images.append(image)
        (work_dir / image.file).write_bytes(code.cubin.data)
        if code.cubin.ptx:
            (work_dir / f"{arch}.ptx").write_text(code.cubin.ptx, encoding="utf-8", newline="")
    first, *others = compiled if cpu is None else (*compiled, cpu.compiled)
    wrapper = Wrapper(
        name=request.name,
        archs=(*(code.cubin.arch for code in compiled), *((CPU,) if cpu else ())),
        images=tuple(images),
        exports=choose_exports(request.functions, first, others),
        variables=first.cubin.variables,
        cpu=cpu,
    )
    for number, (_, text) in enumerate(request.pieces):
        (work_dir / f"source{number}.cu").write_text(text, encoding="utf-8", newline="")
    (work_dir / "wrapper.cc").write_text(render_wrapper(wrapper), encoding="utf-8")


def library_steps(
    request: Request, compiled: Sequence[CompiledSource], compiler: Compiler, runtime: Path
) -> tuple[Step, Step]:
    """Return the commands that compile the wrapper, with the cubins in it, and link it with the runtime library."""
    flags = (*COMPILE_FLAGS, *include_flags())
    cubins = tuple(f"{code.cubin.arch}.cubin" for code in compiled)
    return (
        compile_step(compiler.command, flags, "wrapper.cc", "wrapper.o", reads=cubins),
        link_step(compiler.command, ("wrapper.o", str(runtime)), f"{request.slug}.so"),
    )
