"""Mangled type, parameter sizes and source text in, kernels with typed and named parameters out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitload.cxxtype import TypeFacts, describe_type, known_names, readable_type, resolve_aliases, unknown_name
from jitload.demangle import read_probe, read_symbol
from jitload.errors import SignatureError
from jitload.exports import export_names
from jitload.lexer import tokenize
from jitload.model import Candidate, Image, ImageKernel, Kernel, Parameter, ParameterSlot
from jitload.parameters import read_parameters
from jitload.probe import PROBE_HEADER, is_only_name_errors, kernel_expression, probe_expression, rejected_expressions

# The stage's whole face: what asks the compiler, what reads its answers, and what names the results.
__all__ = [
    "PROBE_HEADER",
    "export_names",
    "find_candidate",
    "is_only_name_errors",
    "kernel_expression",
    "parse_signature",
    "probe_expression",
    "read_kernels",
    "rejected_expressions",
    "typed_kernel",
    "unprobed_symbols",
]


def read_kernels(
    image: Image, lowered: Mapping[str, tuple[str, str]], candidates: Sequence[Candidate] = ()
) -> tuple[Kernel, ...]:
    """Give the kernels of an image their types and names.

    Types come from the probe's lowered name; without a probe from the kernel's own mangled symbol.

    Args:
        image: What the cubin says.
        lowered: Kernel expression to its symbol and the lowered name of its probe ("" where the probe was refused).
        candidates: What the source text shows.

    Returns:
        The kernels in the order of the source; those that the text does not show come last.

    Raises:
        SignatureError: A kernel has neither probe nor mangled symbol, or types and sizes disagree.
    """
    expressions = {symbol: (expression, probe) for expression, (symbol, probe) in lowered.items()}
    found: list[tuple[int, Kernel]] = []
    for image_kernel in image.kernels:
        expression, probe = expressions.get(image_kernel.symbol, ("", ""))
        name, own_types = read_symbol(image_kernel.symbol, expression)
        real, promoted = read_probe(probe) if probe else (own_types, own_types)
        if real is None or promoted is None:
            raise _untyped(image_kernel, name)
        candidate = find_candidate(name, real, candidates) or find_candidate(expression, real, candidates)
        names = _expand_pack(candidate, len(real)) if candidate else ()
        types = tuple(describe_type(*pair) for pair in zip(real, promoted, strict=True))
        place = candidates.index(candidate) if candidate else len(candidates)
        found.append((place, _join(image_kernel, _Heading(name, types, names))))
    return tuple(kernel for _, kernel in sorted(found, key=lambda pair: pair[0]))


def unprobed_symbols(image: Image, lowered: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return the kernel expressions worth one more compile: of kernels whose symbols do not tell their types.

    These are `extern "C"` kernels that no candidate named, and kernels that take by value a type of the user's that
    may be an enum. An expression may be refused in its turn; then there is nothing more to ask.
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


def parse_signature(text: str, kernel: str) -> tuple[tuple[str, str], ...]:
    """Read a hand-written signature into pairs of type and name.

    Args:
        text: The parameters, `(float* x, int n)`.
        kernel: The kernel's name, for messages.

    Raises:
        SignatureError: The text is no parameter list, or names a type that looks like a slip of the pen.

    Example:
        >>> parse_signature("(const float* x, int n)", "scale")
        (('const float*', 'x'), ('int', 'n'))
    """
    inner = text.strip()
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    tokens = [token for token in tokenize(inner) if token.kind != "comment"]
    if bad := next((t.text for t in tokens if t.text in ("{", "}", ";", "#") or t.kind == "text"), None):
        raise SignatureError(_signature_message(text, kernel, f"{bad!r} has no place in a parameter list"))
    if any(inner.count(opening) != inner.count(closing) for opening, closing in ("()", "[]", "<>")):
        raise SignatureError(_signature_message(text, kernel, "its brackets do not match"))
    parameters = read_parameters(tokens)
    for index, (type_, _) in enumerate(parameters):
        _check_written_type(type_, index, text, kernel)
    return parameters


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
        parts = [f"{facts.text} {name}".rstrip() for facts, name in zip(self.types, self._padded(), strict=True)]
        start = f"    void {self.name}(" + "".join(f"{part}, " for part in parts[:index])
        return f"    {self}\n{' ' * len(start)}{'~' * len(self.types[index].text)}^"

    def __str__(self) -> str:
        parts = [f"{facts.text} {name}".rstrip() for facts, name in zip(self.types, self._padded(), strict=True)]
        return f"void {self.name}({', '.join(parts)})"

    def _padded(self) -> tuple[str, ...]:
        return self.names if len(self.names) == len(self.types) else ("",) * len(self.types)


def _join(image_kernel: ImageKernel, heading: _Heading) -> Kernel:
    slots = image_kernel.slots
    if len(slots) != len(heading.types):
        raise SignatureError(
            f"kernel {heading.name!r}: {_count(len(heading.types))} in its signature, {len(slots)} in the cubin\n"
            f"    {heading}\n"
            f"    The cubin has parameters of {', '.join(str(slot.size) for slot in slots) or 'no'} bytes."
        )
    for index, (facts, slot) in enumerate(zip(heading.types, slots, strict=True)):
        if facts.size not in (None, slot.size):
            raise SignatureError(
                f"kernel {heading.name!r}, parameter {index + 1}: {facts.text!r} has {facts.size} bytes, "
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
        return name if name.isidentifier() else ""
    if len(types) != len(kernel.slots) or not any(map(_may_hide, types, kernel.slots)):
        return ""
    return f"static_cast<void(*)({', '.join(map(readable_type, types))})>({name})"


def _may_hide(type_: str, slot: ParameterSlot) -> bool:
    """Tell whether the type may be an enum, or a template's member type that stands for another one."""
    unknown = unknown_name(type_)
    is_enum_sized = describe_type(type_).kind == "struct" and slot.size in (1, 2, 4, 8)
    return unknown is not None and (is_enum_sized or ">::" in unknown)


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


def _check_written_type(type_: str, index: int, text: str, kernel: str) -> None:
    if not type_ or type_.endswith("..."):
        raise SignatureError(_signature_message(text, kernel, f"parameter {index + 1} has no type"))
    unknown = unknown_name(resolve_aliases(type_))
    if unknown is None:
        return
    import difflib  # for this message alone

    if alike := difflib.get_close_matches(unknown, known_names(), n=1, cutoff=0.75):
        problem = f"parameter {index + 1}: unknown type {unknown!r}, did you mean {alike[0]!r}?"
        hint = f"If it is a structure of yours, write 'struct {unknown}'."
        raise SignatureError(_signature_message(text, kernel, problem, hint))


def _signature_message(text: str, kernel: str, problem: str, hint: str = "") -> str:
    hint = hint or "Write it as in C++: '(const float* x, int n)'."
    return f"signature of kernel {kernel!r}: {problem}\n    {text}\n    {hint}"


def _untyped(kernel: ImageKernel, name: str) -> SignatureError:
    sizes = ", ".join(str(slot.size) for slot in kernel.slots) or "no"
    return SignatureError(
        f"kernel {name!r}: neither the compiler nor its symbol tells the types of its parameters\n"
        f"    The cubin has parameters of {sizes} bytes.\n"
        f'    Give them: Launch(kernel="{name}", signature="(const float* x, int n)").'
    )


def _count(number: int) -> str:
    return f"{number} parameter{'' if number == 1 else 's'}"
