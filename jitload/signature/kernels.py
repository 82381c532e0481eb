"""Mangled type, parameter sizes and source text in, kernels with typed and named parameters out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitload.errors import SignatureError
from jitload.model import Candidate, Image, ImageKernel, Kernel, Parameter, ParameterSlot
from jitload.signature.declared import list_sizes, parse_signature, shorten, untyped_error
from jitload.signature.demangle import is_refused, read_probe, read_symbol
from jitload.signature.exports import export_names
from jitload.signature.types import TypeFacts, describe_type, readable_type, resolve_aliases, unknown_name


def read_kernels(
    image: Image,
    lowered: Mapping[str, tuple[str, str]],
    candidates: Sequence[Candidate] = (),
    signatures: Sequence[tuple[str, str]] = (),
) -> tuple[Kernel, ...]:
    """Give the kernels of an image their types and names.

    Types come from a hand-written signature; without one from the probe's lowered name; without a probe from the
    kernel's own mangled symbol.

    Args:
        image: What the cubin says.
        lowered: Kernel expression to its symbol and the lowered name of its probe ("" where the probe was refused).
        candidates: What the source text shows.
        signatures: Hand-written signatures: kernel expression, or the name under which a kernel is exported, and text.

    Returns:
        The kernels in the order of the source; those that the text does not show come last.

    Raises:
        SignatureError: A kernel has neither signature, probe nor mangled symbol, or types and sizes disagree.
    """
    expressions = {symbol: (expression, probe) for expression, (symbol, probe) in lowered.items()}
    found = [
        _find(image_kernel, *expressions.get(image_kernel.symbol, ("", "")), candidates)
        for image_kernel in image.kernels
    ]
    found.sort(key=lambda one: one.place)
    told = _told(found, lowered, signatures) if signatures else {}
    return tuple(_typed(one, told.get(one.image_kernel.symbol)) for one in found)


@dataclass(frozen=True, slots=True)
class _Found:
    """A kernel of an image, its place in the source, and its heading; without one its types are unknown.

    `is_refused` says that the compiler told the types, but the demangler refuses the name that holds them.
    """

    image_kernel: ImageKernel
    name: str
    place: int
    heading: _Heading | None = None
    is_refused: bool = False


def _find(image_kernel: ImageKernel, expression: str, probe: str, candidates: Sequence[Candidate]) -> _Found:
    name, own_types = read_symbol(image_kernel.symbol, expression)
    real, promoted = read_probe(probe) if probe else (own_types, own_types)
    if real is None or promoted is None:
        return _Found(image_kernel, name, len(candidates), is_refused=is_refused(probe or image_kernel.symbol))
    candidate = find_candidate(name, real, candidates) or find_candidate(expression, real, candidates)
    names = _expand_pack(candidate, len(real)) if candidate else ()
    types = tuple(describe_type(*pair) for pair in zip(real, promoted, strict=True))
    place = candidates.index(candidate) if candidate else len(candidates)
    return _Found(image_kernel, name, place, _Heading(name, types, names))


def _told(
    found: Sequence[_Found], lowered: Mapping[str, tuple[str, str]], signatures: Sequence[tuple[str, str]]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the hand-written signatures by the symbols of their kernels.

    A name that no kernel has is left to whoever chooses the exports: the message for it lists them.
    """
    symbols = {name: kernel.symbol for name, kernel in export_names([_bare(one) for one in found]).items()}
    symbols |= {expression: symbol for expression, (symbol, _) in lowered.items()}
    told: dict[str, tuple[tuple[str, str], ...]] = {}
    for target, text in signatures:
        if target not in symbols:
            continue
        pairs = parse_signature(text, target)
        if told.setdefault(symbols[target], pairs) != pairs:
            raise SignatureError(f"kernel {target!r} has two signatures\n    {text}\n    Give each kernel one.")
    return told


def _bare(found: _Found) -> Kernel:
    """Return what a kernel's exported name depends on."""
    types = found.heading.types if found.heading else ()
    return Kernel(
        name=found.name,
        symbol=found.image_kernel.symbol,
        parameters=tuple(Parameter(name="", type=t.text, kind=t.kind, size=0, offset=0) for t in types),
        registers=0,
        shared_bytes=0,
        local_bytes=0,
        max_threads=0,
    )


def _typed(found: _Found, told: tuple[tuple[str, str], ...] | None) -> Kernel:
    if told is not None:
        return typed_kernel(found.image_kernel, [t for t, _ in told], [name for _, name in told], name=found.name)
    if found.heading is None:
        if found.is_refused:  # an error only if the kernel is exported: see check_is_typed
            return _join(found.image_kernel, _bits(found))
        raise untyped_error(found.image_kernel.slots, found.name, found.image_kernel.symbol)
    return _join(found.image_kernel, found.heading)


def told_kernels(image: Image) -> tuple[Kernel, ...]:
    """Return the kernels of an image that came without its source, typed as far as their symbols tell.

    A C++ symbol has its types in it; of an `extern "C"` kernel only the sizes are known.
    """
    found = (_find(image_kernel, "", "", ()) for image_kernel in image.kernels)
    return tuple(_join(one.image_kernel, one.heading or _bits(one)) for one in found)


def _bits(found: _Found) -> _Heading:
    slots = found.image_kernel.slots
    texts = (f"b{8 * slot.size}" if slot.size in (1, 2, 4, 8) else f"b8[{slot.size}]" for slot in slots)
    return _Heading(found.name, tuple(TypeFacts(text=text, kind="bits") for text in texts))


def unprobed_symbols(image: Image, lowered: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return the kernel expressions worth one more compile: of kernels whose symbols do not tell their types.

    These are `extern "C"` kernels that no candidate named, and kernels that take a type of the user's, or a pointer to
    one, that may be an enum. An expression may be refused in its turn; then there is nothing more to ask.
    """
    known = {symbol for symbol, probe in lowered.values() if probe}
    asked = {symbol for symbol, probe in lowered.values() if not probe}
    return tuple(
        expression
        for kernel in image.kernels
        if kernel.symbol not in known | asked and (expression := _worth_asking(kernel))
    )


def typed_kernel(
    image_kernel: ImageKernel, types: Sequence[str], names: Sequence[str] = (), *, name: str = ""
) -> Kernel:
    """Join the types that someone states, in C++'s words, with what the cubin says of the kernel.

    Args:
        image_kernel: The kernel in the cubin.
        types: The type of each parameter, `const float*`.
        names: The name of each, or none at all.
        name: The kernel's C++ name, by default that of its symbol.

    Raises:
        SignatureError: Number or sizes of the types disagree with the cubin.
    """
    facts = tuple(describe_type(resolve_aliases(type_)) for type_ in types)
    own_name = name or read_symbol(image_kernel.symbol, "")[0]
    return _join(image_kernel, _Heading(own_name, facts, tuple(names)))


def find_candidate(name: str, types: Sequence[str], candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the place in the source that shows this kernel, or None where none does or several might.

    Args:
        name: The kernel's C++ name.
        types: Its types, as the compiler tells them.
        candidates: The places to choose from.
    """
    named = [c for c in candidates if _unqualified(c.name) == _unqualified(name) and _takes(c, len(types))]
    ranked = sorted(named, key=lambda candidate: _likeness(candidate, name, types), reverse=True)
    if len(ranked) > 1 and _likeness(ranked[0], name, types) == _likeness(ranked[1], name, types):
        return None
    return ranked[0] if ranked else None


@dataclass(frozen=True, slots=True)
class _Heading:
    """A kernel's name with the types and the names of its parameters; names may be fewer."""

    name: str
    types: tuple[TypeFacts, ...]
    names: tuple[str, ...] = ()

    def underlined(self, index: int) -> str:
        """Write the heading as a line of C++ with the type at `index` underlined."""
        start = f"    void {self.name}(" + "".join(f"{part}, " for part in self._parts()[:index])
        return f"    {self}\n{' ' * len(start)}{'~' * len(self.types[index].text)}^"

    def __str__(self) -> str:
        return f"void {self.name}({', '.join(self._parts())})"

    def _parts(self) -> list[str]:
        names = self.names if len(self.names) == len(self.types) else ("",) * len(self.types)
        return [f"{facts.text} {name}".rstrip() for facts, name in zip(self.types, names, strict=True)]


def _join(image_kernel: ImageKernel, heading: _Heading) -> Kernel:
    slots = image_kernel.slots
    if len(slots) != len(heading.types):
        raise SignatureError(
            f"kernel {shorten(heading.name)!r}: {_count(len(heading.types))} in its signature, "
            f"{len(slots)} in the cubin\n"
            f"    {heading}\n"
            f"    The cubin has parameters of {list_sizes(slots)} bytes."
        )
    for index, (facts, slot) in enumerate(zip(heading.types, slots, strict=True)):
        if facts.size not in (None, slot.size):
            raise SignatureError(
                f"kernel {shorten(heading.name)!r}, parameter {index + 1}: {facts.text!r} has {facts.size} bytes, "
                f"and the cubin has {slot.size} there\n{heading.underlined(index)}\n"
                "    Give the type that the kernel was compiled with."
            )
    return Kernel(
        name=heading.name,
        symbol=image_kernel.symbol,
        parameters=tuple(
            Parameter(
                name=name,
                type=facts.text,
                kind=facts.kind,
                size=slot.size,
                offset=slot.offset,
                dtype=facts.dtype,
                alignment=facts.alignment,
            )
            for name, facts, slot in zip(_usable_names(heading), heading.types, slots, strict=True)
        ),
        registers=image_kernel.registers,
        shared_bytes=image_kernel.shared_bytes,
        local_bytes=image_kernel.local_bytes,
        max_threads=image_kernel.max_threads,
    )


def _usable_names(heading: _Heading) -> tuple[str, ...]:
    """Return a different name for each parameter: its own, or `arg0` where that is no plain identifier."""
    used: list[str] = []
    for index in range(len(heading.types)):
        name = heading.names[index] if index < len(heading.names) else ""
        name = name if name.isidentifier() and name.isascii() else f"arg{index}"
        while name in used:
            name += "_"
        used.append(name)
    return tuple(used)


def _worth_asking(kernel: ImageKernel) -> str:
    """Return the expression that asks for this kernel's types, or "" when its symbol tells them all."""
    name, types = read_symbol(kernel.symbol, "")
    if types is None:
        return name if name.isidentifier() and not is_refused(kernel.symbol) else ""
    if len(types) != len(kernel.slots) or not any(map(_may_hide, types, kernel.slots)):
        return ""
    return f"static_cast<void(*)({', '.join(map(readable_type, types))})>({name})"


def _may_hide(type_: str, slot: ParameterSlot) -> bool:
    """Tell whether the type may be an enum, or a template's member type that stands for another one."""
    unknown = unknown_name(type_)
    kind = describe_type(type_).kind
    may_be_enum = kind == "pointer" or (kind == "struct" and slot.size in (1, 2, 4, 8))
    return unknown is not None and (may_be_enum or ">::" in unknown)


def _takes(candidate: Candidate, count: int) -> bool:
    """Tell whether the text can take this many parameters, its parameter pack expanded."""
    if candidate.types and candidate.types[-1].endswith("..."):
        return count >= len(candidate.types) - 1
    return count == len(candidate.types)


def _likeness(candidate: Candidate, name: str, types: Sequence[str]) -> tuple[bool, bool, bool, int]:
    written = [_without_const(readable_type(resolve_aliases(type_))) for type_ in candidate.types]
    told = [readable_type(type_) for type_ in types]
    return (
        candidate.name == name,
        _without_arguments(candidate.name) == _without_arguments(name),
        candidate.is_template == ("<" in name),
        sum(one == other for one, other in zip(written, told, strict=False)),
    )


def _expand_pack(candidate: Candidate, count: int) -> tuple[str, ...]:
    """Name the members of a parameter pack `rest`: `rest0`, `rest1`."""
    if not candidate.types or not candidate.types[-1].endswith("..."):
        return candidate.parameters
    *fixed, pack = candidate.parameters
    return (*fixed, *(f"{pack}{index}" if pack else "" for index in range(count - len(fixed))))


def _without_const(type_: str) -> str:
    return type_ if "*" in type_ or "&" in type_ else type_.removeprefix("const ")


def _without_arguments(name: str) -> str:
    return name.partition("<")[0]


def _unqualified(name: str) -> str:
    return _without_arguments(name).rpartition("::")[2]


def _count(number: int) -> str:
    return f"{number} parameter{'' if number == 1 else 's'}"
