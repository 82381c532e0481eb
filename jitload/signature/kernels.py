"""The kernels of a cubin with the types and names of their parameters.

Types come from the compiler, names from the source, and sizes from the cubin. They are checked against each other
and against hand-written signatures.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType

from jitload.candidate import Candidate
from jitload.cpptext.reading import SourceReading
from jitload.errors import SignatureError
from jitload.model import Kernel, Parameter, untyped_parameters
from jitload.request.kind import unqualified
from jitload.signature.declared import check_agrees, parse_signature, shorten
from jitload.signature.demangle import read_probe, read_symbol
from jitload.signature.exports import choose_export_names, list_sizes
from jitload.signature.layouts import Layout, describe_layouts
from jitload.signature.types import describe_type, find_undeclared_name, readable_type, resolve_aliases


def known_candidates(reading: SourceReading, kernels: Sequence[Kernel]) -> tuple[Candidate, ...]:
    """Return the candidates of a source. If a cubin has no kernel, or one of another name, add those in headers."""
    names = {unqualified(candidate.name) for candidate in reading.candidates}
    if kernels and all(unqualified(read_symbol(kernel.symbol, "")[0]) in names for kernel in kernels):
        return reading.candidates
    return (*reading.candidates, *reading.header_candidates)


def read_kernels(
    kernels: Sequence[Kernel],
    lowered: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    candidates: Sequence[Candidate] = (),
    layouts: Sequence[Layout] = (),
) -> tuple[Kernel, ...]:
    """Return the kernels of a cubin with the types and names of their parameters.

    The types come from the kernel's probe: a template instance whose mangled ("lowered") name contains the types. For a
    kernel without a probe, the types come from the kernel's own symbol. If the symbol has no types either, only their
    sizes are known.

    Args:
        kernels: The kernels as the cubin's ELF file describes them.
        lowered: A (symbol, probe) pair for each kernel expression: the mangled names of the kernel and of its probe.
            The probe is "" if the compiler rejected it.
        candidates: The functions in the source that look like kernels.
        layouts: The members of structures.

    Returns:
        The kernels in the order of the source. Kernels that are not in the source come last.

    Raises:
        SignatureError: The types of a kernel's parameters disagree with the cubin.
    """
    expressions = {symbol: (expression, probe) for expression, (symbol, probe) in lowered.items()}
    by_name: dict[str, list[tuple[int, Candidate]]] = {}
    for number, candidate in enumerate(candidates):
        by_name.setdefault(unqualified(candidate.name), []).append((number, candidate))
    pairs = [_read_kernel(k, *expressions.get(k.symbol, ("", "")), by_name) for k in kernels]
    texts = describe_layouts(layouts)
    return tuple(_with_layouts(kernel, texts) for _, kernel in sorted(pairs, key=lambda pair: pair[0]))


def _with_layouts(kernel: Kernel, layouts: Mapping[str, str]) -> Kernel:
    """Return the kernel with the layouts of its structure parameters."""
    parameters = (
        p._replace(layout=layouts.get(p.type.removeprefix("const ").rstrip("&"), p.layout)) if p.kind == "struct" else p
        for p in kernel.parameters
    )
    return kernel._replace(parameters=tuple(parameters))


def _read_kernel(
    kernel: Kernel, expression: str, probe: str, by_name: Mapping[str, Sequence[tuple[int, Candidate]]]
) -> tuple[int, Kernel]:
    """Return a kernel's position in the source, and the kernel. Kernels that are not in the source come last."""
    name, symbol_types = read_symbol(kernel.symbol, expression)
    types, promoted = read_probe(probe) if probe else (symbol_types, symbol_types)
    if types is None or promoted is None:
        return sys.maxsize, kernel._replace(name=name)
    source_order = sys.maxsize
    parameter_names: tuple[str, ...] = ()
    for name_in_source in (name, expression):
        if best := _best_candidate(name_in_source, types, by_name.get(unqualified(name_in_source), ())):
            source_order, candidate = best
            parameter_names = _expand_pack(candidate, len(types))
            break
    parameters = tuple(map(describe_type, types, promoted))
    return source_order, _typed_kernel(kernel._replace(name=name), parameters, parameter_names)


def with_signatures(
    kernels: Sequence[Kernel], symbols: Mapping[str, str], signatures: Sequence[tuple[str, str]]
) -> tuple[Kernel, ...]:
    """Return kernels with the names in hand-written signatures. The types are used only if nothing else tells them.

    A signature that fits no kernel is skipped. Later, `choose_exports` raises an error that lists the kernels.

    Args:
        kernels: The kernels.
        symbols: The symbols of the kernels in `Launch` records.
        signatures: (kernel, text) pairs. The kernel is that of a `Launch` record, or an exported name.

    Raises:
        SignatureError: A signature is malformed, or disagrees with the types of a kernel or their sizes.
    """
    by_name = {name: kernel.symbol for name, kernel in choose_export_names(kernels).items()} if signatures else {}
    result = {kernel.symbol: kernel for kernel in kernels}
    parsed: dict[str, tuple[tuple[str, str], ...]] = {}
    for name, text in signatures:
        kernel = result.get(symbols.get(name) or by_name.get(name, ""))
        if kernel is None:
            continue
        written = parse_signature(text, name, (kernel.name, kernel.symbol))
        if parsed.setdefault(kernel.symbol, written) != written:
            raise SignatureError(f"kernel {name!r} has two signatures\n    {text}\n    Give each kernel one.")
        types, names = [type_ for type_, _ in written], [name for _, name in written]
        if any(parameter.kind == "bits" for parameter in kernel.parameters):
            result[kernel.symbol] = make_typed_kernel(kernel, types, names)
        else:
            check_agrees(types, kernel.parameters, kernel.name)
            result[kernel.symbol] = kernel._replace(parameters=_with_names(kernel.parameters, names))
    return tuple(result.values())


def find_expressions_to_probe(kernels: Sequence[Kernel], lowered: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return expressions for the kernels whose parameter types can only be found by compiling again, with probes.

    A probe is a template instance whose mangled name contains a kernel's types. It is needed for `extern "C"` kernels,
    and for a parameter whose type may be an enum, a pointer to an enum, or an alias in a template. A kernel that had a
    probe in the first compilation is left out, whether or not the compiler accepted the probe.
    """
    tried = {symbol for symbol, _ in lowered.values()}
    expressions = (_probed_expression(kernel) for kernel in kernels if kernel.symbol not in tried)
    return tuple(filter(None, expressions))


def make_typed_kernel(kernel: Kernel, types: Sequence[str], names: Sequence[str] = ()) -> Kernel:
    """Return a kernel of a cubin with the given types and names of its parameters.

    The types are C++ text, such as `const float*`.

    Raises:
        SignatureError: The number of types, or their sizes, disagree with the cubin.
    """
    return _typed_kernel(kernel, tuple(map(describe_type, map(resolve_aliases, types))), names)


def _best_candidate(
    name: str, types: Sequence[str], candidates: Sequence[tuple[int, Candidate]]
) -> tuple[int, Candidate] | None:
    """Return the function in the source, with its number, that fits a kernel's name and types best.

    Return None if no function fits, or if two fit equally well.
    """
    ranked = [(_similarity(c, name, types), number, c) for number, c in candidates if _accepts(c, len(types))]
    ranked.sort(key=itemgetter(0), reverse=True)
    is_clear = len(ranked) == 1 or (len(ranked) > 1 and ranked[0][0] > ranked[1][0])
    return ranked[0][1:] if is_clear else None


def _typed_kernel(kernel: Kernel, types: Sequence[Parameter], names: Sequence[str]) -> Kernel:
    """Return a kernel with these parameters, which need no names, at the offsets and of the sizes in the cubin."""
    slots, count = kernel.parameters, len(types)
    typed = kernel._replace(parameters=_with_names(types, names))
    if len(slots) != count:
        raise SignatureError(
            f"kernel {shorten(kernel.name)!r}: {count} parameter{'' if count == 1 else 's'} in its signature, "
            f"but {len(slots)} in the cubin\n"
            f"    void {typed}\n"
            f"    The parameters in the cubin have {list_sizes(slots)} bytes."
        )
    for index, (parameter, slot) in enumerate(zip(typed.parameters, slots, strict=True)):
        if parameter.size not in (0, slot.size):
            before = "".join(f"{p.type} {p.name}, " for p in typed.parameters[:index])
            raise SignatureError(
                f"kernel {shorten(kernel.name)!r}, parameter {index + 1}: {parameter.type!r} has {parameter.size} "
                f"bytes, but the cubin's parameter has {slot.size}\n"
                f"    void {typed}\n"
                f"{' ' * len(f'    void {kernel.name}({before}')}{'~' * len(parameter.type)}^\n"
                "    Write the type that the kernel was compiled with."
            )
    pairs = zip(typed.parameters, slots, strict=True)
    return typed._replace(parameters=tuple(p._replace(size=slot.size, offset=slot.offset) for p, slot in pairs))


def _with_names(parameters: Sequence[Parameter], names: Sequence[str]) -> tuple[Parameter, ...]:
    """Return parameters with unique names. A name that is not an ASCII identifier becomes `arg0`, for example."""
    named: dict[str, Parameter] = {}
    for index, parameter in enumerate(parameters):
        name = names[index] if index < len(names) else ""
        name = name if name.isidentifier() and name.isascii() else f"arg{index}"
        while name in named:
            name += "_"
        named[name] = parameter._replace(name=name)
    return tuple(named.values())


def _probed_expression(kernel: Kernel) -> str:
    """Return an expression for a kernel whose types need a probe, or "" if a probe is unnecessary or impossible."""
    name, types = read_symbol(kernel.symbol, "")
    if types is None:
        return name if name.isidentifier() and not kernel.symbol.startswith("_Z") else ""
    if len(types) != len(kernel.parameters) or not any(map(_may_need_probe, types, kernel.parameters)):
        return ""
    return f"static_cast<void(*)({', '.join(map(readable_type, types))})>({name})"


def _may_need_probe(type_: str, slot: Parameter) -> bool:
    """Return whether the type may be an enum, a pointer to an enum, or an alias that is a member of a template."""
    undeclared = find_undeclared_name(type_)
    kind = describe_type(type_).kind
    may_be_enum = kind == "pointer" or (kind == "struct" and slot.size in (1, 2, 4, 8))
    return undeclared is not None and (may_be_enum or ">::" in undeclared)


def _accepts(candidate: Candidate, count: int) -> bool:
    """Return whether a function in the source, with its parameter pack expanded, can have `count` parameters."""
    if candidate.types and candidate.types[-1].endswith("..."):
        return count >= len(candidate.types) - 1
    return count == len(candidate.types)


def _similarity(candidate: Candidate, name: str, types: Sequence[str]) -> tuple[bool, bool, bool, int]:
    written = [_without_const(readable_type(resolve_aliases(type_))) for type_ in candidate.types]
    compiled = [readable_type(type_) for type_ in types]
    return (
        candidate.name == name,
        candidate.name.partition("<")[0] == name.partition("<")[0],
        candidate.is_template == ("<" in name),
        sum(left == right for left, right in zip(written, compiled, strict=False)),
    )


def _expand_pack(candidate: Candidate, count: int) -> tuple[str, ...]:
    """Return a function's parameter names, with `rest0`, `rest1`, … for the members of a pack `rest`."""
    if not candidate.types or not candidate.types[-1].endswith("..."):
        return candidate.parameters
    *fixed, pack = candidate.parameters
    return (*fixed, *(f"{pack}{index}" if pack else "" for index in range(count - len(fixed))))


def _without_const(type_: str) -> str:
    return type_ if "*" in type_ or "&" in type_ else type_.removeprefix("const ")


def packed_parameters(sizes: Sequence[int], alignments: Sequence[int]) -> tuple[Parameter, ...]:
    """Return parameters without types that are stored in order, each at its alignment, as on a GPU."""
    slots, end = [], 0
    for size, alignment in zip(sizes, alignments, strict=True):
        offset = -(-end // alignment) * alignment
        slots.append((offset, size))
        end = offset + size
    return untyped_parameters(slots)
