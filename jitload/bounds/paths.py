"""The loops of a kernel, and the decisions that lead to an instruction."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from jitload.bounds.ptx import Entry, PtxError

_BRANCHES = ("bra", "ret", "exit", "trap")
_MOST_DECISIONS = 30


class Branch(NamedTuple):
    """A branch under a guard, or an instruction that ends a thread under a guard, and whether it is taken."""

    position: int
    is_taken: bool


class Loop(NamedTuple):
    """A loop: the positions of its instructions, of the branches back to the first one, and of those out of it."""

    body: range
    back: tuple[int, ...]
    exits: tuple[int, ...]


# What leads to an instruction: branches, the loops around it, and None for what is not known. A path without None
# always leads there.
Path = tuple[Branch | Loop | None, ...]


class Flow:
    """The control flow of a kernel.

    Attributes:
        successors: For each instruction, the positions of those that may follow it, and the branch if there are two.
        loops: The loops by the positions of their first instructions, the outer ones first.
    """

    def __init__(self, entry: Entry) -> None:
        self.successors = [_successors(entry, position) for position in range(len(entry.instructions))]
        edges = [(position, target) for position, ends in enumerate(self.successors) for target, _ in ends]
        self.loops: dict[int, Loop] = {}
        for start in sorted({target for position, target in edges if target <= position}):
            back = [position for position, target in edges if target == start <= position]
            body = range(start, back[-1] + 1)
            exits = [position for position, target in edges if position in body and target not in body]
            if any(start != target in body and position not in body for position, target in edges):
                raise PtxError("it has a loop with several entries, or in several pieces")
            self.loops[start] = Loop(body, (*back,), (*exits,))

    def along(self, path: Path, position: int, target: int, branch: Branch | None) -> Path:
        """Return the path to an instruction that follows another one. After a loop, it is the path to the loop."""
        if branch is None and target == position + 1:
            return path
        for loop in self.loops.values():
            if position in loop.body and target not in loop.body:
                path = path[: path.index(loop)]
                return path if len(loop.exits) == 1 else (*path, None)
        if branch and len(path) < _MOST_DECISIONS:
            return (*path, branch)
        return path if branch is None or None in path else (*path, None)


def _successors(entry: Entry, position: int) -> list[tuple[int, Branch | None]]:
    instruction = entry.instructions[position]
    if instruction.root == "brx":
        raise PtxError("it has a branch to one of many labels")
    if instruction.root not in _BRANCHES:
        return [(position + 1, None)]
    target = entry.labels[instruction.operands[-1]] if instruction.root == "bra" else len(entry.instructions)
    if not instruction.guard:
        return [(target, None)]
    return [(target, Branch(position, is_taken=True)), (position + 1, Branch(position, is_taken=False))]


def joined(paths: Iterable[Path]) -> Path:
    """Return the path to an instruction at which several paths meet."""
    paths = {*paths}
    while len(paths) > 1:
        *start, last = max(paths, key=len)
        choices = (
            {(*start, last._replace(is_taken=taken)) for taken in (True, False)} if isinstance(last, Branch) else None
        )
        if not choices or choices - paths:
            common = itertools.takewhile(lambda steps: len({*steps}) == 1, zip(*paths, strict=False))
            return (*(steps[0] for steps in common), None)
        paths = paths - choices | {(*start,)}
    return paths.pop()
