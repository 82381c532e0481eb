"""What does one launch from Python cost the host: a trivial kernel, two float32 tensors and an int?

Every sample is `--count` launches back to back after a synchronize, fewer than the driver queues (about 1,024), so that
the host never waits for the GPU. The peers take turns sample by sample in a new random order each round, so that drift
hits all of them alike; differences are taken within a round. One run is `--rounds` rounds; the difference to bare C is
the median over `--runs` runs of each run's median.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
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
from launch_peers import PEERS, Case
from sources import SOURCE
from turns import Sample, Timed, add_counts, check_counts, take_turns

N = 256
FLOOR, UPSTREAM, NO_LAUNCH = "bare C", "tvm-ffi cubin wrapper", "tvm-ffi call, no launch"
QUICK = ["bare C", "jitload", "tvm-ffi"]


def main() -> None:
    options = read_options()
    print(machine_line(), flush=True)
    case = make_case()
    rows = [make_row(name, case) for name in wanted(options)]
    take_turns(rows, options.runs * options.rounds, options.count, synchronize())
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
    add_counts(parser, rounds=40)
    options = parser.parse_args()
    check_counts(parser, options)
    if options.runs < 1:
        parser.error("--runs must be positive")
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


def make_row(name: str, case: Case) -> Timed:
    """Make the peer ready and check its result once."""
    print(f"… {name}", file=sys.stderr, flush=True)
    sample, problem = attempt(lambda: PEERS[name](case))
    if sample is not None and name != NO_LAUNCH:
        _, problem = attempt(lambda: verify(sample, case))
    return Timed(name=name, sample=None if problem else sample, problem=problem)


def verify(sample: Sample, case: Case) -> None:
    case.y.zero_()
    sample(1)
    synchronize()()
    if not bool((case.y == case.x + 1).all()):
        raise RuntimeError("wrong result")


# ---- the table -----------------------------------------------------------------------------------------------------


def summarize(rows: Sequence[Timed], options: argparse.Namespace) -> list[list[str]]:
    """Return the table's rows."""
    samples = {row.name: row.samples for row in rows}
    return [_line(row, samples, options.rounds) for row in rows]


def _line(row: Timed, samples: dict[str, list[float]], rounds: int) -> list[str]:
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


def raw_numbers(rows: Sequence[Timed], options: argparse.Namespace) -> dict[str, Any]:
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
