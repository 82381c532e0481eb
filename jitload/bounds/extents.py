"""What a launch of a kernel touches: the elements of each tensor, for people and for checks of calls."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

from jitload.bounds.execution import SHARED, Entry, Execution, Instruction, Loop, Path, PtxError, Value, within
from jitload.bounds.terms import COUNTER, EXTENTS, ONE, POINTER, ZERO, Polynomial, digits_of, with_minimum
from jitload.element_types import ELEMENT_TYPES
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import Op, ScopeEntry, compile_expression
from jitload.model import Parameter

_PLANNED = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z")  # as in the plan of a launch
_VARIABLE = re.compile(r"^_ZZ.*?E\d+(?=[a-zA-Z_]\w*$)|(?<=\w)(_\d+)+$")  # what is not the name of a local variable
_ACCESS = re.compile(r"(?:ld|st|atom|red|ldu)\.(?:.*\.)?[a-z]+(\d+)(?:x(\d))?")
_SPACES = {"global", "shared", "local", "const", "param"}


class Extent(NamedTuple):
    """What a launch touches of a tensor.

    Attributes:
        elements: How many elements the launch needs, as an expression of the parameters, `grid.x`, `block.x` and so on.
            None if this is not known.
        first: The first element that the launch touches, as such an expression.
        is_exact: Whether the launch touches the last of these elements, and the first one. Otherwise, it may touch
            fewer, for example if a value in memory decides.
        reason: Why `elements` is None.
        instruction: The PTX instruction whose address is not known.
        line: The file and the line of the instruction, `vec.cu:4`.
        unit: What is counted: `elements`, or `bytes` if the type of the elements is not known. For shared memory, also
            the size of an array: `of 1024 bytes of shared memory`.
        is_read: Whether the launch may read the tensor, and not only store to it.
    """

    elements: str | None = None
    first: str | None = None
    is_exact: bool = False
    reason: str = ""
    instruction: str = ""
    line: str = ""
    unit: str = "elements"
    is_read: bool = True

    def __str__(self) -> str:
        if self.elements is None:
            place = f", at {self.line}" if self.line else ""
            return f"unknown, because {self.reason}{place}: {self.instruction}"
        start = "" if self.first == "0" else f", from number {self.first} on"
        return f"{'' if self.is_exact else 'at most '}{self.elements} {self.unit}{start}"


class Extents(dict[str, Extent]):
    """What a launch touches of each tensor and array in shared memory, by the names of parameters and variables."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {extent}" for name, extent in self.items())


def read_extents(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> Extents:
    """Return what a launch touches of the tensor behind each pointer of a kernel, and of its shared memory."""
    accesses, entry = find_accesses(ptx, symbol, parameters)
    extents = Extents()
    for parameter in parameters:
        if parameter.kind == "pointer":
            row = ELEMENT_TYPES.get(parameter.dtype or "")
            own = accesses.pop(parameter.name)
            extents[parameter.name] = _touched(own, row.size, "elements") if row else _touched(own, 1, "bytes")
    for pointer, own in accesses.items():
        size, name = entry.shared[pointer.removeprefix(SHARED)], _VARIABLE.sub("", pointer.removeprefix(SHARED))
        unit = f"of {size} bytes of shared memory" if size else "bytes of dynamic shared memory"
        extents[name if name not in extents else pointer] = _touched(own, 1, unit)
    return extents


def _touched(accesses: Sequence[Access], size: int, unit: str) -> Extent:
    """Return what accesses touch, in units of a size, or in bytes if that does not fit."""
    is_read = any(access.is_read for access in accesses)
    for instruction, reason, *_ in accesses:
        if reason:
            line = instruction.location
            return Extent(reason=reason, instruction=str(instruction), line=line, unit=unit, is_read=is_read)
    starts, ends = _ends_of(accesses)
    if any(factor % size for end in starts + ends for _, factor in end.terms):
        return _touched(accesses, 1, "bytes")
    first, *others = [str(start // size) for start in starts] or ["0"]
    last, *more = [str(end // size) for end in ends] or ["0"]
    return Extent(
        f"max({', '.join((last, *more))})" if more else last,
        f"min({', '.join((first, *others))})" if others else first,
        is_exact=all(access.is_exact for access in accesses),
        unit=unit,
        is_read=is_read,
    )


def _ends_of(accesses: Sequence[Access]) -> tuple[list[Polynomial], list[Polynomial]]:
    """Return what may be the first byte of accesses whose range is known, and what may be the end of the last one."""
    none: tuple[Polynomial, ...] = ()
    starts = functools.reduce(with_minimum, (access.low for access in accesses), none)
    ends = functools.reduce(with_minimum, (-access.high - access.size for access in accesses), none)
    return [*starts], [-end for end in ends]


def bound_checks(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[tuple[Op, ...], ...]:
    """Return steps that fail if a thread is certain to access memory outside of a tensor, or of shared memory.

    There is a program for each pointer, which names the parameter by its number. In most calls, the end of the accesses
    shows that they are inside. Only if it does not, the steps find out whether the numbers fit their registers, whether
    a thread makes the accesses, and where exactly they are.
    """
    accesses, entry = find_accesses(ptx, symbol, parameters)
    names = [parameter.name for parameter in parameters]
    checks = []
    for pointer, own in accesses.items():
        certain = [access for access in own if any(each.is_exact for each in (access, *access.unlimited))]
        groups: dict[frozenset[Polynomial], list[Access]] = {}
        for access in (each for a in certain for each in (a, *a.unlimited) if each.is_exact):
            groups.setdefault(frozenset(access.conditions), []).append(access)
        parameter = names.index(pointer) if pointer in names else -1
        with contextlib.suppress(LaunchSpecError):  # a number that does not fit 64 bits
            size = entry.shared.get(pointer.removeprefix(SHARED), 0)
            steps = [op for group in groups.values() for op in _check(group, names, parameter, size)]
            starts, ends = _ends_of(certain)
            if steps and parameter >= 0 and all(start >= 0 for start in starts):
                inside = [op for n, end in enumerate(ends) for op in (*_steps(end, names), *[Op("MAX")] * (n > 0))]
                steps = [*inside, Op("SKIP_IF_INSIDE", parameter, len(steps)), *steps]
            checks.append((*steps,))
    return tuple(filter(None, checks))


def _check(group: Sequence[Access], names: Sequence[str], parameter: int, size: int) -> list[Op]:
    """Return the steps that fail if the conditions of accesses hold, and one of their ends is outside.

    `size` is that of an array in shared memory, in bytes, or 0.
    """
    steps: list[Op] = []
    for start, end in itertools.product(*_ends_of(group)):
        if not (size and start >= 0 and -end >= -size):
            steps += [*_steps(start, names), *_steps(end, names), Op("OUTSIDE", parameter, size)]
    for condition in group[0].conditions if steps else ():
        steps = [*_steps(condition, names), Op("GE", 1, 0), Op("SKIP_IF_NOT", len(steps)), *steps]
    return steps


def _steps(term: Polynomial, names: Sequence[str]) -> tuple[Op, ...]:
    """Return the steps that compute a term. `names` are those of the kernel's parameters."""
    entries = {name: ScopeEntry(0, "int", computed=number) for number, name in enumerate(names)}
    entries |= {symbol: ScopeEntry(0, "int", planned=number) for number, symbol in enumerate(_PLANNED)}
    text = re.sub(r"[^\W\d]\w*(\.[xyz])?", lambda symbol: f"_{[*entries].index(symbol[0])}", str(term))
    text = re.sub(r"\b(\d+) \* (_\d+)", r"\2 * \1", text)  # the step of an operation has the constant on its right
    scope = {f"_{number}": entry for number, entry in enumerate(entries.values())}
    return compile_expression(text, scope, kernel="", field="bounds")


def separation_steps(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[Op, ...]:
    """Return steps that fail unless the threads of a launch on tensors that do not overlap are separate.

    No thread of such a launch accesses what another one writes, and all accesses are inside of tensors. Return no
    steps if the threads of no launch are known to be separate.
    """
    by_pointer, entry = find_accesses(ptx, symbol, parameters)
    names = [parameter.name for parameter in parameters]
    accesses = {name: [a for a in by_pointer[name] if not a.reason] for name in names if name in by_pointer}
    plain = {id(a.instruction) for own in accesses.values() for a in own if a.instruction.root in ("ld", "st")}
    others = [i for i in entry.instructions if id(i) not in plain and ".param" not in i.opcode]
    if any(i.root == "call" or "[" in str(i) for i in others):
        return ()
    conditions = {condition for own in accesses.values() for access in own for condition in access.conditions}
    steps: list[Op] = []
    with contextlib.suppress(LaunchSpecError):  # a number that does not fit 64 bits
        for pointer, own in accesses.items():
            if any(access.instruction.root == "st" for access in own):
                conditions |= {*_separate(own)}
            for start, end in itertools.product(*_ends_of(own)):
                steps += [*_steps(start, names), *_steps(end, names), Op("OUTSIDE", names.index(pointer))]
        conditions = {condition for condition in conditions if not condition >= 0}
        for condition in sorted(conditions, key=str):
            steps += [*_steps(condition, names), Op("GE", 1, 0), Op("REQUIRE")]
        if all(condition.constant is None for condition in conditions):
            return tuple(steps)
    return ()


def _separate(accesses: Sequence[Access]) -> Iterator[Polynomial]:
    """Yield what must not be negative so that no two threads access the same bytes by one pointer."""
    first = accesses[0].offset
    starts = [(access.offset - first).constant for access in accesses]
    if None in starts or not first.split()[1].keys() <= {*EXTENTS}:
        yield Polynomial.of(-1)
        return
    ends = [(start or 0) + access.size for start, access in zip(starts, accesses, strict=True)]
    reach = Polynomial.of(max(ends) - min(start or 0 for start in starts))
    for coordinate, worth, lesser in digits_of(first, reach):
        yield worth - lesser if worth.terms else -Polynomial.of(EXTENTS[coordinate]) + 1


# ---- the accesses of a kernel ---------------------------------------------------------------------------------------


class Access(NamedTuple):
    """An access to memory behind a pointer, in bytes from the pointer on."""

    instruction: Instruction
    reason: str = ""  # why nothing else is known
    size: int = 0  # the number of bytes of one access
    offset: Polynomial = ZERO  # the first byte
    low: Polynomial = ZERO  # the smallest offset
    high: Polynomial = ZERO  # the largest offset
    conditions: tuple[Polynomial, ...] = ()  # what must not be negative for all of this to hold
    is_exact: bool = False  # whether threads then access both ends; otherwise, they may access less
    unlimited: tuple[Access, ...] = ()  # the same, in launches in which the comparisons hold for all threads
    is_read: bool = True  # whether it may read, or pass the pointer on, and does not only store


def find_accesses(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[dict[str, list[Access]], Entry]:
    """Return the accesses of a kernel by the pointers of its parameters and by arrays in shared memory, and the kernel.

    The name of an array is `shared:` and its name in the PTX. If the PTX cannot be read, nothing is known of the
    pointers, and the kernel has no instructions.
    """
    pointers = [parameter for parameter in parameters if parameter.kind == "pointer"]
    try:
        execution = Execution(ptx, symbol, parameters)
    except PtxError as error:
        unknown = Access(Instruction("no instruction", ()), f"the PTX cannot be read ({error})")
        return {pointer.name: [unknown] for pointer in pointers}, Entry((), (), {}, {})
    copy_of_map = Access(Instruction("the copies of the TMA are not followed", ()), "it is a tensor map")
    accesses = {pointer.name: [copy_of_map] * pointer.is_tensor_map for pointer in pointers}
    region_of = functools.cache(Region)  # many accesses are at the end of one path
    for value, instruction, path in execution.addresses:
        is_read = instruction.root != "st" or path is None  # or else the pointer itself is stored
        for pointer in execution.pointers_in(value):
            try:
                access = copy(region_of(path)).access_at(value, instruction, pointer)
            except PtxError as error:
                access = Access(instruction, str(error))
            accesses.setdefault(pointer, []).append(access._replace(is_read=is_read))
    return accesses, execution.entry


class Region:
    """The threads and iterations of loops that reach an instruction, limited by comparisons."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            raise PtxError("the pointer is stored, chosen or passed on")
        self._conditions: tuple[Polynomial, ...] = ()  # what must not be negative, for all threads alike
        self._coordinates = {*EXTENTS}  # and the counters of loops
        self._facts: tuple[Polynomial, ...] = ()  # what is not negative, for the threads and iterations of this region
        self._is_exact = True  # whether all threads and iterations for which the facts hold reach the instruction
        for step in path:
            if isinstance(step, Loop):
                self._enter(step)
                continue
            predicate, is_true = step
            try:
                self._assume(predicate.assumed)
                for fact in predicate.facts[is_true]:
                    self._add(fact)
            except PtxError:
                self._is_exact = False

    def access_at(self, address: Value, instruction: Instruction, pointer: str) -> Access:
        """Return the access to an address. Raise PtxError if its range is not known."""
        opcode, space = instruction.opcode, "shared" if pointer.startswith(SHARED) else "global"
        match, vector = _ACCESS.fullmatch(opcode), re.search(r"\.v(\d)\.", opcode)
        if match is None or _SPACES & {*opcode.replace(":", ".").split(".")} - {space}:
            raise PtxError("jitload does not know the instruction")
        size = int(vector[1] if vector else 1) * int(match[1]) * int(match[2] or 1) // 8
        offset = address.term - Polynomial.of(f"{POINTER}{pointer}")
        self._assume(address.assumed | (within(offset, "s32") if space == "shared" else set()))
        access = Access(instruction, "", size, offset)
        limited = copy(self).with_range(access)
        facts, self._facts = self._facts, ()
        with contextlib.suppress(PtxError):
            self._assume(facts)
            return limited._replace(unlimited=(self.with_range(access),) if facts else ())
        return limited

    def with_range(self, access: Access) -> Access:
        """Return an access with its range in the region, and with the conditions for that."""
        low, high = self._least(access.offset, self._facts), -self._least(-access.offset, self._facts)
        is_exact = self._is_exact and self._has_ends(access.offset)
        return access._replace(low=low, high=high, is_exact=is_exact, conditions=self._conditions)

    def _enter(self, loop: Loop) -> None:
        """Use that a loop is executed. What its branch back compares holds if it holds in the first iteration."""
        self._coordinates.add(loop.counter)
        self._is_exact &= loop.exits == loop.back and len(loop.back) == 1
        predicate, is_true = loop.again
        for fact in predicate.facts[is_true] if len(loop.back) == 1 else ():
            step = fact.split()[1].get(loop.counter, ZERO)
            first = fact - step * Polynomial.of(loop.counter) - step
            if any(first >= known for known in (ZERO, *self._conditions, *self._facts)):
                self._add(fact - step)
                self._assume(predicate.assumed)
            else:
                self._is_exact = False

    def _add(self, fact: Polynomial) -> None:
        """Add the fact that a term is not negative."""
        rest, factors = fact.split()
        unit = math.gcd(*(number for factor in factors.values() for _, number in factor.terms)) or 1
        fact = (fact - rest) // unit + rest // unit
        if not factors:
            self._note(fact)
        elif factors.keys() <= self._coordinates and _pivot(fact):
            self._facts = with_minimum(self._facts, fact)
        else:
            self._is_exact = False

    def _assume(self, terms: Iterable[Polynomial]) -> None:
        """Require that terms are not negative for any thread."""
        for term in sorted(terms, key=str):
            least = self._least(term, self._facts)
            if (least.constant or 0) < 0:
                raise PtxError("its index may be too large for its type")
            self._note(least)

    def _note(self, *conditions: Polynomial) -> None:
        """Add conditions, of which calls check the last ones first."""
        for condition in conditions:
            if not condition >= 0:
                self._conditions = with_minimum(self._conditions, condition)

    def _least(self, term: Polynomial, facts: Sequence[Polynomial]) -> Polynomial:
        """Return the smallest value of a term for the threads and iterations for which facts hold.

        A factor whose sign is not known is required to be positive.
        """
        for fact in reversed(facts):
            multiple, rest = _divided(term, fact)
            if multiple.terms and multiple == multiple.magnitude:
                self._assume([multiple])
                term = rest
        least, factors = term.split()
        if not factors.keys() <= self._coordinates:
            raise PtxError("its index does not follow from threads, blocks, loops and parameters")
        for symbol, factor in factors.items():
            magnitude = factor.magnitude
            self._assume([magnitude])
            if magnitude != factor and symbol.startswith(COUNTER):
                raise PtxError("no comparison limits its index")
            least -= magnitude * (Polynomial.of(EXTENTS[symbol]) - 1) if magnitude != factor else ZERO
        return least

    def _has_ends(self, offset: Polynomial) -> bool:
        """Return whether threads have both ends of the range of an offset, with conditions for that."""
        for fact in self._facts:
            offset = _divided(offset, fact)[1]
        pairs = [*itertools.combinations((offset, *self._facts), 2)]
        opposite = [left + right for left, right in pairs if not (left + right).varying]
        others = [(left, right) for left, right in pairs if (left + right).varying]
        is_dense = all(reach >= worth for fact in self._facts for _, worth, reach in digits_of(fact, ONE))
        if not is_dense or any(not left.varying.isdisjoint(right.varying) for left, right in others):
            return False
        self._note(*opposite)
        for term in (term for fact in self._facts for term in (fact, -fact)):
            with contextlib.suppress(PtxError):  # a counter has no limit
                self._note(-self._least(term, ()))
        return True


def _divided(term: Polynomial, fact: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return which multiple of a fact is in a term, and the rest, which has no coordinate of the fact."""
    pivot = _pivot(fact)
    multiple = term.split()[1].get(pivot, ZERO) * fact.split()[1][pivot]
    rest = term - fact * multiple
    return (multiple, rest) if rest.varying.isdisjoint(fact.varying) else (ZERO, term)


def _pivot(fact: Polynomial) -> str:
    """Return a coordinate that has no factor in a fact except for 1 and -1, or "" if there is none."""
    _, factors = fact.split()
    return next((symbol for symbol in sorted(factors) if factors[symbol] in (ONE, -ONE)), "")
