"""Reads cubins that were compiled elsewhere, to make a library without source.

The types of their kernels come from mangled symbols, from `Launch(signature=…)`, or from the `Cubin` that
`compile_cubin` returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jitload.elf.cubin import read_image
from jitload.errors import JitLoadError, LaunchSpecError
from jitload.model import CompiledSource, Cubin, Image, Kernel
from jitload.request.cubins import LabelledCubin
from jitload.request.launch import Launch
from jitload.request.request import Request
from jitload.signature.declared import check_agrees, parse_signature
from jitload.signature.demangle import demangle_variables
from jitload.signature.exports import check_is_typed, choose_export_names, layout_difference
from jitload.signature.kernels import make_typed_kernel, read_kernels_without_source
from jitload.signature.types import describe_type
from jitload.words import Argument, Words


def read_external_cubins(request: Request) -> tuple[CompiledSource, ...]:
    """Return the cubins of a request, one for each architecture, with the types of the kernels' parameters.

    Each result also has a mapping from the kernels' names in the request's `Launch` records to the kernels' symbols.

    Raises:
        JitLoadError: Two cubins are for the same architecture, an architecture of the request has no cubin, or the
            cubins have different kernels.
        LaunchSpecError: A `Launch` names a kernel that does not exist.
        LoadError: The bytes are not a cubin.
    """
    images = [read_image(cubin.data, name=cubin.label) for cubin in request.cubins]
    cubins = [_typed_cubin(cubin, image) for cubin, image in zip(request.cubins, images, strict=True)]
    _check_archs(request, [cubin.arch for cubin in cubins])
    launched = [(name, launch.kernel) for name, launch in request.functions or () if launch.kernel]
    symbols = {kernel: _symbol_of(kernel, name, cubins[0]) for name, kernel in launched}
    cubins = [_with_signatures(cubin, image, request, symbols) for cubin, image in zip(cubins, images, strict=True)]
    for later in cubins[1:]:
        if difference := layout_difference(cubins[0], later):
            raise JitLoadError(
                f"the cubins for {cubins[0].arch} and {later.arch} have different kernels ({difference}): load them as "
                "two modules"
            )
    return tuple(CompiledSource(cubin=cubin, symbols=symbols, candidates=(), headers=()) for cubin in cubins)


def _typed_cubin(cubin: LabelledCubin, image: Image) -> Cubin:
    kernels = cubin.kernels or read_kernels_without_source(image)
    variables = demangle_variables(image.variables)
    return Cubin(data=cubin.data, arch=image.arch, kernels=kernels, variables=variables)


def _check_archs(request: Request, archs: Sequence[str]) -> None:
    if duplicate := next((arch for arch in archs if archs.count(arch) > 1), None):
        labels = [cubin.label for cubin, arch in zip(request.cubins, archs, strict=True) if arch == duplicate]
        raise JitLoadError(
            f"{' and '.join(labels)} are both for {duplicate}: a module takes one cubin for each architecture. Load "
            "them as two modules, or launch them from C++ of your own."
        )
    if missing := [arch for arch in request.archs if arch not in archs]:
        raise JitLoadError(
            Words(
                f"module {request.name!r} has no cubin for {', '.join(missing)}, only for {', '.join(archs)}. Pass "
                "one, or leave ",
                *(Argument("arch"), " out."),
            )
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


def _with_signatures(cubin: Cubin, image: Image, request: Request, symbols: Mapping[str, str]) -> Cubin:
    """Return the cubin with the parameter types in `signature` of the request's `Launch` records.

    Raise SignatureError if an exported kernel still has unknown types. Function names without a kernel are skipped.
    Later, `choose_exports` raises an error that lists the kernels.
    """
    image_kernels = {kernel.symbol: kernel for kernel in image.kernels}
    kernels = {kernel.symbol: kernel for kernel in cubin.kernels}
    by_name = {name: kernel.symbol for name, kernel in choose_export_names(cubin.kernels).items()}
    for name, launch in request.functions or [(name, Launch()) for name in by_name]:
        symbol = symbols[launch.kernel] if launch.kernel else by_name.get(name)
        if symbol not in kernels:
            continue  # the caller reports cubins that have different kernels
        if launch.signature:
            parameters = parse_signature(launch.signature, name, (kernels[symbol].name, symbol))
            types, names = [type_ for type_, _ in parameters], [name for _, name in parameters]
            compiled = kernels[symbol].parameters
            if not any(parameter.kind == "bits" for parameter in compiled):
                check_agrees(types, [describe_type(parameter.type) for parameter in compiled], name)
                types = [parameter.type for parameter in compiled]
            kernels[symbol] = make_typed_kernel(image_kernels[symbol], types, names, name=kernels[symbol].name)
        check_is_typed(kernels[symbol])
    return replace(cubin, kernels=tuple(kernels.values()))
