"""The range of an index under comparisons is that of all threads of small launches."""

from __future__ import annotations

import itertools
import operator
import random

import pytest
from support.bounds import evaluate

from jitload.bounds.regions import Region
from jitload.bounds.values import Node, Nodes

NODES = Nodes({})
OPERATORS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def known(value: int | str) -> Node:
    return NODES.known(value)


def total(*nodes: Node) -> Node:
    first, *others = nodes
    return NODES.make("add", first, total(*others)) if others else first


def product(left: Node, right: Node) -> Node:
    return NODES.make("mul", left, right)


X, Y, BLOCK = (NODES.make("coordinate", value=name) for name in ("tid.x", "tid.y", "ctaid.x"))
WIDTH, N = known("block.x"), known("n")
INDEX = total(X, product(BLOCK, WIDTH))
NUMBERS = (X, Y, BLOCK, INDEX, total(X, known(3)), product(X, known(2)), total(product(Y, WIDTH), X))


def random_case(chance: random.Random) -> tuple[Node, list[tuple[str, Node, Node]]]:
    """Return an index and comparisons."""
    index = known(chance.randint(0, 2))
    for _ in range(chance.randint(1, 3)):
        index = total(
            index, product(chance.choice((known(1), known(chance.randint(-2, 5)), N)), chance.choice(NUMBERS))
        )
    comparisons = [
        *(("lt", value, N) for value in NUMBERS),
        *(("eq", value, known(0)) for value in (X, Y)),
        *(("ne", value, known(0)) for value in (X, INDEX)),
        ("gt", N, INDEX),
        ("ge", INDEX, known(3)),
        ("le", N, product(X, known(3))),
        ("gt", N, known(4)),
    ]
    return index, chance.sample(comparisons, chance.choice((0, 0, 1, 1, 2)))


def value_of(node: Node, values: dict[str, int]) -> int:
    match node.kind:
        case "known":
            return evaluate(node.value, values)
        case "coordinate":
            return values[node.value]
    left, right = (value_of(part, values) for part in node.inputs)
    return left + right if node.kind == "add" else left * right


@pytest.mark.parametrize("seed", range(5))
def test_the_range_of_an_index_is_that_of_all_threads(seed):
    chance = random.Random(seed)
    exact_ranges = 0
    for _ in range(60):
        index, comparisons = random_case(chance)
        region = Region()
        are_used = [region.compare(*comparison) for comparison in comparisons]
        range_ = region.range_of(index)
        for _ in range(4 if range_ else 0):
            width, height, blocks = chance.randint(1, 9), chance.randint(1, 3), chance.randint(1, 4)
            launch = {"block.x": width, "block.y": height, "grid.x": blocks, "n": chance.randint(0, 20)}
            low, high = (evaluate(term, launch) for term in range_[:2])
            threads = (
                {**launch, "tid.x": x, "tid.y": y, "ctaid.x": block}
                for x, y, block in itertools.product(range(width), range(height), range(blocks))
            )
            numbers = [
                value_of(index, thread)
                for thread in threads
                if all(OPERATORS[name](*(value_of(side, thread) for side in sides)) for name, *sides in comparisons)
            ]
            if any(evaluate(term, launch) < 0 for term in range_.certain):
                continue
            assert all(low <= number <= high for number in numbers), launch
            exact = region.conditions_for(range_)
            if all(are_used) and exact is not None and all(evaluate(t, launch) >= 0 for t in exact):
                if all(evaluate(term, launch) >= 0 for term in region.active):
                    assert (min(numbers), max(numbers)) == (low, high), launch
                    exact_ranges += 1
                else:
                    assert not numbers
    assert exact_ranges > 10
