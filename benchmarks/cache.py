"""What does a hit cost, with a large library, and in a cache of 10,000 entries; and one new key for many processes?

A hit is `build_inline`: the key, the look into the cache, and the digest of the library; loading is in `warm.py`. Every
sample of a hit is a new process with 50 calls. For "one new key" processes that all have imported jitload, and found
another key, wait for one signal: a pipe that is closed. The clock runs from there until the last has the library; one
process alone and the crowd take turns.

The peers, and jitload once more, load one function of C++ by hand: what all of them do the same way. Their hits are
calls of `load_inline` (torch: `load` of a file that includes nothing), in new processes after the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from cache_peers import FURTHER, PATIENCE_S, PEERS, command, fill, find_modules, together
from children import cache_environment, child_environment
from common import attempt, chosen, machine_line, make_parser, median, p95, print_table, write_json

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
CROWD = """
import os, sys, time
import jitload, jitload.kernels.compilation
sys.path.insert(0, {folder!r})
from sources import kernel_text
jitload.build_inline("bench", cuda_sources=kernel_text(1), arch=sys.argv[1])  # as a program has others before
print("ready", flush=True)
os.read(int(sys.argv[3]), 1)
jitload.build_inline("together", cuda_sources=kernel_text(0) + sys.argv[2], arch=sys.argv[1])
print(time.time(), flush=True)
os.close(1)
sys.stdin.readline()  # the ends of processes are not what is measured
"""


def main() -> None:
    options = read_options()
    machine = machine_line()
    print(machine, flush=True)
    numbers: dict[str, list[float]] = {}
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="jitload-bench-cache-") as folder:
        if "kernels" in options.what:
            measure_kernels(numbers, notes, Path(folder), options)
        for peer in options.what:
            if peer in PEERS:
                _, problem = attempt(partial(measure_peer, numbers, notes, peer, Path(folder, peer), options))
                notes.update({f"{peer}, C++ by hand": problem} if problem else {})
                numbers.update({f"{peer}, C++ by hand": []} if problem else {})
    rows = [
        [name, *([shown(median(seconds)), shown(p95(seconds))] if seconds else ["-", "-"]), notes.get(name, "")]
        for name, seconds in numbers.items()
    ]
    print_table(COLUMNS, rows)
    write_json(options.json, {"machine": machine, "seconds": numbers, "notes": notes})


def measure_kernels(
    numbers: dict[str, list[float]], notes: dict[str, str], folder: Path, options: argparse.Namespace
) -> None:
    cache = folder / "cache"
    hits(numbers, "a small library", cache, options, note="")
    large = f"\n__device__ unsigned char padding[{1 << 20}] = {{1}};\n"
    hits(numbers, "JITLOAD_CACHE_PATH", folder / "local", options, note="", shared=cache)
    hits(numbers, "a library of 1 MB", cache, options, note=large)
    fill_with_entries(cache, options.entries)
    hits(numbers, f"a small library among {options.entries} entries", cache, options, note="")
    one = numbers.setdefault("one process, one new key", [])
    label = f"{options.processes} processes, one new key"
    crowd = numbers.setdefault(label, [])
    for _ in range(options.samples):
        one.append(want_one_key(folder / f"one{len(one)}", 1, options))
        crowd.append(want_one_key(folder / f"crowd{len(crowd)}", options.processes, options))
    notes[label] = ratio(crowd, one)


def measure_peer(
    numbers: dict[str, list[float]], notes: dict[str, str], peer: str, folder: Path, options: argparse.Namespace
) -> None:
    """Measure what the loaders have in common; each process of a loader has three minutes."""
    caches = cache_environment(folder)
    env = {**child_environment(), **caches, "JITLOAD_PRECOMPILE": "0"}
    place = {"jitload": "JITLOAD_CACHE_DIR", "tvm-ffi": "TVM_FFI_CACHE_DIR", "torch": "TORCH_EXTENSIONS_DIR"}[peer]
    Path(caches["TORCH_EXTENSIONS_DIR"]).mkdir(parents=True)
    find_modules(peer, env, 0, 1 + FURTHER)
    for what in ("", f" among {options.peer_entries} entries"):
        if what:
            fill(Path(caches[place]), options.peer_entries)
        found = [find_modules(peer, env, 0, 1 + FURTHER) for _ in range(options.peer_samples)]
        numbers[f"{peer}, C++ by hand, first hit{what}"] = [seconds[0] for seconds in found]
        numbers[f"{peer}, C++ by hand, further hit{what}"] = [s for seconds in found for s in seconds[1:]]
    one = numbers.setdefault(f"{peer}, C++ by hand, one process, one new key", [])
    label = f"{peer}, C++ by hand, {options.peer_processes} processes, one new key"
    crowd = numbers.setdefault(label, [])
    for round_ in range(options.peer_samples):
        one.append(together([command(peer, "want", 100 + round_)], env))
        crowd.append(together([command(peer, "want", 200 + round_)] * options.peer_processes, env))
    notes[label] = ratio(crowd, one)


def ratio(crowd: list[float], one: list[float]) -> str:
    return f"{median(crowd) / median(one):.2f} x one (least: {min(crowd) / min(one):.2f})"


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=10, help="processes of each kind of hit")
    parser.add_argument("--entries", type=int, default=10_000, help="entries of the full cache")
    parser.add_argument("--processes", type=int, default=64, help="processes that want one new key")
    parser.add_argument("--arch", default="sm_90a", help="architecture to compile for")
    parser.add_argument("--peer-samples", type=int, default=3, help="processes of each loader that find C++ by hand")
    parser.add_argument("--peer-entries", type=int, default=2000, help="entries of each loader's full cache")
    parser.add_argument("--peer-processes", type=int, default=8, help="processes of a loader that want one new key")
    options = parser.parse_args()
    options.what = chosen(["kernels", *PEERS], options.peers)
    return options


def shown(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def environment(cache: Path, shared: Path | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "JITLOAD_CACHE_DIR": str(cache), "JITLOAD_CACHE_PATH": str(shared or "")}


def program(code: str, *words: object) -> list[str]:
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
        words = program(CHILD, options.arch, 0, count, note)
        done = subprocess.run(words, env=environment(cache, shared), capture_output=True, text=True, check=True)
        seconds = json.loads(done.stdout.splitlines()[-1])
        if sample:
            first.append(seconds[0])
            further += seconds[1:]


def fill_with_entries(cache: Path, count: int) -> None:
    """Make a cache large: copies of one entry, under other keys."""
    (leaf,) = list(cache.glob("bench-*/*"))[:1]
    for number in range(count):
        target = cache / f"bench-{number:064x}" / leaf.name
        target.mkdir(parents=True, mode=0o700)
        for name in ("manifest.json", "bench.so"):
            os.link(leaf / name, target / name)


def want_one_key(cache: Path, count: int, options: argparse.Namespace) -> float:
    """Return the time in which so many processes have all got one new library; the shared part is there before."""
    words = program(CHILD, options.arch, 1, 1, "")
    subprocess.run(words, env=environment(cache), capture_output=True, check=True, timeout=PATIENCE_S)
    return together([program(CROWD, options.arch, f"// {time.time_ns()}")] * count, environment(cache))


if __name__ == "__main__":
    main()
