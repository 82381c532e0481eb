"""What does `import jitload` cost: after `import tvm_ffi`, and alone?

Every sample is a new process; the cases take turns. The last lines are the longest entries of `python -X importtime`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from children import child_environment, duration, progress
from common import attempt, machine_line, make_parser, median, one_line, p95, print_table, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a process imports before the clock starts, and the statements that it times one by one, under labels."""

    before: str = ""
    timed: dict[str, str]
    is_context: bool = False


CASES = [
    Case(
        before="import tvm_ffi",
        timed={"import jitload, after tvm_ffi": "import jitload", "  then jitload.Module": "jitload.Module"},
    ),
    Case(timed={"import jitload, alone": "import jitload"}),
    Case(timed={"import tvm_ffi, with torch": "import tvm_ffi"}, is_context=True),
    Case(before="import torch", timed={"import tvm_ffi, after torch": "import tvm_ffi"}, is_context=True),
    Case(timed={"import torch": "import torch"}, is_context=True),
]
LABELS = [label for case in CASES for label in case.timed]
CONTEXT = 5  # processes of what is there for comparison, at most: torch is slow
_ENTRY = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)")


def main() -> None:
    options = read_options()
    machine = machine_line()
    print(machine, flush=True)
    samples, problems = measure(options.samples)
    print_table(("what", "median", "p95", "min", "samples", "note"), [line(case, samples, problems) for case in LABELS])
    print(f"\npython -X importtime, `import jitload` after `import tvm_ffi`: the {options.entries} longest entries")
    entries = import_entries()
    print_table(("module", "own", "with its imports", ""), [entry_line(e) for e in longest(entries, options.entries)])
    write_json(options.json, raw_numbers(machine, samples, problems, entries))


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__, peers=False)
    parser.add_argument("--samples", type=int, default=20, help="processes of each case")
    parser.add_argument("--entries", type=int, default=12, help="entries of -X importtime to show")
    return parser.parse_args()


def measure(count: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Time every case in `count` processes, after one round that fills the caches of the system and of Python."""
    samples: dict[str, list[float]] = {label: [] for label in LABELS}
    problems: dict[str, str] = {}
    for round_number in range(count + 1):
        progress(f"round {round_number} of {count}")
        for case in CASES:
            if case.timed.keys() & problems.keys() or (case.is_context and round_number > CONTEXT):
                continue
            seconds, problem = attempt(partial(time_imports, case))
            if problem:
                problems.update(dict.fromkeys(case.timed, problem))
            elif round_number > 0:
                for label, value in zip(case.timed, seconds, strict=True):
                    samples[label].append(value)
    return samples, problems


def time_imports(case: Case) -> list[float]:
    """Return the seconds of each statement, in a process of its own."""
    clock = "print(perf_counter() - start, flush=True)"
    statements = [f"start = perf_counter()\n{what}\n{clock}" for what in case.timed.values()]
    code = "\n".join(["from time import perf_counter", case.before, *statements])
    return [float(text) for text in run_python(code).stdout.split()]


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], env=child_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(one_line((done.stderr.strip().splitlines() or ["no output"])[-1]))
    return done


def line(label: str, samples: dict[str, list[float]], problems: dict[str, str]) -> list[str]:
    own = samples[label]
    if not own:
        return [label, "-", "-", "-", "0", problems.get(label, "not measured")]
    return [label, *(duration(value) for value in (median(own), p95(own), min(own))), str(len(own)), ""]


# ---- -X importtime -------------------------------------------------------------------------------------------------


def import_entries() -> list[tuple[str, int, int]]:
    """Return module, own and cumulative µs of everything that `import jitload` imports beyond tvm-ffi."""
    mark = "print('-- jitload --', file=sys.stderr, flush=True)"
    done, problem = attempt(lambda: run_python(f"import sys, tvm_ffi\n{mark}\nimport jitload\n", "-X", "importtime"))
    if problem:
        progress(problem)
        return []
    text = done.stderr.partition("-- jitload --")[2]
    return [(found[4], int(found[1]), int(found[2])) for found in _ENTRY.finditer(text)]


def longest(entries: list[tuple[str, int, int]], count: int) -> list[tuple[str, int, int]]:
    return sorted(entries, key=lambda entry: entry[2], reverse=True)[:count]


def entry_line(entry: tuple[str, int, int]) -> list[str]:
    module, own, cumulative = entry
    return [module, duration(own / 1e6), duration(cumulative / 1e6), ""]


def raw_numbers(
    machine: str, samples: dict[str, list[float]], problems: dict[str, str], entries: list[tuple[str, int, int]]
) -> dict[str, Any]:
    return {
        "benchmark": "import_time",
        "machine": machine,
        "unit": "s",
        "problems": problems,
        "rows": [{"label": label, "samples": samples[label]} for label in LABELS],
        "importtime_us": [{"module": module, "own": own, "cumulative": total} for module, own, total in entries],
    }


if __name__ == "__main__":
    main()
