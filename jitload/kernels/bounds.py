"""Compiles device code once more, to find out what launches of its kernels touch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitload.errors import CompileError, JitLoadError
from jitload.kernels.compilation import compile_for_arch
from jitload.kernels.source import DeviceSource, device_source
from jitload.request.request import Request
from jitload.toolchain.arch import machine_arch
from jitload.toolchain.cuda import CudaToolchain

if TYPE_CHECKING:
    from jitload.expressions.compiler import Op
    from jitload.model import CompiledSource

# Compilers define names with two underscores, of which a condition may choose other code on the CPU.
_CONDITION = r"^[ \t]*#[ \t]*(?:el)?if(?:\\\r?\n|[^\n])*\b__"
_DEPENDS_ON_TARGET = re.compile(rf"JITLOAD_CPU|__CUDA_ARCH|__CUDACC|__NVCC|__GNU|{_CONDITION}", re.MULTILINE)
_PLAIN = ("--generate-line-info", "-w", "--Ofast-compile=min")  # with the last one, NVRTC does not unroll loops
_DEBUG = {"-G", "--device-debug"}  # NVRTC does not unroll loops either, and warns of both options together


def add_bound_checks(
    request: Request, compiled: Sequence[CompiledSource], toolchain: CudaToolchain
) -> tuple[CompiledSource, ...]:
    """Return compiled code with the checks of the accesses of its kernels, if a launch or the settings ask for them."""
    if not request.settings.checks_bounds and not any(launch.bounds for _, launch in request.functions or ()):
        return (*compiled,)
    from jitload.bounds.extents import bound_checks

    result = []
    for code in compiled:
        ptx = compile_plainly(device_source(request), code.cubin.arch, toolchain).cubin.ptx
        kernels = code.cubin.kernels
        checks = {kernel.symbol: bound_checks(ptx, kernel.symbol, kernel.parameters) for kernel in kernels}
        result.append(code._replace(bounds=checks))
    return tuple(result)


def find_separation(source: DeviceSource, toolchain: CudaToolchain) -> dict[str, tuple[Op, ...]]:
    """Return, by the names of kernels, the steps that fail unless the threads of a launch are known to be separate.

    Leave out kernels without such a launch.
    """
    if depends_on_target(source):
        return {}
    from jitload.bounds.extents import separation_steps

    try:
        code = compile_plainly(source, "sm_90", toolchain)
    except JitLoadError:
        return {}
    kernels = {k.name: separation_steps(code.cubin.ptx, k.symbol, k.parameters) for k in code.cubin.kernels}
    return {name: steps for name, steps in kernels.items() if steps}


def depends_on_target(source: DeviceSource) -> bool:
    """Return whether a compiler may compile other code for another GPU or for the CPU."""
    differing = [f for f in source.cpu_flags if re.match("-[DUIi]", f) and (len(f) == 2 or f not in source.options)]
    texts = (*source.piece_texts, *source.reading.header_texts)
    return bool(differing) or any(map(_DEPENDS_ON_TARGET.search, texts))


def compile_plainly(source: DeviceSource, arch: str, toolchain: CudaToolchain) -> CompiledSource:
    """Compile code with loops as in the source, and with lines.

    If NVRTC does not have the options for this, or cannot compile the source with them, compile the code as it is.
    """
    is_debug = not _DEBUG.isdisjoint(source.options)
    plain = source._replace(options=(*source.options, *(_PLAIN[:-1] if is_debug else _PLAIN)))
    try:
        return compile_for_arch(plain, machine_arch(arch), toolchain)
    except CompileError:
        return compile_for_arch(source, machine_arch(arch), toolchain)
