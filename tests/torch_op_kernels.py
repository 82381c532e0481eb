"""Kernels of many signatures, and how each becomes a PyTorch operator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import jitload

SOURCE = r"""
#include <cuda_fp16.h>
#define I (int)(blockIdx.x * blockDim.x + threadIdx.x)
enum Mode { ADD, SUBTRACT };

__global__ void add_one(const float* x, float* y, int n) { int i = I; if (i < n) y[i] = x[i] + 1.0f; }
__global__ void scale_(float* x, float factor, int n) { int i = I; if (i < n) x[i] *= factor; }
__global__ void axpy(const float* x, float* y, double a, long long n) { long long i = I; if (i < n) y[i] += a * x[i]; }
__global__ void bias_gelu(const float* x, const float* bias, float* y, int rows, int columns) {
  int i = I;
  if (i < rows * columns) { float v = x[i] + (bias ? bias[i % columns] : 0); y[i] = v > 0 ? v : 0; }
}
__global__ void row_sum(const float* x, float* y, int rows, int columns) {
  int r = I;
  if (r < rows) { float s = 0; for (int c = 0; c < columns; ++c) s += x[r * columns + c]; y[r] = s; }
}
__global__ void moments(const float* x, float* mean, double* square, int rows, int columns) {
  int r = I;
  if (r >= rows) return;
  float s = 0; double q = 0;
  for (int c = 0; c < columns; ++c) { float v = x[r * columns + c]; s += v; q += v * v; }
  mean[r] = s / columns; square[r] = q / columns;
}
__global__ void histogram(const long long* x, int* counts, int bins, int n) {
  int i = I; if (i < n && x[i] >= 0 && x[i] < bins) atomicAdd(&counts[x[i]], 1);
}
__global__ void iota(float* y, float start, float step, int n) { int i = I; if (i < n) y[i] = start + i * step; }
__global__ void to_half(const float* x, __half* y, int n) { int i = I; if (i < n) y[i] = __float2half(x[i]); }
__global__ void shift(const float4* x, float4* y, float4 by, int n) {
  int i = I; if (i < n) y[i] = {x[i].x + by.x, x[i].y + by.y, x[i].z + by.z, x[i].w + by.w};
}
__global__ void pool(const float* x, float* y, int n, int width) {
  int i = I;
  if (i * width >= n) return;
  float m = x[i * width];
  for (int j = i * width; j < n && j < (i + 1) * width; ++j) m = fmaxf(m, x[j]);
  y[i] = m;
}
__global__ void reads_only(float* x, float* y, int n) { int i = I; if (i < n) y[i] = 2 * x[i]; }
__global__ void swap_(float* x, float* y, int n) { int i = I; if (i < n) { float t = x[i]; x[i] = y[i]; y[i] = t; } }
__global__ void combine(const float* x, const float* y, float* z, Mode mode, bool negate, unsigned char times, int n) {
  int i = I;
  if (i < n) { float v = mode == ADD ? x[i] + y[i] : x[i] - y[i]; z[i] = (negate ? -v : v) * times; }
}
__global__ void bytes_of(const void* x, unsigned char* y, int n) { int i = I; if (i < n) y[i] = ((const char*)x)[i]; }
template <class T> __global__ void square(const T* x, T* y, int n) { int i = I; if (i < n) y[i] = x[i] * x[i]; }
__global__ void maybe(const float* in, float* seen, float* out, int n) {
  int i = I; if (i < n) { out[i] = in[i] - 1; if (seen) seen[i] += 1; }
}
"""


def launch(size: str, **fields: Any) -> jitload.Launch:
    """Return a launch with a thread for each of `size` elements."""
    return jitload.Launch(grid=f"ceil_div({size}, 128)", block=128, **fields)


ELEMENTS = {"n": "x.numel()"}
MATRIX = {"rows": "x.shape[0]", "columns": "x.shape[1]"}
FUNCTIONS = {
    "add_one": launch("n", args=ELEMENTS),
    "scale_": launch("n", args=ELEMENTS),
    "axpy": launch("n", args=ELEMENTS),
    "bias_gelu": launch("rows * columns", args=MATRIX, nullable="bias"),
    "row_sum": launch("rows", args=MATRIX),
    "moments": launch("rows", args=MATRIX),
    "histogram": launch("n", args=ELEMENTS),
    "iota": launch("n"),
    "to_half": launch("n", args=ELEMENTS),
    "shift": launch("n", args={"n": "x.numel() // 4"}),
    "pool": launch("ceil_div(n, width)", args=ELEMENTS),
    "reads_only": launch("n", args=ELEMENTS),
    "swap_": launch("n", args=ELEMENTS),
    "combine": launch("n", args=ELEMENTS),
    "bytes_of": launch("n"),
    "square": [launch("n", args=ELEMENTS, kernel=f"square<{name}>") for name in ("float", "double", "int")],
    "maybe": launch("n", args={"n": "in_.numel()"}, nullable="seen"),
}


class Case(NamedTuple):
    """One kernel as an operator.

    Attributes:
        schema: The schema that is expected.
        args: Arguments of a call.
        expected: Computes from them what the operator returns.
        options: What `torch_op` is told.
    """

    schema: str
    args: tuple[Any, ...]
    expected: Callable[..., Any] | None
    options: dict[str, Any]


LIKE_X = {"out": {"y": "like x"}}
X = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 4
CASES = {
    "add_one": Case("(Tensor x) -> Tensor", (X,), lambda x: x + 1, LIKE_X),
    "scale_": Case("(Tensor(a0!) x, float factor) -> ()", (X.clone(), 2.5), None, {}),
    "axpy": Case("(Tensor x, Tensor(a1!) y, float a) -> ()", (X, X + 1, 3.0), None, {}),
    "bias_gelu": Case("(Tensor x, Tensor? bias) -> Tensor", (X, X[0] - 1), lambda x, b: (x + b).relu(), LIKE_X),
    "row_sum": Case("(Tensor x) -> Tensor", (X,), lambda x: x.sum(1), {"out": {"y": "[x.shape[0]]"}}),
    "moments": Case(
        "(Tensor x) -> (Tensor, Tensor)",
        (X,),
        lambda x: (x.mean(1, keepdim=True), (x * x).double().mean(1)),
        {"out": {"mean": "[x.size(0), 1]", "square": "float64[x.shape[0]]"}},
    ),
    "histogram": Case(
        "(Tensor x, SymInt bins) -> Tensor",
        (torch.tensor([1, 3, 3, 5]), 6),
        lambda x, bins: torch.bincount(x, minlength=6).int(),
        {"out": {"counts": "zeros [bins]"}},
    ),
    "iota": Case(
        "(float start, float step, SymInt n, *, Device? device=None) -> Tensor",
        (1.0, 0.5, 7),
        lambda start, step, n: torch.arange(7) * 0.5 + 1,
        {"out": {"y": "float32[n]"}},
    ),
    "to_half": Case("(Tensor x) -> Tensor", (X,), lambda x: x.half(), {"out": {"y": "float16 like x"}}),
    "shift": Case(
        "(Tensor x, float[] by) -> Tensor", (X, [1.0, 2.0, 3.0, 4.0]), lambda x, b: x + torch.tensor(b), LIKE_X
    ),
    "pool": Case(
        "(Tensor x, SymInt width) -> Tensor",
        (X.flatten(), 5),
        lambda x, width: torch.stack([part.max() for part in x.split(5)]),
        {"out": {"y": "[ceil_div(x.numel(), width)]"}},
    ),
    "reads_only": Case("(Tensor x) -> Tensor", (X,), lambda x: 2 * x, {"out": {"y": "like x"}, "unwritten": "x"}),
    "swap_": Case("(Tensor(a0!) x, Tensor(a1!) y) -> ()", (X.clone(), X + 1), None, {}),
    "combine": Case(
        "(Tensor x, Tensor y, SymInt mode, bool negate, SymInt times) -> Tensor",
        (X, X * X, 1, True, 3),
        lambda x, y, *_: 3 * (y - x),
        {"out": {"z": "like x"}},
    ),
    "bytes_of": Case(
        "(Tensor x, SymInt n) -> Tensor",
        (X, 12),
        lambda x, n: x.flatten().view(torch.uint8)[:12],
        {"out": {"y": "uint8[min(n, 4 * x.numel())]"}},
    ),
    "square": Case("(Tensor x) -> Tensor", (X.double(),), lambda x: x * x, LIKE_X),
    "maybe": Case(
        "(Tensor in_, Tensor(a1!)? seen) -> Tensor", (X, None), lambda x, seen: x - 1, {"out": {"out": "like in_"}}
    ),
}


def load() -> jitload.Module:
    """Return the kernels for the CPU."""
    return jitload.load_inline("torch_op_kernels", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu")


def compiled(program: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the program as one graph of torch's."""
    return torch.compile(program, fullgraph=True, backend="aot_eager", **options)
