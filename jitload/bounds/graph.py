"""The control flow of a kernel: its blocks, the edges between them, its loops, and what leads to a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

from jitload.bounds.ptx import Entry, PtxError

_ENDS = ("ret", "exit", "trap")


class Edge(NamedTuple):
    """The edge from a block to another. `taken` tells on which value of the branch's guard; None if always."""

    source: int
    target: int
    taken: bool | None


class Loop(NamedTuple):
    """A loop: its first block, its blocks, the edges back to the first one, and those that leave the loop."""

    header: int
    blocks: frozenset[int]
    back: tuple[Edge, ...]
    exits: tuple[Edge, ...]


class Graph:
    """The blocks of a kernel that can be reached, each after those from which edges other than back edges lead to it.

    Attributes:
        blocks: The positions of each block's instructions. The last block is the exit, which has none.
        incoming: The edges to each block, without back edges.
        loops: The loops by their headers.
        dominators: For each block, as bits, the blocks through which each way to it leads, and itself.
        followers: For each block, as bits, the blocks to which it leads whatever the branches and loops after it do.
    """

    def __init__(self, entry: Entry) -> None:
        after = [n + 1 for n, i in enumerate(entry.instructions) if i.root in ("bra", "brx", *_ENDS)]
        starts = sorted({0, *entry.labels.values(), *after, len(entry.instructions)})
        blocks = [range(*ends) for ends in zip(starts, [*starts[1:], starts[-1]], strict=True)]
        targets = [[*_targets(entry, block, starts)] for block in blocks]
        order = _in_order(targets)
        number_of = {block: number for number, block in enumerate(order)}
        self.blocks = [blocks[block] for block in order]
        edges = [Edge(n, number_of[t], taken) for n, block in enumerate(order) for t, taken in targets[block]]
        self.incoming: list[list[Edge]] = [[] for _ in order]
        self._outgoing: list[list[Edge]] = [[] for _ in order]
        for edge in edges:
            self.incoming[edge.target].append(edge)
            self._outgoing[edge.source].append(edge)
        numbers = range(len(order))
        self.dominators = _on_all_ways(numbers, [[], *([e.source for e in edges] for edges in self.incoming[1:])])
        back = [edge for edge in edges if edge.target <= edge.source]
        self.loops = {header: self._loop(header, back) for header in sorted({edge.target for edge in back})}
        if any(not self.dominates(edge.target, edge.source) for edge in back) or not all(
            x.exits for x in self.loops.values()
        ):
            raise PtxError("it has a loop with several entries or without an end")
        after_each = [[target for edge in edges for target in self._after(edge)] for edges in self._outgoing]
        self.followers = _on_all_ways(numbers[::-1], after_each)
        for edge in back:
            self.incoming[edge.target].remove(edge)

    def dominates(self, block: int, other: int) -> bool:
        """Return whether each way to another block leads through a block."""
        return self.dominators[other] >> block & 1 == 1

    def _loop(self, header: int, back: Sequence[Edge]) -> Loop:
        ends = tuple(edge for edge in back if edge.target == header)
        blocks, pending = {header}, [edge.source for edge in ends]
        while pending:
            block = pending.pop()
            if block not in blocks:
                blocks.add(block)
                pending += [edge.source for edge in self.incoming[block]]
        exits = [edge for block in blocks for edge in self._outgoing[block] if edge.target not in blocks]
        return Loop(header, frozenset(blocks), ends, tuple(exits))

    def _after(self, edge: Edge) -> Iterator[int]:
        """Yield where an edge leads in the end: a loop goes on after it."""
        if edge.target > edge.source:
            yield edge.target
        else:
            for exit_ in self.loops[edge.target].exits:
                yield from self._after(exit_)


def _targets(entry: Entry, block: range, starts: Sequence[int]) -> Iterator[tuple[int, bool | None]]:
    """Yield the numbers of the blocks that may follow a block, and on which value of the guard they do."""
    if not block:
        return
    last, after = entry.instructions[block.stop - 1], starts.index(block.stop)
    targets = {"bra": last.operands[-1:], "brx": entry.labels}.get(last.root, ())
    numbers = [starts.index(entry.labels[label]) for label in targets]
    numbers += [len(starts) - 1] * (last.root in _ENDS)
    taken = not last.is_negated if last.guard and numbers else None
    yield from ((number, taken) for number in numbers)
    if taken is not None or not numbers:
        yield after, None if taken is None else not taken


def _in_order(targets: Sequence[Sequence[tuple[int, bool | None]]]) -> list[int]:
    """Return the blocks in the order in which a search that goes deep first leaves them, the last one first."""
    order: list[int] = []
    visited, stack = {0}, [(0, iter(targets[0]))]
    while stack:
        block, edges = stack[-1]
        target = next((target for target, _ in edges if target not in visited), None)
        if target is None:
            order.append(block)
            stack.pop()
        else:
            visited.add(target)
            stack.append((target, iter(targets[target])))
    return order[::-1]


def _on_all_ways(order: Iterable[int], before: Sequence[Sequence[int]]) -> list[int]:
    """Return for each block, as bits, itself and what is on all ways to it, which begin where nothing is before."""
    everything = (1 << len(before)) - 1
    masks = [everything] * len(before)
    previous: list[int] = []
    while masks != previous:
        previous = [*masks]
        for block in order:
            common = reduce(and_, (masks[source] for source in before[block]), everything) if before[block] else 0
            masks[block] = common | 1 << block
    return masks
