"""What does one launch from Python cost the host: a trivial kernel, two float32 tensors and an int?

Every sample is `--count` launches back to back after a synchronize, fewer than the driver queues (about 1,024), so that
the host never waits for the GPU. The peers take turns sample by sample in a new random order each round, so that drift
hits all of them alike; differences are taken within a round. One run is `--rounds` rounds; the difference to bare C is
the median over `--runs` runs of each run's median.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common import (
    attempt,
    chosen,
    machine_line,
    make_parser,
    median,
    native_arch,
    p95,
    print_table,
    set_build_environment,
    write_json,
)
from launch_peers import PEERS, Case, Sample
from sources import SOURCE

N = 256
WARM_UP = 10
FLOOR, UPSTREAM, NO_LAUNCH = "bare C", "tvm-ffi cubin wrapper", "tvm-ffi call, no launch"
QUICK = ["bare C", "jitload", "tvm-ffi"]


@dataclass(slots=True, kw_only=True)
class Row:
    """A peer, its samples in µs per launch, one a round, or why there are none."""

    name: str
    sample: Sample | None = None
    problem: str = ""
    samples: list[float] = field(default_factory=list)


def main() -> None:
    options = read_options()
    print(machine_line(), flush=True)
    case = make_case()
    rows = [make_row(name, case) for name in wanted(options)]
    measure(rows, options, synchronize())
    print_table(
        ("peer", "median µs", "p95", "min", "over bare C", "its runs", "over tvm-ffi", "note"), summarize(rows, options)
    )
    print(
        f"{options.runs} runs of {options.rounds} rounds, {options.count} launches a sample, n = {N}, "
        f"over tvm-ffi: against its GIL-released wrapper"
    )
    write_json(options.json, raw_numbers(rows, options))


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="only bare C, jitload and tvm-ffi")
    parser.add_argument("--runs", type=int, default=5, help="runs whose median is taken")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each peer in a run")
    parser.add_argument("--count", type=int, default=500, help="launches in a sample; at most 1000")
    options = parser.parse_args()
    if not 1 <= options.count <= 1000 or options.runs < 1 or options.rounds < 1:
        parser.error("--runs and --rounds must be positive, --count from 1 to 1000")
    return options


def wanted(options: argparse.Namespace) -> list[str]:
    """Return the peers to measure; bare C is always among them, because all others are compared with it."""
    names = chosen(list(PEERS), options.peers or (QUICK if options.quick else []))
    return names if FLOOR in names else [FLOOR, *names]


def make_case() -> Case:
    """Return the tensors on the current GPU, and the cubin for it."""
    arch = native_arch()
    if arch is None:
        sys.exit("launch.py needs an NVIDIA GPU")
    set_build_environment(arch)
    import torch

    import jitload

    x = torch.arange(N, dtype=torch.float32, device="cuda")
    cubin = jitload.compile_cubin(SOURCE, arch=arch)
    return Case(x=x, y=torch.empty_like(x), n=N, arch=arch, cubin=cubin.data)


def synchronize() -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize


def make_row(name: str, case: Case) -> Row:
    """Make the peer ready and check its result once."""
    print(f"… {name}", file=sys.stderr, flush=True)
    sample, problem = attempt(lambda: PEERS[name](case))
    if sample is not None and name != NO_LAUNCH:
        _, problem = attempt(lambda: verify(sample, case))
    return Row(name=name, sample=None if problem else sample, problem=problem)


def verify(sample: Sample, case: Case) -> None:
    case.y.zero_()
    sample(1)
    synchronize()()
    if not bool((case.y == case.x + 1).all()):
        raise RuntimeError("wrong result")


def measure(rows: Sequence[Row], options: argparse.Namespace, settle: Callable[[], None]) -> None:
    """Fill in the samples: in each round every peer once, in a new order."""
    ready = [(row, row.sample) for row in rows if row.sample is not None]
    order = random.Random(0)  # the same orders at every run
    gc.collect()
    gc.disable()  # a collection would hit one peer alone
    for _ in range(options.runs * options.rounds):
        for row, sample in order.sample(ready, len(ready)):
            settle()
            sample(WARM_UP)
            settle()
            row.samples.append(sample(options.count) / options.count * 1e6)
    gc.enable()


# ---- the table -----------------------------------------------------------------------------------------------------


def summarize(rows: Sequence[Row], options: argparse.Namespace) -> list[list[str]]:
    """Return the table's rows."""
    samples = {row.name: row.samples for row in rows}
    return [_line(row, samples, options.rounds) for row in rows]


def _line(row: Row, samples: dict[str, list[float]], rounds: int) -> list[str]:
    if not row.samples:
        return [row.name, *["-"] * 6, row.problem]
    own = row.samples
    above = run_differences(own, samples[FLOOR], rounds)
    return [
        row.name,
        *(f"{value:.3f}" for value in (median(own), p95(own), min(own))),
        f"{median(above):+.3f}" if above else "-",
        f"{min(above):+.3f} … {max(above):+.3f}" if above else "-",
        over_percent(own, samples.get(UPSTREAM, [])),
        row.problem,
    ]


def run_differences(own: Sequence[float], base: Sequence[float], rounds: int) -> list[float]:
    """Return each run's median of the differences within its rounds; nothing when there is no base."""
    pairs = [mine - other for mine, other in zip(own, base, strict=bool(base))]
    return [median(pairs[i : i + rounds]) for i in range(0, len(pairs), rounds)]


def over_percent(own: Sequence[float], base: Sequence[float]) -> str:
    if not base:
        return "-"
    return f"{median([mine / other - 1 for mine, other in zip(own, base, strict=True)]):+.1%}"


def raw_numbers(rows: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "launch",
        "machine": machine_line(),
        "unit": "µs per launch, one number a round",
        "runs": options.runs,
        "rounds": options.rounds,
        "count": options.count,
        "rows": [{"name": row.name, "problem": row.problem, "samples": row.samples} for row in rows],
    }


if __name__ == "__main__":
    main()
