"""Cubins that were compiled elsewhere in, what a library is built from out: typed as far as something tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jitload.cuda.kernels import layout_difference
from jitload.elf.cubin import read_image
from jitload.errors import JitLoadError, LaunchSpecError
from jitload.launch import Launch
from jitload.model import CompiledSource, Cubin, Kernel
from jitload.request.cubins import LabelledCubin
from jitload.request.request import Request
from jitload.signature.declared import check_is_typed, parse_signature
from jitload.signature.demangle import demangle_variables
from jitload.signature.exports import choose_export_names
from jitload.signature.kernels import make_typed_kernel, read_kernels_without_source


def read_given(request: Request) -> tuple[CompiledSource, ...]:
    """Return the cubins of a request, one for each architecture, with the kernels that its launches name.

    Raises:
        JitLoadError: Two are for one architecture, or none is for one that was asked for.
        LaunchSpecError: A launch names a kernel that there is not.
        LoadError: One is no cubin.
    """
    cubins = [_read(image) for image in request.cubins]
    _check_archs(request, [cubin.arch for cubin in cubins])
    named = [(name, launch.kernel) for name, launch in request.functions or () if launch.kernel]
    symbols = {kernel: _symbol_of(kernel, name, cubins[0]) for name, kernel in named}
    cubins = [_with_signatures(cubin, request, symbols) for cubin in cubins]
    for other in cubins[1:]:
        if difference := layout_difference(cubins[0], other):
            raise JitLoadError(
                f"the cubins for {cubins[0].arch} and {other.arch} have different kernels ({difference}): load them as "
                "two modules"
            )
    return tuple(CompiledSource(cubin=cubin, symbols=symbols, candidates=(), headers=()) for cubin in cubins)


def _with_signatures(cubin: Cubin, request: Request, symbols: Mapping[str, str]) -> Cubin:
    """Return the cubin with the types that launches give; what is exported must have types then.

    A name that no kernel has is left to whoever chooses the exports: the message for it lists them.
    """
    slots = {kernel.symbol: kernel for kernel in read_image(cubin.data).kernels}
    typed = {kernel.symbol: kernel for kernel in cubin.kernels}
    by_name = {name: kernel.symbol for name, kernel in choose_export_names(cubin.kernels).items()}
    for name, launch in request.functions or [(name, Launch()) for name in by_name]:
        symbol = symbols[launch.kernel] if launch.kernel else by_name.get(name)
        if symbol not in typed:
            continue  # the other cubins' layout is compared afterwards
        if launch.signature:
            pairs = parse_signature(launch.signature, name)
            types, names = [type_ for type_, _ in pairs], [given for _, given in pairs]
            typed[symbol] = make_typed_kernel(slots[symbol], types, names, name=typed[symbol].name)
        check_is_typed(typed[symbol])
    return replace(cubin, kernels=tuple(typed.values()))


def _read(image: LabelledCubin) -> Cubin:
    found = read_image(image.data, name=image.label)
    kernels = image.kernels or read_kernels_without_source(found)
    variables = demangle_variables(found.variables)
    return Cubin(data=image.data, arch=found.arch, kernels=kernels, variables=variables)


def _check_archs(request: Request, archs: Sequence[str]) -> None:
    if twice := next((arch for arch in archs if archs.count(arch) > 1), None):
        labels = [image.label for image, arch in zip(request.cubins, archs, strict=True) if arch == twice]
        raise JitLoadError(
            f"{' and '.join(labels)} are both for {twice}: a module takes one cubin for each architecture. Load them "
            "as two modules, or launch them from C++ of your own."
        )
    if missing := [arch for arch in request.archs if arch not in archs]:
        raise JitLoadError(
            f"module {request.name!r} has no cubin for {', '.join(missing)}, only for {', '.join(archs)}"
        )


def _symbol_of(kernel: str, name: str, cubin: Cubin) -> str:
    """Return the symbol of the kernel that a launch names: by its symbol, its C++ name, or its name with its types."""
    wanted = _squeezed(kernel)
    for spellings in (lambda k: (k.symbol,), lambda k: (_squeezed(k.name), _squeezed(_with_types(k)))):
        found = [k.symbol for k in cubin.kernels if wanted in spellings(k)]
        if len(found) == 1:
            return found[0]
    known = ", ".join(_with_types(k) for k in cubin.kernels) or "none"
    raise LaunchSpecError(
        f"no kernel {kernel!r}", kernel=name, field="Launch.kernel", hint=f"The kernels of the cubin are: {known}"
    )


def _with_types(kernel: Kernel) -> str:
    return f"{kernel.name}({', '.join(parameter.type for parameter in kernel.parameters)})"


def _squeezed(text: str) -> str:
    return text.replace(" ", "")
