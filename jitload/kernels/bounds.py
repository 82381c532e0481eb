"""Compiles device code once more, to find out what launches of its kernels touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitload.errors import CompileError
from jitload.kernels.compilation import compile_for_arch
from jitload.kernels.source import device_source
from jitload.request.request import Request
from jitload.toolchain.arch import machine_arch
from jitload.toolchain.cuda import CudaToolchain

if TYPE_CHECKING:
    from jitload.model import CompiledSource

_PLAIN = ("--generate-line-info", "--Ofast-compile=min")  # with the latter, NVRTC does not unroll loops


def add_bound_checks(
    request: Request, compiled: Sequence[CompiledSource], toolchain: CudaToolchain
) -> tuple[CompiledSource, ...]:
    """Return compiled code with the checks of the accesses of its kernels, if a launch or the settings ask for them."""
    if not request.settings.checks_bounds and not any(launch.bounds for _, launch in request.functions or ()):
        return (*compiled,)
    from jitload.bounds.extents import bound_checks

    result = []
    for code in compiled:
        ptx = compile_plainly(request, code, toolchain)
        kernels = code.cubin.kernels
        checks = {kernel.symbol: bound_checks(ptx, kernel.symbol, kernel.parameters) for kernel in kernels}
        result.append(code._replace(bounds=checks))
    return tuple(result)


def compile_plainly(request: Request, code: CompiledSource, toolchain: CudaToolchain) -> str:
    """Return PTX of the same code in which loops are as in the source, with lines.

    If NVRTC does not have the options for this, or cannot compile the source with them, return the PTX of `code`.
    """
    source = device_source(request)
    plain = source._replace(options=(*source.options, *_PLAIN))
    try:
        return compile_for_arch(plain, machine_arch(code.cubin.arch), toolchain).cubin.ptx
    except CompileError:
        return code.cubin.ptx
