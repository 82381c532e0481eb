"""Launches timed in turns: every way once in each round, in a new order, so that drift hits all of them alike."""

from __future__ import annotations

import argparse
import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WARM_UP = 10

Sample = Callable[[int], float]
"""Launch so many times, back to back; return the seconds."""


@dataclass(slots=True, kw_only=True)
class Timed:
    """A way to launch, its samples in µs per launch, one a round, or why there are none."""

    name: str
    sample: Sample | None = None
    problem: str = ""
    samples: list[float] = field(default_factory=list)


def take_turns(rows: Sequence[Timed], rounds: int, count: int, settle: Callable[[], None]) -> None:
    """Fill in the samples; `settle` waits until the GPU has nothing to do."""
    ready = [(row, row.sample) for row in rows if row.sample is not None]
    order = random.Random(0)  # the same orders at every run
    gc.collect()
    gc.disable()  # a collection would hit one way alone
    for _ in range(rounds):
        for row, sample in order.sample(ready, len(ready)):
            settle()
            sample(WARM_UP)
            settle()
            row.samples.append(sample(count) / count * 1e6)
    gc.enable()


def add_counts(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    """Add the options that say how many launches are timed."""
    parser.add_argument("--rounds", type=int, default=rounds, help="samples of each way, in a run if there are several")
    parser.add_argument("--count", type=int, default=500, help="launches in a sample; at most 1000")


def check_counts(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse counts that cannot be: the driver queues about 1,024 launches, and the host must not wait for it."""
    if not 1 <= options.count <= 1000 or options.rounds < 1:
        parser.error("--rounds must be positive, --count from 1 to 1000")
