"""The threads and iterations that reach a block, and the range of an integer in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import NamedTuple

from jitload.bounds.execution import Execution, Induction
from jitload.bounds.graph import Graph, Loop
from jitload.bounds.terms import ONE, ZERO, Polynomial, extreme, is_never_negative
from jitload.bounds.values import EXTENTS, Node

Conditions = frozenset[Polynomial]  # polynomials that must not be negative
_NONE: Conditions = frozenset()
_UNLIMITED = Polynomial.of("?")  # for the number of a loop's iterations
_MOST = 1 << 62  # larger numbers are not trusted, because terms are computed with 64 bits
_MOST_TERMS = 40


class Range(NamedTuple):
    """The smallest and the largest value of an integer.

    Attributes:
        low: The smallest value.
        high: The largest value.
        gap: All values differ from the smallest one by multiples of this.
        certain: The conditions for these ends to hold.
        exact: The conditions for each end to be the value of a thread, or None if this is not known.
        full: The conditions for each multiple of `gap` from `low` to `high` to be the value of a thread, or None.
        coordinates: The coordinates on which it depends.
        limited: The nodes in it that comparisons limit.
        pointer: The pointer to which it is an offset, or "".
    """

    low: Polynomial
    high: Polynomial
    gap: Polynomial = ZERO
    certain: Conditions = _NONE
    exact: Conditions | None = _NONE
    full: Conditions | None = _NONE
    coordinates: frozenset[str] = frozenset()
    limited: frozenset[Node] = frozenset()
    pointer: str = ""

    @property
    def is_bounded(self) -> bool:
        """Whether both ends are known at the launch."""
        return not _is_unlimited(self.low) and not _is_unlimited(self.high)

    def plus(self, other: Range) -> Range | None:
        """Return the range of a sum."""
        if self.pointer and other.pointer:
            return None
        exact, full = _united(self.exact, other.exact), _united(self.full, other.full)
        gap, reach = self.gap + other.gap, ZERO  # one of both is 0
        if self.coordinates and other.coordinates:
            gap, reach = _lattice(self, other)
        if self.coordinates & other.coordinates:
            exact = full = None
        return Range(
            *(self.low + other.low, self.high + other.high, gap),
            *(self.certain | other.certain, exact, None if full is None or _is_unlimited(reach) else full | {reach}),
            *(self.coordinates | other.coordinates, self.limited | other.limited, self.pointer or other.pointer),
        )

    def times(self, factor: Range) -> Range | None:
        """Return the range of a product with a number that is the same for all threads."""
        number = factor.low
        if self.pointer or factor.coordinates:
            return None
        is_negative = bool(number.terms) and max(number.terms.items(), key=lambda term: (len(term[0]), term))[1] < 0
        magnitude = -number if is_negative else number  # where its sign is not known, it is checked at the launch
        low, high = (self.high, self.low) if is_negative else (self.low, self.high)
        certain = self.certain | factor.certain | {magnitude}
        return self._replace(low=low * number, high=high * number, gap=self.gap * magnitude, certain=certain)


def _united(left: Conditions | None, right: Conditions | None) -> Conditions | None:
    return None if left is None or right is None else left | right


def _lattice(left: Range, right: Range) -> tuple[Polynomial, Polynomial]:
    """Return the gap of a sum, and what must not be negative for the sum to have all values with this gap."""
    for fine, coarse in ((left, right), (right, left)):
        unit = fine.gap.constant
        if unit and all(factor % unit == 0 for factor in coarse.gap.terms.values()) and fine.is_bounded:
            return fine.gap, fine.high - fine.low + fine.gap - coarse.gap
    return ONE, _UNLIMITED


class Region:
    """The threads and iterations of loops that reach a block, limited by comparisons.

    Attributes:
        limits: The ranges of nodes that comparisons limit.
        bounds: The comparisons of each of these nodes: whether it is not above a number, or not below it.
        loops: The headers of the loops around the block.
        certain: The conditions for `limits` to hold.
        facts: What is not negative if the block is reached.
        is_exact: Whether all threads within the limits reach the block.
    """

    def __init__(self, region: Region | None = None) -> None:
        self.limits: dict[Node, Range] = {**region.limits} if region else {}
        self.bounds: dict[Node, list[tuple[bool, Polynomial]]] = {**region.bounds} if region else {}
        self.loops: frozenset[str] = region.loops if region else frozenset()
        self.certain: Conditions = region.certain if region else _NONE
        self.facts: Conditions = region.facts if region else _NONE
        self.is_exact: bool = region.is_exact if region else True
        self._ranges: dict[Node, Range | None] = {}

    @property
    def active(self) -> Conditions:
        """The conditions for any thread to reach the block."""
        return self.facts | {range_.high - range_.low for range_ in self.limits.values()}

    def conditions_for(self, range_: Range) -> Conditions | None:
        """Return the conditions for threads in the region to have both ends of a range, or None if not known."""
        coordinates = [name for limit in self.limits.values() for name in limit.coordinates]
        is_exact = self.is_exact and len({*coordinates}) == len(coordinates)
        for node, limit in self.limits.items():
            is_exact &= limit.is_bounded and (node in range_.limited or not limit.coordinates & range_.coordinates)
        parts = [range_.exact, *(limit.exact for limit in self.limits.values())]
        return reduce(_united, parts) if is_exact else None

    # ---- ranges ----

    def range_of(self, node: Node) -> Range | None:
        """Return the range of a node in the region, or None if it is not known."""
        if node in self.limits:
            return self.limits[node]
        if node not in self._ranges:
            range_ = self._range_of(node)
            is_short = range_ is not None and len(range_.low.terms) + len(range_.high.terms) <= _MOST_TERMS
            self._ranges[node] = range_ if is_short else None
        return self._ranges[node]

    def _range_of(self, node: Node) -> Range | None:  # noqa: PLR0911  one for each kind
        match node.kind:
            case "known":
                return Range(node.value, node.value)
            case "pointer":
                return Range(ZERO, ZERO, pointer=node.value)
            case "coordinate":
                is_known = "." in node.value or node.value in self.loops
                coordinates = frozenset([node.value])
                return Range(ZERO, extent_of(node.value) - 1, ONE, coordinates=coordinates) if is_known else None
        if not node.inputs or node.kind == "merge":
            return None
        ranges = [range_ for value in node.inputs if (range_ := self.range_of(value))]
        if len(ranges) != len(node.inputs):
            return None
        first, last = ranges[0], ranges[-1]
        match node.kind:
            case "add":
                return first.plus(last)
            case "mul":
                return first.times(last) if first.coordinates else last.times(first)
            case "div":
                is_uniform = not first.coordinates and not first.pointer
                low = first.low // node.value
                return first._replace(low=low, high=low, certain=first.certain | {first.low}) if is_uniform else None
            case "fit":
                return within(first, *node.value)
        return first

    # ---- comparisons ----

    def compare(self, operator: str, left: Node, right: Node) -> bool:
        """Use a comparison that holds, and return whether this was possible."""
        if operator == "eq":
            is_limited = self.compare("le", left, right)
            return self.compare("ge", left, right) and is_limited
        if operator in ("gt", "ge"):
            left, right = right, left
        low, high = self.range_of(left), self.range_of(right)
        if not low or not high or low.pointer or high.pointer:
            return False
        if operator == "ne":  # of what is never negative, 0 is the smallest
            return low.low == high.high == ZERO and self.compare("gt", left, right)
        self.certain |= low.certain | high.certain
        strict = operator in ("lt", "gt")
        if not low.coordinates and not high.coordinates:
            self.facts |= {high.low - low.low - strict}
            return True
        if not high.coordinates:
            return self._limit(left, high.low - strict, is_upper=True)
        return not low.coordinates and self._limit(right, low.low + strict, is_upper=False)

    def _limit(self, node: Node, bound: Polynomial, *, is_upper: bool) -> bool:
        """Use that a node is not above or not below a bound, and return whether the ends stay those of threads."""
        node, is_upper, bound = self._isolate(node, bound, is_upper=is_upper)
        range_ = self.range_of(node)
        if not range_ or _is_unlimited(bound):
            return False
        self.bounds[node] = [*self.bounds.get(node, ()), (is_upper, bound)]
        low, high, unit, full = range_.low, range_.high, range_.gap.constant, range_.full
        if unit and not _is_unlimited(low):  # the end is the nearest multiple of the gap
            distance = bound - low
            bound = low + (distance // unit if is_upper else -(-distance // unit)) * unit
        else:
            full = None
        if is_upper:
            high = bound if _is_unlimited(high) else extreme("MIN", [bound, high])
        else:
            low = bound if _is_unlimited(low) else extreme("MAX", [bound, low])
        gap = ONE if full is None else range_.gap
        limited = frozenset([node])
        self.limits[node] = range_._replace(low=low, high=high, gap=gap, exact=full, full=full, limited=limited)
        self._ranges = {}
        return full is not None

    def _isolate(self, node: Node, bound: Polynomial, *, is_upper: bool) -> tuple[Node, bool, Polynomial]:
        """Isolate the part of a node that varies: return a comparison of it that is equivalent to that of the node."""
        while node.inputs:
            first, last = node.inputs[0], node.inputs[-1]
            factor = first.constant
            if node.kind in ("fit", "same"):
                node = first
            elif node.kind == "mul" and factor:
                bound, is_upper = (bound, is_upper) if factor > 0 else (-bound, not is_upper)
                node, bound = last, bound // abs(factor) if is_upper else -(-bound // abs(factor))
            elif node.kind == "add" and (first_is_uniform := self._is_uniform(first)) | self._is_uniform(last):
                uniform, node = (first, last) if first_is_uniform else (last, first)
                range_ = self.range_of(uniform)
                bound -= range_.low if range_ else 0
            else:
                break
        return node, is_upper, bound

    def _is_uniform(self, node: Node) -> bool:
        range_ = self.range_of(node)
        return range_ is not None and not range_.coordinates and not range_.pointer

    # ---- loops ----

    def at_loop(self, loop: Loop, execution: Execution) -> Region:
        """Return the region of the first block of a loop in this region.

        What the edge back compares holds in each iteration if it holds in the first one.
        """
        region = Region(self)
        region.loops |= {f"#{loop.header}"}
        comparisons, is_whole = execution.comparisons(loop.back[0])
        is_simple = is_whole and len(comparisons) == 1 and [edge.source for edge in loop.exits] == [loop.back[0].source]
        for operator, left, right in comparisons if len(loop.back) == 1 else ():
            sides = {"l": ((left, right, True), (right, left, False)), "g": ((left, right, False), (right, left, True))}
            for end, limit, is_upper in sides.get(operator[0], ()):
                induction = execution.inductions.get((loop.header, end.inputs[0] if end.kind == "fit" else end))
                limited, ends = Region(region), self.range_of(limit)
                if induction and ends and not ends.coordinates and not ends.pointer:
                    bound = ends.low + (operator in ("lt", "gt")) * (-1 if is_upper else 1)
                    limited.certain |= ends.certain
                    if limited._limit_induction(self, induction, end, bound, is_upper=is_upper):
                        limited.is_exact &= is_simple
                        return limited
        region.is_exact = False
        return region

    def _limit_induction(
        self, outer: Region, induction: Induction, end: Node, bound: Polynomial, *, is_upper: bool
    ) -> bool:
        """Limit an induction variable, and return whether the limit holds in all iterations."""
        start, step = outer.range_of(induction.start), outer.range_of(induction.step)
        if not start or not step or start.pointer:
            return False
        bound += step.low
        node, *first = outer._isolate(induction.start, bound, is_upper=is_upper)
        slack = bound - start.high if is_upper else start.low - bound
        known = [tuple(first)]
        if known[0] not in self.bounds.get(node, ()) and not any(
            is_never_negative(slack - fact) for fact in (ZERO, *outer.facts)
        ):
            return False
        if self.bounds.get(node) == known:  # this follows from the limit of the loop
            del self.bounds[node], self.limits[node]
        self.is_exact &= self._limit(induction.node, bound, is_upper=is_upper)
        range_ = self.range_of(end)
        self.certain |= start.certain | step.certain | (range_.certain if range_ else _NONE)
        return range_ is not None


def extent_of(coordinate: str) -> Polynomial:
    """Return the number of values of a coordinate, which is not limited for the iterations of a loop."""
    kind, _, axis = coordinate.partition(".")
    return Polynomial.of(f"{EXTENTS[kind]}.{axis}") if axis else _UNLIMITED


def within(range_: Range, low: int, high: int) -> Range | None:
    """Return the range of a number that is assumed to be between two others, or None if it never is."""
    conditions = {range_.low - max(low, -_MOST), -range_.high + min(high, _MOST)}
    is_possible = range_.is_bounded and not range_.pointer and all((c.constant or 0) >= 0 for c in conditions)
    return range_._replace(certain=range_.certain | conditions) if is_possible else None


def _is_unlimited(polynomial: Polynomial) -> bool:
    return any("?" in monomial for monomial in polynomial.terms)


def regions_of(graph: Graph, execution: Execution, blocks: Iterable[int]) -> dict[int, Region]:
    """Return the regions of blocks, and of those that dominate them."""
    needed = reduce(or_, (graph.dominators[block] for block in blocks), 0)
    entries: dict[int, Region] = {}  # without the iterations of a loop that begins there
    regions: dict[int, Region] = {}
    for block in range(len(graph.blocks)):
        if needed >> block & 1:
            entries[block] = _entry(graph, execution, block, entries, regions)
            loop = graph.loops.get(block)
            regions[block] = entries[block].at_loop(loop, execution) if loop else entries[block]
    return regions


def _entry(
    graph: Graph, execution: Execution, block: int, entries: Mapping[int, Region], regions: Mapping[int, Region]
) -> Region:
    """Return the region of a block: that of its immediate dominator, limited by the condition of the only edge."""
    if block == 0:
        return Region()
    parent = (graph.dominators[block] ^ 1 << block).bit_length() - 1
    left = [header for header, loop in graph.loops.items() if parent in loop.blocks and block not in loop.blocks]
    region = Region(entries[min(left)] if left else regions[parent])
    if not graph.followers[min([*left, parent])] >> block & 1:
        edges, is_whole = graph.incoming[block], False
        if not left and [edge.source for edge in edges] == [parent]:
            comparisons, is_whole = execution.comparisons(edges[0])
            used = [region.compare(*comparison) for comparison in comparisons]
            is_whole &= all(used)
        region.is_exact &= is_whole
    return region
