"""What does a call of a PyTorch extension source cost: built with jitload's headers, and by torch's own `load_inline`?

One text has all functions. Both builds run in this process, in turns; the best of the turns counts.
"""

from __future__ import annotations

import argparse
import os
import timeit
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.cpp_extension
from common import machine_line

import jitload.cpp_extension

# The name of a function, its parameters, its body, and the arguments of a call.
FUNCTIONS = (
    ("identity", "torch::Tensor x", "return x;", "x"),
    ("numbers", "int64_t n, double a, bool flag", "return flag ? n + a : 0.0;", "3, 0.5, True"),
    ("metadata", "torch::Tensor x", "return x.numel() + x.size(1) * x.stride(0) + x.dim();", "x"),
    (
        "checks",
        "torch::Tensor x",
        (
            'TORCH_CHECK(x.dim() == 2, "2D"); TORCH_CHECK(x.is_contiguous(), "contiguous"); '
            "TORCH_CHECK(x.scalar_type() == torch::kFloat); return x;"
        ),
        "x",
    ),
    ("empty_like", "torch::Tensor x", "return torch::empty_like(x);", "x"),
    ("zeros_like", "torch::Tensor x", "return torch::zeros_like(x);", "x"),
    ("empty", "torch::Tensor x", "return torch::empty({x.size(0), x.size(1)}, x.options());", "x"),
    ("zeros", "torch::Tensor x", "return torch::zeros({x.size(0), x.size(1)}, x.options());", "x"),
    (
        "zeros_with",
        "torch::Tensor x",
        "return torch::zeros({4, 2}, torch::TensorOptions().dtype(torch::kFloat32).device(x.device()));",
        "x",
    ),
    ("full", "torch::Tensor x", "return torch::full({4}, 1.5, x.options());", "x"),
    ("item", "torch::Tensor x", "return x.item<float>();", "scalar"),
    ("element", "torch::Tensor x", "return x[1][2].item<float>();", "x"),
    ("row", "torch::Tensor x", "return x[1];", "x"),
    ("contiguous", "torch::Tensor x", "return x.contiguous();", "x.t()"),
    ("convert", "torch::Tensor x", "return x.to(torch::kFloat64);", "x"),
    ("view", "torch::Tensor x", "return x.view({-1});", "x"),
    ("transpose", "torch::Tensor x", "return x.transpose(0, 1);", "x"),
    ("add", "torch::Tensor a, torch::Tensor b", "return a + b;", "x, x"),
    ("scale", "torch::Tensor x, double a", "return x * a;", "x, 0.5"),
    ("in_place", "torch::Tensor x", "x += 1; return x;", "x"),
    ("sum", "torch::Tensor x", "return x.sum(1);", "x"),
    ("mean", "torch::Tensor x", "return x.mean();", "x"),
    ("matmul", "torch::Tensor a, torch::Tensor b", "return torch::matmul(a, b);", "x, x.t()"),
    ("relu", "torch::Tensor x", "return torch::relu(x);", "x"),
    ("softmax", "torch::Tensor x", "return torch::softmax(x, 1);", "x"),
    ("maximum", "torch::Tensor x", "return std::get<0>(x.max(1));", "x"),
    ("concatenate", "std::vector<torch::Tensor> list", "return torch::cat(list, 0);", "[x, x]"),
    ("several", "torch::Tensor x", "return std::vector<torch::Tensor>{x, x};", "x"),
    ("chain", "torch::Tensor x", "return (x - x.mean()) / (x.var() + 1e-5).sqrt();", "x"),
)


def source() -> str:
    """Return the text."""
    functions = (f"auto {name}({parameters}) {{ {body} }}" for name, parameters, body, _ in FUNCTIONS)
    return "#include <torch/extension.h>\n" + "\n".join(functions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--number", type=int, default=2000, help="calls of a turn")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--cflags", default="", help="options of both compilers")
    parser.add_argument("names", nargs="*", help="functions; default: all")
    options = parser.parse_args()
    names = [name for name, *_ in FUNCTIONS]
    keywords: dict[str, Any] = {"functions": names, "extra_cflags": options.cflags.split()}
    peers = [jitload.cpp_extension.load_inline, torch.utils.cpp_extension.load_inline]
    modules = [load("torch_calls", source(), **keywords) for load in peers]
    x = torch.rand(4, 8, device=options.device)
    scope = {"x": x, "scalar": x[0, 0].clone()}
    print(machine_line())
    print(f"{'call':14}{'jitload':>12}{'torch':>12}")
    for name, _, _, arguments in FUNCTIONS:
        if not options.names or name in options.names:
            values = eval(f"({arguments},)", scope)
            ours, theirs = measure([getattr(module, name) for module in modules], values, options)
            print(f"{name:14}{ours * 1e6:9.2f} µs{theirs * 1e6:9.2f} µs  {'' if ours <= theirs else 'slower'}".rstrip())


def measure(functions: list[Callable[..., Any]], values: tuple[Any, ...], options: argparse.Namespace) -> list[float]:
    """Return the seconds of a call of each function."""
    best = [float("inf")] * len(functions)
    for _ in range(options.turns):
        for index, function in enumerate(functions):
            timer = timeit.Timer(lambda function=function: function(*values))
            best[index] = min(best[index], timer.timeit(options.number) / options.number)
            if values[0].__class__ is torch.Tensor and values[0].is_cuda:
                torch.cuda.synchronize()
    return best


if __name__ == "__main__":
    os.environ.setdefault("MAX_JOBS", "2")
    main()
