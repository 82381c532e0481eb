"""What does a kernel cost in a new process when its build lies on disk, and what does the same call cost once more?

Every sample is a new process; the peers take turns. The clock starts after the peer's imports, those of tvm-ffi and
torch among them. CUDA is initialised before it by all peers that need it to load; jitload with its arch given does not.
With `native`, jitload initialises CUDA itself and the clock counts that.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from children import COLUMNS, Results, Row, answer, child_parser, raw_numbers, run_child, table, wanted_peers
from common import machine_line, print_table, set_build_environment, write_json
from warm_peers import ENTRIES, HEADERS, PEERS

ROWS = [
    Row(label="jitload, first hit", peer="jitload", metric="first"),
    Row(label="jitload, each further hit", peer="jitload", metric="further"),
    Row(label="jitload, the same call again", peer="jitload", metric="same"),
    Row(label=f"jitload, {HEADERS} user headers, first hit", peer="jitload-headers", metric="first"),
    Row(label=f"jitload, {HEADERS} user headers, further", peer="jitload-headers", metric="further"),
    Row(label=f"jitload, {HEADERS} user headers, same again", peer="jitload-headers", metric="same"),
    Row(label="jitload, native, first hit, cuInit counted", peer="jitload-native", metric="first"),
    Row(label="jitload, native, the same call again", peer="jitload-native", metric="same"),
    Row(label="jitload, Triton kernel, first hit", peer="jitload-triton", metric="first"),
    Row(label="jitload, Triton kernel, same again", peer="jitload-triton", metric="same"),
    Row(label="tvm-ffi cpp.load_inline, first hit", peer="tvm-ffi", metric="first"),
    Row(label="tvm-ffi cpp.load_inline, same again", peer="tvm-ffi", metric="same"),
    Row(label="CuPy RawKernel, first hit", peer="cupy", metric="first"),
    Row(label="CuPy RawKernel, same again", peer="cupy", metric="same"),
    Row(label="torch load_inline, first hit", peer="torch-load_inline", metric="first"),
    Row(label="torch load_inline, same again", peer="torch-load_inline", metric="same"),
    Row(label="Triton JIT, first hit", peer="triton", metric="first"),
]
QUICK = ["jitload"]
OTHERS = 5  # processes of the other peers, at most: each imports torch


def main() -> None:
    options = read_options()
    set_build_environment(options.arch)
    if options.child:
        answer(lambda: PEERS[options.child](options.arch))
        return
    machine = machine_line()
    print(machine, flush=True)
    results = measure(wanted_peers(ROWS, options, QUICK), options)
    print_table(COLUMNS, table(ROWS, results))
    print(
        f"arch {options.arch}, {options.samples} processes a peer, {ENTRIES} further entries in each; "
        "cuda.core and torch's _compile_kernel keep nothing on disk"
    )
    write_json(options.json, raw_numbers("warm", machine, ROWS, results))


def read_options() -> argparse.Namespace:
    return child_parser(__doc__, PEERS, quick="only jitload", samples=10).parse_args()


def measure(peers: list[str], options: argparse.Namespace) -> Results:
    """Fill every peer's cache by one process, then run every peer `samples` times in turn."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="jitload-warm-") as folder:
        for sample, peer in results.rounds(peers, options.samples):
            if sample <= OTHERS or peer.startswith("jitload") or peer == "tvm-ffi":
                run_peer(results, peer, Path(folder, peer), sample, options.arch)
    return results


def run_peer(results: Results, peer: str, cache: Path, sample: int, arch: str) -> None:
    """Run one process; that of round 0 fills the cache."""
    before = libraries(cache)
    numbers, problem = run_child(__file__, peer, cache, {"arch": arch})
    if sample > 0 and not problem and (new := len(libraries(cache) - before)):
        problem = f"{new} libraries were built in round {sample}, not found: was jitload changed meanwhile?"
    results.add(peer, {} if problem else numbers, problem, is_warm_up=sample == 0)


def libraries(cache: Path) -> set[Path]:
    """Return what lies in the peer's caches as a built library."""
    return set(cache.rglob("*.so"))


if __name__ == "__main__":
    main()
