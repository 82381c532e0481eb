"""What does one launch of a Triton kernel cost the host, by Triton and by jitload, from the same machine code?

Two kernels, of 3 and of 15 parameters. Every sample is `--count` launches back to back after a synchronize, fewer than
the driver queues; the ways take turns sample by sample in a new random order each round, and ratios are taken within a
round against `kernel[grid](…)`, which is how people launch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter
from typing import Any

from common import (
    attempt,
    machine_line,
    make_parser,
    median,
    native_arch,
    p95,
    print_table,
    write_json,
)
from turns import Sample, Timed, add_counts, check_counts, take_turns

N, BLOCK = 256, 256
BASE = "Triton kernel[grid](…)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel of Triton's, its run-time arguments, and what it must leave in the last tensor."""

    name: str
    kernel: Any
    args: tuple[Any, ...]
    out: Any
    expected: Any


@dataclass(slots=True, kw_only=True)
class Row(Timed):
    """A way to launch a case."""

    case: Case


def main() -> None:
    options = read_options()
    print(machine_line(), flush=True)
    rows = [make_row(case, name) for case in make_cases() for name in WAYS]
    import torch

    take_turns(rows, options.rounds, options.count, torch.cuda.synchronize)
    print_table(("kernel", "launched by", "median µs", "p95", "min", "of Triton's", "note"), summarize(rows))
    print(f"{options.rounds} rounds, {options.count} launches a sample, one block of {BLOCK} threads")
    write_json(options.json, raw_numbers(rows, options))


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__, peers=False)
    add_counts(parser, rounds=100)
    options = parser.parse_args()
    check_counts(parser, options)
    return options


def make_cases() -> list[Case]:
    """Return the two kernels, with tensors on the current GPU."""
    if native_arch() is None:
        sys.exit("triton_launch.py needs an NVIDIA GPU")
    import torch
    from triton_kernel import add_one, fifteen

    x = torch.arange(N, dtype=torch.float32, device="cuda")
    y, out, other = torch.ones_like(x), torch.empty_like(x), torch.empty_like(x)
    numbers = tuple(range(2, 12))
    return [
        Case(name="3 parameters", kernel=add_one, args=(x, other, N), out=other, expected=x + 1),
        Case(
            name="15 parameters",
            kernel=fifteen,
            args=(x, y, out, *numbers, N, 0.5),
            out=out,
            expected=0.5 * x + y + sum(numbers),
        ),
    ]


# ---- the ways to launch --------------------------------------------------------------------------------------------


def triton_jit(case: Case) -> Sample:
    """Call as people do, `kernel[grid](…)`."""
    kernel, args = case.kernel, case.args

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            kernel[(1,)](*args, BLOCK=BLOCK)
        return perf_counter() - start

    return sample


def triton_compiled(case: Case) -> Sample:
    """Call the compiled kernel that a launch returned, held with its grid."""
    return calls(compiled(case)[(1, 1, 1)], (*case.args, BLOCK))


def jitload_function(case: Case) -> Sample:
    """Call jitload's function around the same machine code; the grid is computed in the wrapper."""
    import jitload

    return calls(
        jitload.load_triton("bench", compiled(case), grid="ceil_div(n, BLOCK)")[case.kernel.__name__], case.args
    )


def jitload_held(case: Case) -> Sample:
    """Call it with a grid that is held, `g = f[grid]`."""
    import jitload

    return calls(jitload.load_triton("bench", compiled(case))[case.kernel.__name__][1], case.args)


def jitload_dispatcher(case: Case) -> Sample:
    """Call the dispatcher over two variants, of which the second fits."""
    import jitload

    kinds = {int: "i32", float: "fp32"}
    names = [param.name for param in case.kernel.params]
    plain = {name: kinds.get(type(value), "*fp32") for name, value in zip(names, case.args, strict=False)}
    module = jitload.load_triton(
        "bench_variants",
        case.kernel,
        signature={**plain, "n": "i32:1"},  # a size that nobody gives: the first variant is tried and left
        BLOCK=BLOCK,
        variants=[{}, {"signature": {"n": "i32"}}],
        grid="ceil_div(n, BLOCK)",
    )
    return calls(module[case.kernel.__name__], case.args)


WAYS: dict[str, Callable[[Case], Sample]] = {
    BASE: triton_jit,
    "Triton compiled[grid](…)": triton_compiled,
    "jitload": jitload_function,
    "jitload, held f[grid]": jitload_held,
    "jitload, dispatcher": jitload_dispatcher,
}


def compiled(case: Case) -> Any:
    return case.kernel[(1,)](*case.args, BLOCK=BLOCK)


def calls(function: Any, args: tuple[Any, ...]) -> Sample:
    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            function(*args)
        return perf_counter() - start

    return sample


# ---- measuring -----------------------------------------------------------------------------------------------------


def make_row(case: Case, name: str) -> Row:
    """Make a way ready and check its result once."""
    print(f"… {case.name}: {name}", file=sys.stderr, flush=True)
    sample, problem = attempt(lambda: WAYS[name](case))
    if sample is not None:
        _, problem = attempt(lambda: verify(sample, case))
    return Row(case=case, name=name, sample=None if problem else sample, problem=problem)


def verify(sample: Sample, case: Case) -> None:
    case.out.zero_()
    sample(1)
    if not bool((case.out == case.expected).all()):
        raise RuntimeError("wrong result")


def summarize(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table's rows."""
    bases = {row.case.name: row.samples for row in rows if row.name == BASE}
    return [_line(row, bases[row.case.name]) for row in rows]


def _line(row: Row, base: Sequence[float]) -> list[str]:
    if not row.samples:
        return [row.case.name, row.name, *["-"] * 4, row.problem]
    numbers = [f"{value:.3f}" for value in (median(row.samples), p95(row.samples), min(row.samples))]
    ratio = f"{median([mine / other for mine, other in zip(row.samples, base, strict=True)]):.3f}" if base else "-"
    return [row.case.name, row.name, *numbers, ratio, row.problem]


def raw_numbers(rows: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "triton_launch",
        "machine": machine_line(),
        "unit": "µs per launch, one number a round",
        "rounds": options.rounds,
        "count": options.count,
        "rows": [
            {"kernel": row.case.name, "name": row.name, "problem": row.problem, "samples": row.samples} for row in rows
        ],
    }


if __name__ == "__main__":
    main()
