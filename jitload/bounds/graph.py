"""The control flow of a kernel: blocks, dominators, loops, and the branches that decide whether a block runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from jitload.bounds.ptx import Entry

_ENDS = ("ret", "exit", "trap")


class Edge(NamedTuple):
    """The edge from a block to another. `taken` tells on which value of the branch's guard; None if always."""

    source: int
    target: int
    taken: bool | None


class Loop(NamedTuple):
    """A natural loop: its header, its blocks as a set of bits, and the edges back to the header."""

    header: int
    blocks: int
    back: tuple[Edge, ...]


class Graph:
    """The blocks of a kernel, in the order of the text. The last block is the exit, which has no instructions.

    Attributes:
        blocks: The positions of each block's instructions.
        edges: All edges.
        dominators: The blocks that dominate each block, as a set of bits.
        loops: The loops by their headers.
        block_of: The block of each instruction.
        is_reducible: Whether each cycle is a loop with one header.
    """

    def __init__(self, entry: Entry) -> None:
        self.instructions = entry.instructions
        starts = _starts(entry)
        self.blocks = [range(a, b) for a, b in zip(starts, [*starts[1:], len(entry.instructions)], strict=True)]
        self.exit = len(self.blocks)
        self.blocks.append(range(len(entry.instructions), len(entry.instructions)))
        self.block_of = [number for number, block in enumerate(self.blocks) for _ in block]
        block_at = {block.start: number for number, block in enumerate(self.blocks[:-1])}
        labels = {name: block_at.get(position, self.exit) for name, position in entry.labels.items()}
        self.edges = [edge for number in range(self.exit) for edge in self._edges_of(number, labels)]
        self.incoming: list[list[Edge]] = [[] for _ in self.blocks]
        self.outgoing: list[list[Edge]] = [[] for _ in self.blocks]
        for edge in self.edges:
            self.incoming[edge.target].append(edge)
            self.outgoing[edge.source].append(edge)
        everything = range(len(self.blocks))
        self.dominators = _dominators(everything, self.edges, 0)
        self._by_dominators = {blocks: block for block, blocks in enumerate(self.dominators)}
        self._guards: dict[int, tuple[Edge, ...]] = {}
        back = [edge for edge in self.edges if self.dominates(edge.target, edge.source)]
        self.loops = {header: self._loop(header, back) for header in dict.fromkeys(edge.target for edge in back)}
        self._find_deciding(back)

    def _edges_of(self, number: int, labels: dict[str, int]) -> Iterator[Edge]:
        last = self.instructions[self.blocks[number].stop - 1] if len(self.blocks[number]) else None
        targets: list[int] = []
        if last is not None and last.root == "bra":
            targets = [labels[last.operands[-1]]]
        elif last is not None and last.root in _ENDS:
            targets = [self.exit]
        elif last is not None and last.root == "brx":
            yield from (Edge(number, target, None) for target in dict.fromkeys(labels.values()))
            return
        is_conditional = bool(last and last.guard and targets)
        taken = not last.is_negated if last is not None and is_conditional else None
        yield from (Edge(number, target, taken) for target in targets)
        if is_conditional or not targets:
            yield Edge(number, number + 1, None if taken is None else not taken)

    def dominates(self, block: int, other: int) -> bool:
        """Return whether all paths to `other` go through `block`."""
        return bool(self.dominators[other] >> block & 1)

    def _loop(self, header: int, back: Sequence[Edge]) -> Loop:
        edges = tuple(edge for edge in back if edge.target == header)
        blocks, pending = 1 << header, [edge.source for edge in edges]
        while pending:
            block = pending.pop()
            if not blocks >> block & 1:
                blocks |= 1 << block
                pending += [edge.source for edge in self.incoming[block]]
        return Loop(header, blocks, edges)

    def _find_deciding(self, back: Sequence[Edge]) -> None:
        """Find the branches that decide whether each block runs in an iteration of its loops.

        The end of an iteration is taken to leave the loop, since each loop ends at some time.
        """
        removed = {*back}
        forward = [edge for edge in self.edges if edge not in removed]
        for edge in back:
            targets = self._targets_after(self.loops[edge.target], removed) or {self.exit}
            forward += [Edge(edge.source, target, None) for target in targets]
        self.is_reducible = not _has_cycle(forward)
        reverse = [Edge(edge.target, edge.source, None) for edge in forward]
        after = _dominators(range(len(self.blocks))[::-1], reverse, self.exit)
        self._deciding: dict[int, set[Edge]] = {}
        for edge in forward:  # a block that runs after the edge's target, but not always after its source
            for block in _members(after[edge.target] & (~after[edge.source] | 1 << edge.source)):
                self._deciding.setdefault(block, set()).add(edge)

    def _targets_after(self, loop: Loop, back: set[Edge]) -> set[int]:
        """Return the blocks that follow a loop. If the end of an outer loop does, return those that follow that one."""
        targets: set[int] = set()
        for edge in self.exits(loop):
            targets |= self._targets_after(self.loops[edge.target], back) if edge in back else {edge.target}
        return targets

    def exits(self, loop: Loop) -> list[Edge]:
        """Return the edges that leave a loop."""
        return [edge for edge in self.edges if loop.blocks >> edge.source & 1 and not loop.blocks >> edge.target & 1]

    def loops_around(self, block: int) -> list[Loop]:
        """Return the loops that contain a block, the outermost first."""
        around = [loop for loop in self.loops.values() if loop.blocks >> block & 1]
        return sorted(around, key=lambda loop: -loop.blocks.bit_count())

    def deciding(self, block: int) -> list[Edge] | None:
        """Return the edges which together decide whether a block runs in an iteration, or None if this is not so."""
        chain: list[Edge] = []
        while edges := self._deciding.get(block):
            if len(edges) > 1 or len(chain) > len(self.blocks):
                return None
            chain += edges
            block = chain[-1].source
        return chain[::-1]

    def certain_edges(self, block: int) -> list[Edge]:
        """Return conditional edges that were taken last before a block runs, the first one first."""
        around = {loop.header for loop in self.loops_around(block)}
        return [e for e in self._guards_of(block) if all(loop.header in around for loop in self.loops_around(e.source))]

    def _guards_of(self, block: int) -> tuple[Edge, ...]:
        """Return the conditional edges that lead to the blocks that dominate a block, the first one first."""
        pending = []
        while block not in self._guards and block != 0:
            pending.append(block)
            block = self._by_dominators.get(self.dominators[block] ^ 1 << block, 0)
        guards = self._guards.get(block, ())
        for target in reversed(pending):
            entering = [edge for edge in self.incoming[target] if not self.dominates(target, edge.source)]
            if len(entering) == 1 and entering[0].taken is not None:
                guards += (entering[0],)
            self._guards[target] = guards
        return guards


def _starts(entry: Entry) -> list[int]:
    after = [n + 1 for n, i in enumerate(entry.instructions) if i.root in ("bra", "brx", *_ENDS)]
    return sorted({0, *entry.labels.values(), *after} - {len(entry.instructions)})


def _dominators(order: range, edges: Iterable[Edge], root: int) -> list[int]:
    """Return the blocks that are on all paths from the root to each block, itself included.

    In the order of `order`, most blocks come after those from which edges lead to them.
    """
    sources: list[list[int]] = [[] for _ in order]
    for edge in edges:
        sources[edge.target].append(edge.source)
    everything = (1 << len(order)) - 1
    result = [everything] * len(order)
    result[root] = 1 << root
    is_changed = True
    while is_changed:
        is_changed = False
        for block in order:
            if block != root:
                common = everything
                for source in sources[block]:
                    common &= result[source]
                common |= 1 << block
                is_changed |= common != result[block]
                result[block] = common
    return result


def _members(blocks: int) -> Iterator[int]:
    """Yield the blocks of a set of bits."""
    while blocks:
        yield (blocks & -blocks).bit_length() - 1
        blocks &= blocks - 1


def _has_cycle(edges: Sequence[Edge]) -> bool:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for edge in edges:
        sorter.add(edge.target, edge.source)
    try:
        sorter.prepare()
    except CycleError:
        return True
    return False
