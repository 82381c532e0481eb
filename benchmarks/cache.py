"""What does a hit cost, with a large library, and in a cache of 10,000 entries; and one new key for many processes?

A hit is `build_inline`: the key, the look into the cache, and the digest of the library; loading is in `warm.py`. Every
sample of a hit is a new process with 50 calls. "Together" starts processes that all have imported jitload and wait for
one moment, after a hit on another key; the clock runs from there until the last of them has the library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import machine_line, make_parser, median, p95, print_table, write_json

COLUMNS = ["what", "median", "p95", "note"]
HITS = 50
CHILD = """
import sys, time, json
import jitload
arch, first, count, note = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
sys.path.insert(0, {folder!r})
from sources import kernel_text
def hit(number):
    text = kernel_text(number) + note
    start = time.perf_counter()
    jitload.build_inline("bench", cuda_sources=text, arch=arch)
    return time.perf_counter() - start
print(json.dumps([hit(first + i) for i in range(count)]))
"""
TOGETHER = """
import sys, time
import jitload, jitload.library
jitload.library.import_first()
sys.path.insert(0, {folder!r})
from sources import kernel_text
jitload.build_inline("bench", cuda_sources=kernel_text(1), arch=sys.argv[1])  # as a program has others before
print("ready", flush=True)
sys.stdin.readline()
jitload.build_inline("together", cuda_sources=kernel_text(0) + sys.argv[2], arch=sys.argv[1])
print(time.time(), flush=True)
sys.stdin.readline()  # the ends of processes are not what is measured
"""


def main() -> None:
    options = read_options()
    machine = machine_line()
    print(machine, flush=True)
    numbers: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="jitload-bench-cache-") as folder:
        cache = Path(folder, "cache")
        hits(numbers, "a small library", cache, options, note="")
        large = f"\n__device__ unsigned char padding[{1 << 20}] = {{1}};\n"
        hits(numbers, "JITLOAD_CACHE_PATH", Path(folder, "local"), options, note="", shared=cache)
        hits(numbers, "a library of 1 MB", cache, options, note=large)
        fill(cache, options.entries)
        hits(numbers, f"a small library among {options.entries} entries", cache, options, note="")
        one = [together(Path(folder, f"one{i}"), 1, options) for i in range(options.samples)]
        numbers["one process, one new key"] = one
        label = f"{options.processes} processes, one new key"
        numbers[label] = [together(Path(folder, f"all{i}"), options.processes, options) for i in range(3)]
    rows = [[name, shown(median(seconds)), shown(p95(seconds)), ""] for name, seconds in numbers.items()]
    rows[-1][3] = f"{median(numbers[label]) / median(one):.2f} x one"
    print_table(COLUMNS, rows)
    write_json(options.json, {"machine": machine, "seconds": numbers})


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__, peers=False)
    parser.add_argument("--samples", type=int, default=10, help="processes of each kind of hit")
    parser.add_argument("--entries", type=int, default=10_000, help="entries of the full cache")
    parser.add_argument("--processes", type=int, default=64, help="processes that want one new key")
    parser.add_argument("--arch", default="sm_90a", help="architecture to compile for")
    return parser.parse_args()


def shown(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def environment(cache: Path, shared: Path | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "JITLOAD_CACHE_DIR": str(cache), "JITLOAD_CACHE_PATH": str(shared or "")}


def command(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code.format(folder=str(Path(__file__).parent)), *map(str, words)]


def hits(  # noqa: PLR0913  what one row is made of
    numbers: dict[str, list[float]],
    what: str,
    cache: Path,
    options: argparse.Namespace,
    *,
    note: str,
    shared: Path | None = None,
) -> None:
    """Measure the first hit of a process and the further ones; the first round builds."""
    first, further = numbers.setdefault(f"first hit, {what}", []), numbers.setdefault(f"further hit, {what}", [])
    count = HITS if not note else 5
    for sample in range(options.samples + 1):
        words = command(CHILD, options.arch, 0, count, note)
        done = subprocess.run(words, env=environment(cache, shared), capture_output=True, text=True, check=True)
        seconds = json.loads(done.stdout.splitlines()[-1])
        if sample:
            first.append(seconds[0])
            further += seconds[1:]


def fill(cache: Path, count: int) -> None:
    """Make a cache large: copies of one entry, under other keys."""
    (leaf,) = list(cache.glob("bench-*/*"))[:1]
    for number in range(count):
        target = cache / f"bench-{number:064x}" / leaf.name
        target.mkdir(parents=True, mode=0o700)
        for name in ("manifest.json", "bench.so"):
            os.link(leaf / name, target / name)


def together(cache: Path, count: int, options: argparse.Namespace) -> float:
    """Return the time in which so many processes have all got one new library; the shared part is there before."""
    words = command(CHILD, options.arch, 1, 1, "")
    subprocess.run(words, env=environment(cache), capture_output=True, check=True)
    waiting = [
        subprocess.Popen(
            command(TOGETHER, options.arch, f"// {time.time_ns()}" if count == 1 else "// all"),
            env=environment(cache),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in waiting:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.time()
    for process in waiting:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ends = [process.stdout.readline() for process in waiting if process.stdout is not None]
    for process in waiting:
        process.communicate("\n")
    if any(process.returncode for process in waiting):
        sys.exit("a process failed")
    return max(map(float, ends)) - start


if __name__ == "__main__":
    main()
