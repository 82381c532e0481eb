"""Benchmarks that start a process a sample: its caches and its answer, the rows that come of the answers, the table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from common import attempt, chosen, make_parser, median, native_arch, one_line, p95

Answer = dict[str, list[float]]
"""What a process measured: seconds under each metric's name."""

_PATIENCE_S = 120.0  # seconds to wait for a precompiled header
_MARK = "benchmark answer: "
_CACHES = (
    *("JITLOAD_CACHE_DIR", "TVM_FFI_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR"),
    "CUDA_CACHE_PATH",  # the driver's own, for PTX
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table: a metric of a peer's process, and the row that it is compared with."""

    label: str
    peer: str
    metric: str
    base: str = ""


@dataclass(slots=True, kw_only=True)
class Results:
    """The samples of all processes, by peer and metric, and why peers have none."""

    samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, peer: str, answer: Answer, problem: str, *, is_warm_up: bool) -> None:
        """Take what one process of a peer measured, or why it did not."""
        if problem:
            self.problems[peer] = problem
        for metric, seconds in answer.items() if not is_warm_up else ():
            self.samples.setdefault((peer, metric), []).extend(seconds)

    def rounds(self, peers: Sequence[str], samples: int) -> Iterator[tuple[int, str]]:
        """Yield every peer in each round; round 0 warms the machine up, and who failed comes no more."""
        for sample in range(samples + 1):
            progress(f"round {sample} of {samples}")
            yield from ((sample, peer) for peer in peers if peer not in self.problems)


# ---- one process ---------------------------------------------------------------------------------------------------


def run_child(script: str, peer: str, cache_dir: Path, options: Mapping[str, object]) -> tuple[Answer, str]:
    """Run `script --child peer` with every cache below `cache_dir`; return its answer, or {} and why there is none."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, script, "--child", peer, *words],
        env={**child_environment(), **cache_environment(cache_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            answer, problem = json.loads(line.removeprefix(_MARK))
            return answer, problem
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return {}, one_line(f"exit code {done.returncode}: {last}")


def cache_environment(cache_dir: Path) -> dict[str, str]:
    """Return the variables that put every loader's cache below a directory."""
    return {name: str(cache_dir / name.lower()) for name in _CACHES}


def child_environment() -> dict[str, str]:
    """Return an environment in which Python keeps compiled modules, as it does for an installed package."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def answer(measure: Callable[[], Answer]) -> None:
    """Print what `measure` returns in the form that `run_child` reads: the whole work of such a process."""
    numbers, problem = attempt(measure)
    print(f"\n{_MARK}{json.dumps([numbers or {}, problem])}", flush=True)


def wait_until_precompiled() -> None:
    """Wait until jitload has precompiled a header in the cache of this process."""
    end = time.monotonic() + _PATIENCE_S
    while not list(Path(os.environ["JITLOAD_CACHE_DIR"]).glob("precompiled-*/*/manifest.json")):
        if time.monotonic() > end:
            raise TimeoutError("no header was precompiled: memory or disk short, or the compiler is not g++")
        time.sleep(0.05)
    time.sleep(0.5)


def timed(make: Callable[..., object], *arguments: object) -> float:
    """Return the seconds that one call takes."""
    start = perf_counter()
    made = make(*arguments)
    seconds = perf_counter() - start
    del made  # not within the time
    return seconds


def child_parser(description: str | None, peers: Iterable[str], *, quick: str, samples: int) -> argparse.ArgumentParser:
    """Return a parser with the options that benchmarks of a process a sample share."""
    parser = make_parser(description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--samples", type=int, default=samples, help="processes of each peer")
    parser.add_argument("--arch", default=native_arch() or "sm_90a", help="architecture to compile for")
    parser.add_argument("--child", choices=list(peers), help=argparse.SUPPRESS)
    return parser


def wanted_peers(rows: Iterable[Row], options: argparse.Namespace, quick: Sequence[str]) -> list[str]:
    """Return the peers to run: those whose names fit `--peers`, or the quick ones."""
    names = list(dict.fromkeys(row.peer for row in rows))
    return chosen(names, options.peers or (quick if options.quick else []))


def progress(text: str) -> None:
    """Say on stderr what is under way."""
    print(f"… {text}", file=sys.stderr, flush=True)


# ---- the table -----------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], results: Results) -> list[list[str]]:
    """Return the table's rows: label, median, p95, number of samples, difference of medians to the base, note."""
    bases = {row.label: results.samples.get((row.peer, row.metric), []) for row in rows}
    ran = {peer for peer, _ in results.samples} | results.problems.keys()
    return [_line(row, results, bases.get(row.base, [])) for row in rows if row.peer in ran]


def _line(row: Row, results: Results, base: Sequence[float]) -> list[str]:
    own = results.samples.get((row.peer, row.metric), [])
    if not own:
        return [row.label, "-", "-", "0", "-", results.problems.get(row.peer, "not measured")]
    over = f"{(median(own) - median(base)) * 1e3:+.1f} ms" if base else ""
    return [
        row.label,
        duration(median(own)),
        duration(p95(own)),
        str(len(own)),
        over,
        results.problems.get(row.peer, ""),
    ]


COLUMNS = ("what", "median", "p95", "samples", "over base", "note")


def duration(seconds: float) -> str:
    """Return the time in the unit that reads best: `21.4 µs`, `3.31 ms`, `1.37 s`."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds:.2f} s"


def raw_numbers(benchmark: str, machine: str, rows: Sequence[Row], results: Results) -> dict[str, Any]:
    """Return what `--json` writes."""
    return {
        "benchmark": benchmark,
        "machine": machine,
        "unit": "s",
        "problems": results.problems,
        "rows": [{"label": row.label, "samples": results.samples.get((row.peer, row.metric), [])} for row in rows],
    }
