"""The functions of a library: which kernel is exported, under which name and with which launch."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from jitload.errors import LaunchSpecError, nearest_name
from jitload.launch import Launch
from jitload.model import CompiledSource, Cubin, Kernel, Parameter
from jitload.signature.declared import check_is_typed

_MAX_LENGTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One function of a library: its name, its kernel, how the kernel is launched, and its docstring.

    `builds` is the kernel as each architecture has it, where there are several.
    """

    name: str
    kernel: Kernel
    launch: Launch
    doc: str
    builds: tuple[tuple[str, Kernel], ...] = ()

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The parameters a caller gives, in order."""
        return tuple(p for p in self.kernel.parameters if p.name not in self.launch.args)

    @property
    def signature(self) -> str:
        """The C++ text of what a caller gives, `add_one(const float* x, float* y)`."""
        return f"{self.name}({', '.join(f'{p.type} {p.name}' for p in self.arguments)})"


def choose_exports(
    functions: tuple[tuple[str, Launch], ...] | None, compiled: CompiledSource, others: Sequence[CompiledSource] = ()
) -> tuple[Export, ...]:
    """Return the functions of a library: every kernel, or those that `functions` names.

    Args:
        functions: Names and launches.
        compiled: The kernels of the architecture that the library shows.
        others: Those of its other ones.

    Raises:
        LaunchSpecError: A name fits no kernel.
        SignatureError: The types of a kernel's parameters are unknown.
    """
    by_name = export_names(compiled.cubin.kernels)
    docs = {candidate.name: candidate.doc for candidate in compiled.candidates}
    if functions is None:
        if not by_name and not compiled.cubin.variables:
            raise _no_kernels(compiled)
        functions = tuple((name, Launch()) for name in by_name)
    exports = []
    for name, launch in functions:
        kernel = _kernel_for(name, launch, compiled, by_name)
        check_is_typed(kernel)
        doc = launch.doc if launch.doc is not None else docs.get(re.split("[<(]", kernel.name)[0], "")
        builds = tuple((one.cubin.arch, _same_kernel(kernel, one.cubin)) for one in (compiled, *others) if others)
        exports.append(Export(name=name, kernel=_named(name, kernel, launch), launch=launch, doc=doc, builds=builds))
    return tuple(exports)


def _same_kernel(kernel: Kernel, cubin: Cubin) -> Kernel:
    """Return the kernel as another architecture has it; what those take was compared when they were compiled."""
    of_name = [one for one in cubin.kernels if one.name == kernel.name]
    types = [parameter.type for parameter in kernel.parameters]
    return next((one for one in of_name if [p.type for p in one.parameters] == types), kernel)


def _kernel_for(name: str, launch: Launch, compiled: CompiledSource, by_name: Mapping[str, Kernel]) -> Kernel:
    if launch.kernel:
        symbol = compiled.symbols[launch.kernel]
        if (kernel := next((k for k in compiled.cubin.kernels if k.symbol == symbol), None)) is None:
            known = ", ".join(map(str, compiled.cubin.kernels)) or "none"
            problem = f"{launch.kernel!r} is no kernel"
            raise LaunchSpecError(problem, kernel=name, field="Launch.kernel", hint=f"The kernels are: {known}")
        return kernel
    if name in by_name:
        return by_name[name]
    templates = {c.name.rpartition("::")[2]: c.name for c in compiled.candidates if c.is_template}
    if name in templates:
        raise LaunchSpecError(
            f"{templates[name]!r} is a template, and nothing instantiates it",
            kernel=name,
            hint=f'Say which instantiation: functions={{"{name}": Launch(kernel="{templates[name]}<…>")}}',
        )
    if overloads := [k for k in compiled.cubin.kernels if re.split("[<(]", k.name)[0].rpartition("::")[2] == name]:
        types = ", ".join(p.type for p in overloads[0].parameters)
        raise LaunchSpecError(
            f"{name!r} names {len(overloads)} kernels",
            kernel=name,
            field="functions",
            hint=f'Say which, Launch(kernel="{overloads[0].name}({types})"), of: {"; ".join(map(str, overloads))}',
        )
    near = nearest_name(name, by_name)
    hint = f"Did you mean {near!r}? " if near else ""
    known = ", ".join(by_name) or "none"
    raise LaunchSpecError(f"no kernel {name!r}", field="functions", hint=f"{hint}The kernels are: {known}")


def _no_kernels(compiled: CompiledSource) -> LaunchSpecError:
    templates = [candidate.name for candidate in compiled.candidates if candidate.is_template]
    hint = "Write a __global__ function."
    if templates:
        hint = f'It has templates ({", ".join(templates)}): functions={{"f": Launch(kernel="{templates[0]}<…>")}}'
    return LaunchSpecError("the source has no kernel", field="functions", hint=hint)


def _named(name: str, kernel: Kernel, launch: Launch) -> Kernel:
    """Return the kernel with the parameter names of `Launch.params`, where they are given."""
    if launch.params is None:
        return kernel
    if len(launch.params) != len(kernel.parameters):
        count = len(launch.params)
        problem = f"names {count} parameter{'' if count == 1 else 's'}, but {kernel} has {len(kernel.parameters)}"
        raise LaunchSpecError(problem, kernel=name, field="params")
    named = zip(kernel.parameters, launch.params, strict=True)
    return replace(kernel, parameters=tuple(replace(p, name=given) for p, given in named))


# ---- names --------------------------------------------------------------------------------------------------------


def export_names(kernels: Sequence[Kernel]) -> dict[str, Kernel]:
    """Choose a different C identifier for each kernel, as short as the others allow.

    A kernel goes by its unqualified name; where several share one, by the name with its namespaces; where they still
    do, with its template arguments, and at last with the types of its parameters; of what is longer than anybody types
    the end is replaced by a hash.

    Example:
        >>> list(export_names(cubin.kernels))  # ns::scale<float, 4> and ns::scale<int, 4>
        ['ns__scale__float_4', 'ns__scale__int_4']
    """
    names = [_unqualified(kernel) for kernel in kernels]
    for longer in (_qualified, _with_arguments, _with_types):
        names = _lengthen(names, kernels, longer)
    exports: dict[str, Kernel] = {}
    for name, kernel in zip(names, kernels, strict=True):
        exports[unused_name(_cut(name), exports)] = kernel
    return exports


def _lengthen(names: Sequence[str], kernels: Sequence[Kernel], longer: Callable[[Kernel], str]) -> list[str]:
    shared = Counter(names)
    return [longer(kernel) if shared[name] > 1 else name for name, kernel in zip(names, kernels, strict=True)]


def _unqualified(kernel: Kernel) -> str:
    return _identifier(kernel.name.partition("<")[0].rpartition("::")[2])


def _qualified(kernel: Kernel) -> str:
    return "__".join(map(_identifier, kernel.name.partition("<")[0].split("::")))


def _with_arguments(kernel: Kernel) -> str:
    _, bracket, arguments = kernel.name.partition("<")
    return _qualified(kernel) + (f"__{_words(arguments.removesuffix('>'))}" if bracket else "")


def _with_types(kernel: Kernel) -> str:
    types = [parameter.type for parameter in kernel.parameters] or ["void"]
    return "__".join([_with_arguments(kernel), *map(_words, types)])


def _words(text: str) -> str:
    """Spell C++ text in the letters of an identifier: `const float*` is `const_float_ptr`."""
    for mark, word in (("*", " ptr "), ("&", " ref "), ("-", " minus ")):
        text = text.replace(mark, word)
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "_"


def _identifier(name: str) -> str:
    """Replace what a C identifier cannot have: accents, `$`."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain and not plain[0].isdigit() else f"_{plain}"


def _cut(name: str) -> str:
    """Keep the start of a name of thousands of characters, and what tells it from others with that start."""
    if len(name) <= _MAX_LENGTH:
        return name
    return f"{name[: _MAX_LENGTH - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def unused_name(name: str, taken: Container[str]) -> str:
    """Return the name, with a number where it is taken."""
    number, unused = 2, name
    while unused in taken:
        unused = f"{name}_{number}"
        number += 1
    return unused
