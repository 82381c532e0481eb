"""What does the first build of a trivial kernel cost, in a new process, until it can be called?

Every sample is a new process with empty caches; the peers take turns. The clock starts after the peer's imports
(jitload: with tvm-ffi and torch imported, as a program with tensors has them) and, where there is a GPU, after CUDA's
initialisation. A used cache has seen other kernels, so that the part of a library that all kernels share is there.
Bare NVRTC is nvrtcCompileProgram and the reading of the cubin, with and without the loading of the library.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from children import COLUMNS, Results, Row, answer, child_parser, raw_numbers, run_child, table, wanted_peers
from cold_peers import PEERS
from common import machine_line, print_table, set_build_environment, write_json

_NVRTC = "bare NVRTC, its loading counted"
_FURTHER = "bare NVRTC, each further kernel"
_SIXTEEN = "bare NVRTC, 16 kernels in one source"
ROWS = [
    Row(label=_NVRTC, peer="nvrtc", metric="with load"),
    Row(label="bare NVRTC, loaded before", peer="nvrtc", metric="first"),
    Row(label="jitload, empty cache", peer="jitload", metric="first", base=_NVRTC),
    Row(label="jitload, used cache", peer="jitload-used-cache", metric="first", base=_NVRTC),
    Row(label="jitload, empty, all imports counted", peer="jitload-with-imports", metric="first", base=_NVRTC),
    Row(label="cuda.core Program", peer="cuda.core", metric="first", base=_NVRTC),
    Row(label="CuPy RawKernel", peer="cupy", metric="first", base=_NVRTC),
    Row(label="torch _compile_kernel", peer="torch-compile_kernel", metric="first", base=_NVRTC),
    Row(label="Triton JIT", peer="triton", metric="first"),
    Row(label="tvm-ffi wrapper, host compiler", peer="tvm-ffi-cpp", metric="first", base=_NVRTC),
    Row(label="tvm-ffi wrapper, nvcc (its guide)", peer="tvm-ffi-nvcc", metric="first", base=_NVRTC),
    Row(label="torch load_inline, nvcc", peer="torch-load_inline", metric="first"),
    Row(label=_FURTHER, peer="nvrtc", metric="further"),
    Row(label="jitload, each further kernel", peer="jitload", metric="further", base=_FURTHER),
    Row(label=_SIXTEEN, peer="nvrtc", metric="sixteen"),
    Row(label="jitload, 16 kernels in one source", peer="jitload", metric="sixteen", base=_SIXTEEN),
]
QUICK = ["nvrtc", "jitload"]


def main() -> None:
    options = read_options()
    set_build_environment(options.arch)
    if options.child:
        answer(lambda: PEERS[options.child](options.arch, options.salt))
        return
    machine = machine_line()
    print(machine, flush=True)
    results = measure(wanted_peers(ROWS, options, QUICK), options)
    print_table(COLUMNS, table(ROWS, results))
    print(
        f"arch {options.arch}, {options.samples} processes a peer; the p95 of fewer than 20 samples is the largest.\n"
        "Base: bare NVRTC, its loading counted; for further kernels and 16 kernels the row of bare NVRTC right above"
    )
    write_json(options.json, raw_numbers("cold", machine, ROWS, results))


def read_options() -> argparse.Namespace:
    parser = child_parser(__doc__, PEERS, quick="only NVRTC and jitload", samples=5)
    parser.add_argument("--salt", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(peers: list[str], options: argparse.Namespace) -> Results:
    """Run every peer `samples` times in turn, after one round of the quick ones that only warms the machine up."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="jitload-cold-") as folder:
        for sample, peer in results.rounds(peers, options.samples):
            if sample > 0 or peer.split("-")[0] in QUICK:
                run_peer(results, peer, Path(folder), sample, options.arch)
    return results


def run_peer(results: Results, peer: str, folder: Path, sample: int, arch: str) -> None:
    """Run one process; that of round 0 warms up and fills the cache that is used later."""
    cache = folder / ("used" if peer == "jitload-used-cache" else f"{peer}-{sample}")
    child = run_child(__file__, peer, cache, {"arch": arch, "salt": 1000 * (sample + 1)})
    results.add(peer, *child, is_warm_up=sample == 0)


if __name__ == "__main__":
    main()
