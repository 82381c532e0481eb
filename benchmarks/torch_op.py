"""What does a call of a PyTorch operator cost the host, if it launches one kernel and allocates its result?

The same function is called bare (`torch.empty_like` and the typed function), and as an operator that is registered by
hand with `torch.library`'s define and impl, with `torch.library.custom_op`, with `torch.library.triton_op` (with a GPU
and Triton; its kernel is Triton's) and with `jitload.torch_op`. All of them take turns in one process, and each call is
made as its users make it. With a GPU, the device keeps up: the kernels are small, and the queue is emptied in between.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from common import machine_line, print_table, write_json

import jitload

SOURCE = r"""
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}"""
CALLS, ROUNDS, ELEMENTS = 500, 100, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BASE = "define and impl by hand"
LIBRARY = torch.library.Library("bench", "FRAGMENT")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="a file for the raw numbers")
    options = parser.parse_args()
    machine = machine_line()
    print(machine, flush=True)
    times = measure(make_peers(), options.rounds)
    print_table(("peer", "median µs", "p95", f"over {BASE}"), [row(name, times) for name in times])
    print(f"{ELEMENTS} floats on the {DEVICE}; {options.rounds} rounds of {CALLS} calls, in turn")
    write_json(options.json, {"machine": machine, "microseconds": times})


def make_peers() -> dict[str, Callable[[], object]]:
    """Return the call of each peer."""
    launch = jitload.Launch(grid="ceil_div(n, 128)", block=128, args={"n": "x.numel()"})
    arch = "native" if DEVICE == "cuda" else "cpu"
    add = jitload.load_inline("bench_torch_op", cuda_sources=SOURCE, functions={"add": launch}, arch=arch).add
    empty_like, x = torch.empty_like, torch.ones(ELEMENTS, device=DEVICE)

    def bare(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = empty_like(x)
        add(x, y, z)
        return z

    LIBRARY.define("by_hand(Tensor x, Tensor y) -> Tensor")
    LIBRARY.impl("by_hand", bare, "CompositeExplicitAutograd")
    by_hand_add, custom = (
        torch.ops.bench.by_hand.default,
        torch.library.custom_op("bench::custom", mutates_args=())(bare),
    )
    ours = jitload.torch_op("bench::ours", add, out={"z": "like x"})
    peers: dict[str, Callable[[], object]] = {
        "bare call": lambda: bare(x, x),
        BASE: lambda: by_hand_add(x, x),
        "custom_op": lambda: custom(x, x),
        "jitload.torch_op": lambda: ours(x, x),
        "by hand, through torch.ops": lambda: torch.ops.bench.by_hand(x, x),
        "jitload.torch_op, through torch.ops": lambda: torch.ops.bench.ours(x, x),
    }
    if DEVICE == "cuda" and importlib.util.find_spec("triton"):
        from triton_add import add_with_triton

        peers["triton_op"] = lambda: add_with_triton(x, x)
    else:
        print("triton_op: skipped, it needs a GPU and Triton")
    return peers


def measure(peers: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of a call in each round, for each peer."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(rounds + 2):
        for name, call in peers.items():
            start = perf_counter()
            for _ in range(CALLS):
                call()
            elapsed = perf_counter() - start
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            if number >= 2:  # the first rounds warm up
                times[name].append(elapsed / CALLS * 1e6)
    return times


def row(name: str, times: dict[str, list[float]]) -> tuple[str, ...]:
    """Return a row of the table; the last column is the median of the differences within a round."""
    values = sorted(times[name])
    over = statistics.median(own - base for own, base in zip(times[name], times[BASE], strict=True))
    p95 = values[int(0.95 * (len(values) - 1))]
    return name, f"{statistics.median(values):.2f}", f"{p95:.2f}", "" if name == BASE else f"{over:+.2f}"


if __name__ == "__main__":
    main()
