"""The control flow of a kernel: blocks, the edges between them, loops, and the paths that lead to a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from jitload.bounds.ptx import Entry

_ENDS = ("ret", "exit", "trap")
_MOST_PATHS = 32  # of more paths to a block, only what they have in common is kept


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


class Step(NamedTuple):
    """A part of a path: an edge out of a block, or an exit of a loop, of several alternatives.

    A step of the kind `loop` says that a loop has been entered and not left, and `unknown` that something else decides.
    """

    kind: Literal["branch", "exit", "loop", "unknown"]
    block: int
    edge: int = 0
    alternatives: int = 0


Path = tuple[Step, ...]


class Graph:
    """The blocks of a kernel. The last one is the exit, which has no instructions.

    Attributes:
        blocks: The positions of each block's instructions.
        incoming: The edges to each block, without those back to the header of a loop.
        outgoing: The edges from each block.
        order: The blocks that can be reached, each after those from which edges lead to it, without back edges.
        position: The position of each block in this order.
        loops: The loops by their headers.
        paths: The paths to each block.
        is_reducible: Whether each loop is entered only at its header.
    """

    def __init__(self, entry: Entry) -> None:
        after = [n + 1 for n, i in enumerate(entry.instructions) if i.root in ("bra", "brx", *_ENDS)]
        starts = sorted({0, *entry.labels.values(), *after} - {len(entry.instructions)})
        self.blocks = [range(a, b) for a, b in zip(starts, [*starts[1:], len(entry.instructions)], strict=True)]
        block_at = {block.start: number for number, block in enumerate(self.blocks)}
        labels = {name: block_at.get(position, len(self.blocks)) for name, position in entry.labels.items()}
        self.outgoing = [[*self._edges_of(number, entry, labels)] for number in range(len(self.blocks))]
        self.blocks.append(range(0))
        self.outgoing.append([])
        self.order = self._in_order()
        edges = [edge for block in self.order for edge in self.outgoing[block]]
        self.position = {block: number for number, block in enumerate(self.order)}
        back = [edge for edge in edges if self.position[edge.target] <= self.position[edge.source]]
        self.incoming: list[list[Edge]] = [[] for _ in self.blocks]
        for edge in edges:
            self.incoming[edge.target].append(edge)
        self.loops = {header: self._loop(header, back) for header in dict.fromkeys(edge.target for edge in back)}
        self.is_reducible = all(0 not in loop.blocks or header == 0 for header, loop in self.loops.items())
        for edge in back:
            self.incoming[edge.target].remove(edge)
        self.paths: dict[int, frozenset[Path]] = {}
        for block in self.order:
            self.paths[block] = self._paths_to(block) if self.is_reducible else frozenset([()])

    def _edges_of(self, number: int, entry: Entry, labels: dict[str, int]) -> Iterator[Edge]:
        last = entry.instructions[self.blocks[number].stop - 1] if len(self.blocks[number]) else None
        targets: list[int] = []
        if last is not None and last.root == "bra":
            targets = [labels[last.operands[-1]]]
        elif last is not None and last.root in _ENDS:
            targets = [len(self.blocks)]
        elif last is not None and last.root == "brx":
            targets = [*dict.fromkeys(labels.values())]
        is_conditional = bool(last and last.guard and targets)
        taken = not last.is_negated if last is not None and is_conditional else None
        yield from (Edge(number, target, taken) for target in targets)
        if is_conditional or not targets:
            yield Edge(number, number + 1, None if taken is None else not taken)

    def _in_order(self) -> list[int]:
        """Return the blocks in the order in which a search that goes deep first leaves them, the last one first."""
        order: list[int] = []
        visited, stack = {0}, [(0, iter(self.outgoing[0]))]
        while stack:
            block, edges = stack[-1]
            target = next((edge.target for edge in edges if edge.target not in visited), None)
            if target is None:
                order.append(block)
                stack.pop()
            else:
                visited.add(target)
                stack.append((target, iter(self.outgoing[target])))
        return order[::-1]

    def _loop(self, header: int, back: Sequence[Edge]) -> Loop:
        ends = tuple(edge for edge in back if edge.target == header)
        blocks, pending = {header}, [edge.source for edge in ends]
        while pending:
            block = pending.pop()
            if block not in blocks:
                blocks.add(block)
                pending += [edge.source for edge in self.incoming[block]]
        exits = [edge for block in blocks for edge in self.outgoing[block] if edge.target not in blocks]
        return Loop(header, frozenset(blocks), ends, tuple(exits))

    # ---- paths ----

    def _paths_to(self, block: int) -> frozenset[Path]:
        paths = _joined({path for edge in self.incoming[block] for path in self._paths_along(edge)} or {()})
        if len(paths) > _MOST_PATHS:
            first, *others = sorted(paths)
            common = tuple(step for step in first if all(step in path for path in others))
            paths = {(*common, Step("unknown", block))}
        return frozenset((*path, Step("loop", block)) for path in paths) if block in self.loops else frozenset(paths)

    def _paths_along(self, edge: Edge) -> Iterator[Path]:
        """Yield the paths to the end of an edge. After a loop, they go on where it was entered, since it ends."""
        step, paths = Step("branch", edge.source), self.paths[edge.source]
        edges: Sequence[Edge] = self.outgoing[edge.source]
        left = [loop for loop in self.loops.values() if edge in loop.exits]
        if left:
            loop = max(left, key=lambda loop: len(loop.blocks))
            step, edges = Step("exit", loop.header), loop.exits
            paths = frozenset(path[:-1] for path in self.paths[loop.header])
        if len(edges) == 1:
            yield from paths
        else:
            step = step._replace(edge=edges.index(edge), alternatives=len(edges))
            yield from ((*path, step) for path in paths)


def _joined(paths: set[Path]) -> set[Path]:
    """Return paths in which the path to a branch replaces those through each of its edges."""
    while True:
        siblings: dict[tuple[Path, Step], set[Path]] = {}
        for path in paths:
            if path:
                siblings.setdefault((path[:-1], path[-1]._replace(edge=0)), set()).add(path)
        joined = {branch: group for branch, group in siblings.items() if len(group) == branch[1].alternatives}
        if not joined:
            return paths
        paths = paths.difference(*joined.values()) | {prefix for prefix, _ in joined}
