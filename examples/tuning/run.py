"""Tune the five kernels of this directory: python examples/tuning/run.py [NAME …] [--seconds 5] [--results DIRECTORY].

For each of them, NAME.json gets the measurements on this GPU beside those of other GPUs, and NAME.txt their tables.
Then the kernel is loaded with its choices, and checked once more. Without a GPU, smaller tensors are tuned on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

import jitload

NAMES = ("elementwise", "reduction", "transpose", "stencil", "gemm")


def load(example: ModuleType, device: str, tuned: Path | None = None) -> jitload.Module:
    return jitload.load_inline(
        example.__name__,
        cuda_sources=example.SOURCE,
        functions=example.FUNCTIONS,
        extra_cuda_cflags=example.OPTIONS,
        arch="native" if device == "cuda" else "cpu",
        tuned=tuned,
    )


def tune(example: ModuleType, results: Path, seconds: float) -> jitload.Tuning:
    """Tune a kernel for each key, save and print the measurements, and check the kernel with its choices."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path, started = results / f"{example.__name__}.json", time.perf_counter()
    (function,) = load(example, device)
    mod = load(example, device)
    found = jitload.Tuning([])
    for args in example.arguments(device):
        options = {"reference": example.reference, "flop": example.flop(args), "rtol": 1e-2, "atol": 1e-3}
        found |= mod[function].tune(*args, seconds=seconds, **options)
    found.save(path)
    (results / f"{example.__name__}.txt").write_text(f"{jitload.Tuning.load(path)}\n", encoding="utf-8")
    print(found)
    frozen = load(example, device, path)
    for args in example.arguments(device):
        assert frozen[function].variant(*args).how == "tuned"
        frozen[function](*args)
        torch.testing.assert_close(args[-1], example.reference(*args), rtol=1e-2, atol=1e-3)
    print(f"{example.__name__}: {len(found.choices)} choices in {time.perf_counter() - started:.1f} s, in {path}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.names or NAMES:
        tune(importlib.import_module(name), options.results, options.seconds)


if __name__ == "__main__":
    main()
