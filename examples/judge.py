"""Judge four texts that are said to add one, on the GPU or on the CPU."""

from __future__ import annotations

import torch

import jitload

RIGHT = r"""
extern "C" __global__ void add_one(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}"""
CANDIDATES = {
    "right": RIGHT,
    "wrong": RIGHT.replace("if (i < n)", "if (i < n - 1)"),
    "broken": RIGHT.replace("1.0f;", "1.0f"),
    "timer": "import time\ntime.perf_counter_ns = lambda: 0\ndef add_one(x, y):\n    y.copy_(x + 1)\n",
}
STAGES = {"right": "ok", "wrong": "wrong", "broken": "compile", "timer": "cheat"}
FUNCTIONS = {"add_one": jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(100_000, device=DEVICE), torch.empty(100_000, device=DEVICE)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # noqa: ARG001  the name of the output
    return x + 1


def main() -> None:
    items = [{"candidate": text, "name": name} for name, text in CANDIDATES.items()]
    with jitload.Judge(reference=add, inputs=make_inputs, timeout=120, seconds=0.1) as judge:
        verdicts = list(judge.map(items, FUNCTIONS))
    for verdict in verdicts:
        print(verdict)
    assert {verdict.name: verdict.stage for verdict in verdicts} == STAGES
    print("judge: one of 4 candidates is right")


if __name__ == "__main__":
    main()
