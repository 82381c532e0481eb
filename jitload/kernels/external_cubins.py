"""Reads cubins that were compiled elsewhere, to make a library without source.

The types of their kernels come from mangled symbols, from `Launch(signature=…)`, or from the `Cubin` that
`compile_cubin` returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitload.elf.cubin import read_cubin
from jitload.errors import JitLoadError, LaunchSpecError
from jitload.model import CompiledSource, Cubin, Kernel
from jitload.request.request import Request
from jitload.signature.demangle import demangle_variables
from jitload.signature.exports import check_layouts
from jitload.signature.kernels import read_kernels, with_signatures
from jitload.words import Argument


def read_external_cubins(request: Request) -> tuple[CompiledSource, ...]:
    """Return the cubins of a request, one for each architecture, with the types of the kernels' parameters.

    Each result also has a mapping from the kernels' names in the request's `Launch` records to the kernels' symbols.

    Raises:
        JitLoadError: Two cubins are for the same architecture, or an architecture of the request has no cubin.
        LaunchSpecError: A `Launch` names a kernel that does not exist, or the cubins have different kernels.
        LoadError: The bytes are not a cubin.
    """
    cubins = [typed_cubin(read_cubin(c.data, name=c.label), c.kernels) for c in request.cubins]
    _check_archs(request, [cubin.arch for cubin in cubins])
    functions = request.functions or ()
    symbols = {launch.kernel: _symbol_of(launch.kernel, name, cubins[0]) for name, launch in functions if launch.kernel}
    signatures = [(launch.kernel or name, launch.signature) for name, launch in functions if launch.signature]
    cubins = [replace(cubin, kernels=with_signatures(cubin.kernels, symbols, signatures)) for cubin in cubins]
    result = tuple(CompiledSource(cubin=cubin, symbols=symbols, candidates=(), headers=()) for cubin in cubins)
    check_layouts(result)
    return result


def typed_cubin(cubin: Cubin, kernels: tuple[Kernel, ...] = ()) -> Cubin:
    """Return a cubin with the types of its kernels, as far as their symbols tell them, or as in `kernels`."""
    variables = demangle_variables(cubin.variables)
    return replace(cubin, kernels=kernels or read_kernels(cubin.kernels), variables=variables)


def _check_archs(request: Request, archs: Sequence[str]) -> None:
    if duplicate := next((arch for arch in archs if archs.count(arch) > 1), None):
        labels = [cubin.label for cubin, arch in zip(request.cubins, archs, strict=True) if arch == duplicate]
        raise JitLoadError(
            f"{' and '.join(labels)} are both for {duplicate}: a module takes one cubin for each architecture. Load "
            "them as two modules, or launch them from C++ of your own."
        )
    if missing := [arch for arch in request.archs if arch not in archs]:
        raise JitLoadError(
            f"module {request.name!r} has no cubin for {', '.join(missing)}, only for {', '.join(archs)}. Pass "
            "one, or leave ",
            *(Argument("arch"), " out."),
        )


def _symbol_of(kernel: str, function_name: str, cubin: Cubin) -> str:
    """Return the symbol of a kernel. `kernel` is the symbol, the C++ name, or the C++ name with parameter types."""
    name = _without_spaces(kernel)
    for spellings in (lambda k: (k.symbol,), lambda k: (_without_spaces(k.name), _without_spaces(_with_types(k)))):
        symbols = [k.symbol for k in cubin.kernels if name in spellings(k)]
        if len(symbols) == 1:
            return symbols[0]
    kernels = ", ".join(map(_with_types, cubin.kernels)) or "none"
    raise LaunchSpecError(
        f"there is no kernel {kernel!r}",
        kernel=function_name,
        field="Launch.kernel",
        hint=f"The kernels of the cubin are: {kernels}",
    )


def _with_types(kernel: Kernel) -> str:
    return f"{kernel.name}({', '.join(parameter.type for parameter in kernel.parameters)})"


def _without_spaces(text: str) -> str:
    return text.replace(" ", "")
