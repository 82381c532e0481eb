"""The range of an index under comparisons is that of all threads of small launches."""

from __future__ import annotations

import itertools
import random

import pytest
from support.bounds import evaluate

from jitload.bounds.domain import Domain
from jitload.bounds.terms import Polynomial

of = Polynomial.of
X, Y, BLOCK, WIDTH, N = map(of, ("tid.x", "tid.y", "ctaid.x", "block.x", "n"))
INDEX = X + BLOCK * WIDTH
NUMBERS = (X, Y, BLOCK, INDEX, X + of(3), X * of(2), Y * WIDTH + X)


def random_case(chance: random.Random) -> tuple[Polynomial, list[Polynomial]]:
    """Return an index and comparisons `polynomial >= 0`."""
    index = of(chance.randint(0, 2))
    for _ in range(chance.randint(1, 3)):
        index += chance.choice((of(1), of(chance.randint(-2, 5)), N)) * chance.choice(NUMBERS)
    comparisons = [
        *([N - value - of(1)] for value in NUMBERS),
        *([value, -value] for value in (X, Y)),
        [INDEX - of(3)],
        [X * of(3) - N],
    ]
    chosen = chance.sample(comparisons, chance.choice((0, 0, 1, 1, 2)))
    return index, [comparison for both in chosen for comparison in both]


@pytest.mark.parametrize("seed", range(5))
def test_the_range_of_an_index_is_that_of_all_threads(seed):
    chance = random.Random(seed)
    exact_ranges = 0
    for _ in range(60):
        index, comparisons = random_case(chance)
        domain = Domain(comparisons)
        range_ = domain.range_of(index)
        for _ in range(4 if range_ else 0):
            width, height, blocks = chance.randint(1, 9), chance.randint(1, 3), chance.randint(1, 4)
            launch = {"block.x": width, "block.y": height, "grid.x": blocks, "n": chance.randint(0, 20)}
            low, high = (evaluate(term, launch) for term in range_[:2])
            threads = (
                {**launch, "tid.x": x, "tid.y": y, "ctaid.x": block}
                for x, y, block in itertools.product(range(width), range(height), range(blocks))
            )
            active = (t for t in threads if all(evaluate(comparison, t) >= 0 for comparison in comparisons))
            found = [evaluate(index, thread) for thread in active]
            if any(evaluate(sign, launch) < 0 for sign in range_.signs):
                continue
            assert all(low <= value <= high for value in found), (index, comparisons, launch)
            if range_.is_exact and all(evaluate(term, launch) >= 0 for term in (*domain.active, *domain.exact)):
                assert (min(found), max(found)) == (low, high), (index, comparisons, launch)
                exact_ranges += 1
    assert exact_ranges > 10
