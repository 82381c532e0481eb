"""The functions of a library: which kernels it exports, under which names and with which launches."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from jitload.element_types import CPP_TYPES
from jitload.errors import LaunchSpecError, SignatureError, nearest_name
from jitload.expressions.compiler import ScopeEntry
from jitload.model import CompiledSource, Cubin, Kernel, Parameter
from jitload.request.launch import Launch
from jitload.request.tma import DTYPES
from jitload.request.tune import Choice, Variant
from jitload.signature.declared import shorten
from jitload.words import Argument, Words

_MAX_LENGTH = 120


class Export(NamedTuple):
    """A function of a library.

    Attributes:
        name: The function's name.
        kernel: The kernel that the function launches.
        launch: How the kernel is launched.
        doc: The function's docstring.
        builds: An (architecture, kernel) pair for each architecture. Empty if there is only one architecture.
        variants: One export for each kernel of a function with several kernels. A call launches the first kernel that
            fits the dtypes of the tensors. The other attributes describe the first variant.
        returns: The Python type of a host function's result as text, such as "None". Empty if the function launches
            a kernel.
        choice: How a key chooses among `variants`. With None, the dtypes choose.
        group: The number of the part of the request that the kernel was compiled with.
        constants: Further names that launch expressions may use.
        members: For a Triton kernel, members of its structure in the record.
        facts: For a Triton kernel, what the loader shows of it.
    """

    name: str
    kernel: Kernel
    launch: Launch
    doc: str
    builds: tuple[tuple[str, Kernel], ...] = ()
    variants: tuple[Export, ...] = ()
    returns: str = ""
    choice: Choice | None = None
    group: int = 0
    constants: Mapping[str, ScopeEntry] = MappingProxyType({})
    members: Mapping[str, object] = MappingProxyType({})
    facts: Mapping[str, Any] = MappingProxyType({})

    @property
    def leaves(self) -> tuple[Export, ...]:
        """The exports of the kernels among which the function chooses: itself if it has only one."""
        return tuple(leaf for variant in self.variants for leaf in variant.leaves) or (self,)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The parameters that a caller passes, in order."""
        computed = {*self.launch.args, *(name for name, _ in self.launch.tensor_maps)}
        return tuple(p for p in self.kernel.parameters if p.name not in computed and p.kind != "stream")

    @property
    def signature(self) -> str:
        """The function's name and arguments in C++, `add_one(const float* x, float* y)`."""
        return f"{self.name}({', '.join(f'{p.type} {p.name}' for p in self.arguments)})"


def choose_exports(
    functions: tuple[tuple[str, Launch], ...] | None,
    compiled: CompiledSource,
    other_archs: Sequence[CompiledSource] = (),
    group: int = 0,
) -> tuple[Export, ...]:
    """Return the kernels of a library as exports: those in `functions`, or one for every kernel.

    Args:
        functions: The exported names and their launches, or None to export every kernel.
        compiled: The kernels for the first architecture. These kernels decide the names and types.
        other_archs: The kernels for the other architectures.
        group: The number of the part of the request in which they were compiled.

    Raises:
        LaunchSpecError: A name fits no kernel.
        SignatureError: The types of a kernel's parameters are unknown.
    """
    by_name = choose_export_names(compiled.cubin.kernels)
    if functions is None:
        check_has_kernels(compiled)
        functions = tuple((name, Launch()) for name in by_name)
    exports = []
    for name, launch in functions:
        kernel = _find_kernel(name, launch, compiled, by_name)
        check_is_typed(kernel)
        cubins = [source.cubin for source in (compiled, *other_archs)] if other_archs else []
        builds = tuple((cubin.arch, _find_build(kernel, cubin)) for cubin in cubins)
        named_kernel = with_tensors(name, rename_parameters(name, kernel, launch), launch)
        exports.append(
            Export(name=name, kernel=named_kernel, launch=launch, doc=launch.doc or "", builds=builds, group=group)
        )
    return tuple(exports)


def join_exports(exports: Sequence[Export]) -> tuple[Export, ...]:
    """Return the functions of a library, each with its kernels as `variants` if it has several."""
    functions = []
    for name in dict.fromkeys(export.name for export in exports):
        own = [export for export in exports if export.name == name]
        by_dtypes = [_join_choices([*group]) for _, group in groupby(own, key=_dispatch)]
        functions.append(_join_variants(name, by_dtypes))
    return tuple(functions)


def _dispatch(export: Export) -> object:
    """Return what the exports share among which a key chooses."""
    variant = export.launch.tune
    return variant._replace(values=()) if isinstance(variant, Variant) and variant.choice else export


def _join_choices(exports: Sequence[Export]) -> Export:
    """Return the function that chooses among exports by a key, or the only export if its launch has no `Tune`."""
    first = exports[0]
    variant = first.launch.tune
    if not isinstance(variant, Variant) or variant.choice is None:
        return first
    for export in exports:
        if clash := {name for name, _ in variant.values} & {p.name for p in export.kernel.parameters}:
            problem = f"{min(clash)!r} is a value of Tune and also a parameter of the kernel: rename the value"
            raise LaunchSpecError(problem, kernel=export.name, field="tune")
        if [(p.name, p.type) for p in export.arguments] != [(p.name, p.type) for p in first.arguments]:
            problem = f"{first.signature} and {export.signature} take different arguments, so no key can choose"
            raise LaunchSpecError(problem, kernel=export.name, field="tune")
    return first._replace(variants=tuple(exports), choice=variant.choice)


def _join_variants(name: str, variants: Sequence[Export]) -> Export:
    """Return the first of the exports with a name. If there are several, all become its `variants`."""
    first, *others = variants
    if not others:
        return first
    by_dtypes: dict[tuple[str | None, ...], Export] = {}
    for variant in variants:
        if [_role(p) for p in variant.arguments] != [_role(p) for p in first.arguments]:
            problem = f"{first.signature} and {variant.signature} take different arguments"
            raise LaunchSpecError(problem, kernel=name, field="functions", hint="Export them under different names.")
        dtypes = tuple(p.dtype for p in variant.arguments if p.kind == "pointer")
        if duplicate := by_dtypes.get(dtypes):
            problem = f"{duplicate.kernel} and {variant.kernel} take tensors of the same dtypes"
            raise LaunchSpecError(problem, kernel=name, field="functions", hint="Export them under different names.")
        by_dtypes[dtypes] = variant
    return first._replace(variants=tuple(variants), choice=None)


def _role(parameter: Parameter) -> tuple[str, bool, bool]:
    """Return the properties of a parameter that all variants of a function must share."""
    return parameter.name, parameter.kind == "pointer", parameter.kind == "struct"


def _find_build(kernel: Kernel, cubin: Cubin) -> Kernel:
    """Return the kernel of the same name and parameter types in `cubin`, or `kernel` if there is none."""
    types = [parameter.type for parameter in kernel.parameters]
    builds = (build for build in cubin.kernels if build.name == kernel.name)
    return next((build for build in builds if [p.type for p in build.parameters] == types), kernel)


def _find_kernel(name: str, launch: Launch, compiled: CompiledSource, by_name: Mapping[str, Kernel]) -> Kernel:
    if launch.kernel:
        symbol = compiled.symbols[launch.kernel]
        if (kernel := next((k for k in compiled.cubin.kernels if k.symbol == symbol), None)) is None:
            kernels = ", ".join(map(str, compiled.cubin.kernels)) or "none"
            problem = f"{launch.kernel!r} is not a kernel"
            raise LaunchSpecError(problem, kernel=name, field="Launch.kernel", hint=f"The kernels are: {kernels}")
        return kernel
    if name in by_name:
        return by_name[name]
    templates = {c.name.rpartition("::")[2]: c.name for c in compiled.candidates if c.is_template}
    if name in templates:
        raise LaunchSpecError(
            f"{templates[name]!r} is a template that is not instantiated",
            kernel=name,
            hint=Words("Choose an instantiation: ", instantiation(name, templates[name])),
        )
    if overloads := [k for k in compiled.cubin.kernels if re.split("[<(]", k.name)[0].rpartition("::")[2] == name]:
        types = ", ".join(p.type for p in overloads[0].parameters)
        raise LaunchSpecError(
            f"there are {len(overloads)} kernels with the name {name!r}",
            kernel=name,
            field="functions",
            hint=f'Choose one, Launch(kernel="{overloads[0].name}({types})"), of: {"; ".join(map(str, overloads))}',
        )
    suggestion = nearest_name(name, by_name)
    hint = f"Did you mean {suggestion!r}? " if suggestion else ""
    kernels = ", ".join(by_name) or "none"
    raise LaunchSpecError(f"there is no kernel {name!r}", field="functions", hint=f"{hint}The kernels are: {kernels}")


def instantiation(name: str, template: str) -> Argument:
    """Return the argument that exports an instantiation of a template."""
    python = f'functions={{"{name}": Launch(kernel="{template}<…>")}}'
    return Argument("instantiation", (name, template), python=python)


def check_has_kernels(compiled: CompiledSource) -> None:
    """Raise LaunchSpecError if a source has no kernel, unless it has device variables and no template of a kernel."""
    templates = [candidate.name for candidate in compiled.candidates if candidate.is_template]
    if compiled.cubin.kernels or (compiled.cubin.variables and not templates):
        return
    if templates:
        hint = Words(f"Instantiate one of the templates ({', '.join(templates)}): ", instantiation("f", templates[0]))
        raise LaunchSpecError("the source has no kernel but templates", field="functions", hint=hint)
    hint = Words(
        "Write a __global__ function. For C++ of your own, name its functions in ",
        *(Argument("functions"), ", "),
        *(Argument("host kind", python="export them with TVM_FFI_DLL_EXPORT_TYPED_FUNC, or pass kind='host'"), "."),
    )
    raise LaunchSpecError("the source has no kernel", field="functions", hint=hint)


def rename_parameters(name: str, kernel: Kernel, launch: Launch) -> Kernel:
    """Return the kernel with the parameter names of `Launch.params`, if there are any."""
    if launch.params is None:
        return kernel
    if len(launch.params) != len(kernel.parameters):
        count = len(launch.params)
        problem = f"has {count} name{'' if count == 1 else 's'}, but {kernel} has {len(kernel.parameters)} parameters"
        raise LaunchSpecError(problem, kernel=name, field="params")
    pairs = zip(kernel.parameters, launch.params, strict=True)
    return kernel._replace(parameters=tuple(parameter._replace(name=new_name) for parameter, new_name in pairs))


def with_tensors(name: str, kernel: Kernel, launch: Launch) -> Kernel:
    """Return the kernel with a tensor in the place of each tensor map whose tensor is no other parameter.

    A pointer whose type tells no dtype, such as `void*`, gets the dtype of its map.
    """
    for field, tma in launch.tensor_maps:
        by_name = {parameter.name: parameter for parameter in kernel.parameters}
        parameter, tensor = by_name.get(field), by_name.get(tma.tensor)
        if parameter is None or parameter.kind == "pointer" or "CUtensorMap" not in parameter.type:
            problem = f"{field!r} is not a const __grid_constant__ CUtensorMap of {kernel}"
            raise LaunchSpecError(problem, kernel=name, field="tma")
        dtype = (tensor and tensor.dtype) or tma.dtype
        is_pointer = tensor is None or tensor.kind == "pointer"
        if not is_pointer or dtype not in DTYPES or tma.dtype not in (None, dtype):
            problem = f"the map needs a pointer, or a dtype of {', '.join(DTYPES)}; {tma.tensor!r} has {dtype}"
            raise LaunchSpecError(problem, kernel=name, field=f"tma[{field!r}]")
        pointer = f"{'' if tma.writes else 'const '}{CPP_TYPES[dtype]}*"
        passed = tensor or parameter._replace(name=tma.tensor, type=pointer, kind="pointer", layout="")
        replaced = tensor or parameter
        parameters = (passed._replace(dtype=dtype) if p is replaced else p for p in kernel.parameters)
        kernel = kernel._replace(parameters=tuple(parameters))
    return kernel


# ---- names --------------------------------------------------------------------------------------------------------


def choose_export_names(kernels: Sequence[Kernel]) -> dict[str, Kernel]:
    """Return the kernels by export name. Each name is a unique C identifier, as short as possible.

    A kernel is exported under its unqualified name. If several kernels share this name, namespaces are added, then
    template arguments, and finally parameter types. In a very long name, a hash replaces the end.

    Example:
        >>> list(choose_export_names(cubin.kernels))  # ns::scale<float, 4> and ns::scale<int, 4>
        ['ns__scale__float_4', 'ns__scale__int_4']
    """
    forms = [_name_forms(kernel) for kernel in kernels]
    names = [form[0] for form in forms]
    for longer in (1, 2, 3):
        counts = Counter(names)
        names = [form[longer] if counts[name] > 1 else name for name, form in zip(names, forms, strict=True)]
    exports: dict[str, Kernel] = {}
    for name, kernel in zip(names, kernels, strict=True):
        exports[make_unique_name(_truncate(name), exports)] = kernel
    return exports


def _name_forms(kernel: Kernel) -> tuple[str, str, str, str]:
    """Return a kernel's name alone, with its namespaces, also with its template arguments, and also with its types."""
    name, _, arguments = kernel.name.partition("<")
    parts = [*map(_identifier, name.split("::"))]
    instance = [*parts, _words(arguments.removesuffix(">"))] if arguments else parts
    types = [parameter.type for parameter in kernel.parameters] or ["void"]
    return parts[-1], "__".join(parts), "__".join(instance), "__".join([*instance, *map(_words, types)])


def _words(text: str) -> str:
    """Return C++ text as a part of an identifier: `const_float_ptr` for `const float*`."""
    for symbol, word in (("*", " ptr "), ("&", " ref "), ("-", " minus ")):
        text = text.replace(symbol, word)
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "_"


def _identifier(name: str) -> str:
    """Replace the characters that a C identifier cannot contain, such as `é` and `$`."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain and not plain[0].isdigit() else f"_{plain}"


def _truncate(name: str) -> str:
    """Replace the end of a very long name by a hash of the whole name."""
    if len(name) <= _MAX_LENGTH:
        return name
    return f"{name[: _MAX_LENGTH - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def make_unique_name(name: str, used: Container[str]) -> str:
    """Return the name. Append a number if the name is already used."""
    number, unique = 2, name
    while unique in used:
        unique = f"{name}_{number}"
        number += 1
    return unique


# ---- kernels without types -----------------------------------------------------------------------------------------


def check_is_typed(kernel: Kernel) -> None:
    """Raise SignatureError if the types of a kernel's parameters are unknown. The error asks for `signature=`."""
    if any(parameter.kind == "bits" for parameter in kernel.parameters):
        name, length = shorten(kernel.name), len(kernel.symbol)
        too_long = f" of {length:,} characters, which is too long to be read," if length > 1024 else ""
        raise SignatureError(
            f"kernel {name!r}: the types of its parameters are unknown: neither the compiler nor its symbol{too_long} "
            "tells them\n"
            f"    The parameters in the cubin have {list_sizes(kernel.parameters)} bytes.\n"
            f'    Declare them: Launch(kernel="{name}", signature="(const float* x, int n)").'
        )


def list_sizes(parameters: Sequence[Parameter]) -> str:
    """Return the sizes of parameters in bytes, as text for a message."""
    shown = ", ".join(str(parameter.size) for parameter in parameters[:32]) or "no"
    return shown + (f", … ({len(parameters)} in all)" if len(parameters) > 32 else "")


# ---- several architectures ----------------------------------------------------------------------------------------


def check_layouts(compiled: Sequence[CompiledSource]) -> None:
    """Raise LaunchSpecError if kernels differ between architectures. The same C++ has to launch them all."""
    first, *others = (source.cubin for source in compiled)
    for other in others:
        layouts, other_layouts = Counter(_layouts(first)), Counter(_layouts(other))
        if differing := [*(layouts - other_layouts), *(other_layouts - layouts)]:
            raise LaunchSpecError(
                f"kernel {differing[0][0]!r} differs between {first.arch} and {other.arch}, or is missing",
                hint="Make one module for each architecture, or declare the same kernels for all of them.",
            )


def _layouts(cubin: Cubin) -> Iterator[tuple[str, tuple[tuple[object, ...], ...]]]:
    """Yield the names and parameters of a cubin's kernels, without the kinds and offsets of the parameters.

    Compilers may disagree on whether an enum is a signed integer. The driver
    itself puts each parameter at its offset. These depend on the architecture if a parameter is aligned to 128 bytes.
    """
    return ((k.name, tuple((p.type, p.size, p.alignment) for p in k.parameters)) for k in cubin.kernels)
