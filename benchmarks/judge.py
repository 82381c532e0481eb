"""How long does a verdict take? Judges answers to a problem in KernelBench's form, made from templates.

Run: python benchmarks/judge.py [COUNT]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import torch
from common import machine_line

import jitload

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x) * self.scale

def get_inputs():
    return [torch.rand(64, 4096) - 0.5]

def get_init_inputs():
    return [2.0]
"""
ANSWER = '''
import jitload, torch

KERNELS = r"""
extern "C" __global__ void relu(const float* x, float* y, float scale, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) BODY;
}"""
mod = jitload.load_inline("relu", cuda_sources=KERNELS, arch="ARCH", functions={"relu": jitload.Launch(
    grid="ceil_div(n, BLOCK)", block=BLOCK, args={"n": "x.numel()"})})

class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        mod.relu(x, y, self.scale)
        return y
'''
BODIES = (
    "y[i] = fmaxf(x[i], 0.0f) * scale",
    "y[i] = x[i] > 0 ? x[i] * scale : 0",
    "y[i] = fmaxf(x[i], 0.0f)",
    "y[i] = fmaxf(x[i], 0.0f) * scal",
    "y[i + (1LL << 40)] = x[i]",
)


def answers(count: int) -> list[str]:
    arch = "native" if torch.cuda.is_available() else "cpu"
    texts = []
    for number in range(count):
        block = 32 * (1 + number // len(BODIES) % 32)
        text = ANSWER.replace("BODY", BODIES[number % len(BODIES)]).replace("BLOCK", str(block))
        texts.append(text.replace("ARCH", arch))
    return texts


def main() -> None:
    print(machine_line())
    texts = answers(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    with tempfile.TemporaryDirectory() as directory:
        problem = Path(directory, "problem.py")
        problem.write_text(PROBLEM)
        started = time.perf_counter()
        with jitload.Judge(reference=problem, seconds=0.1, timeout=60, remember=False) as judge:
            first = judge.run(texts[0])
            print(f"until the first verdict: {time.perf_counter() - started:.2f} s ({first})")
            for workers in (1, 4):
                started = time.perf_counter()
                verdicts = list(judge.map(texts, workers=workers))
                elapsed = (time.perf_counter() - started) / len(texts)
                print(f"{workers} workers: {elapsed:.3f} s for each of {len(texts)} verdicts, ", end="")
                print(f"median {median(v.seconds for v in verdicts):.3f} s", dict(Counter(v.stage for v in verdicts)))


if __name__ == "__main__":
    main()
