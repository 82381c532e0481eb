"""The answers of judge.py: right, wrong and broken ones to a problem in the form of KernelBench."""

from __future__ import annotations

from typing import NamedTuple

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
_MODEL = """
class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        FORWARD
"""
_JITLOAD = '''
import jitload, torch

KERNELS = r"""
extern "C" __global__ void relu(const float* x, float* y, float scale, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) BODY;
}"""
mod = jitload.load_inline("relu", cuda_sources=KERNELS, arch="cpu", functions={"relu": jitload.Launch(
    grid="ceil_div(n, BLOCK)", block=BLOCK, args={"n": "x.numel()"})})
''' + _MODEL.replace("FORWARD", "y = torch.empty_like(x)\n        mod.relu(x, y, self.scale)\n        return y")
_TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def relu_NUMBER(x, y, scale, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(BODY, mask=i < n)
""" + _MODEL.replace(
    "FORWARD",
    "y, n = torch.empty_like(x), x.numel()\n"
    "        relu_NUMBER[(triton.cdiv(n, BLOCK),)](x, y, self.scale, n, B=BLOCK, num_warps=WARPS)\n"
    "        return y",
)
_TORCH = "import torch\n\nside = torch.cuda.Stream() if torch.cuda.is_available() else None\n" + _MODEL
_EXTENSION = '''
import torch
from torch.utils.cpp_extension import load_inline

cuda = r"""
#include <torch/extension.h>
__global__ void relu_kernel(const float* x, float* y, float scale, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) BODY;
}
torch::Tensor relu(torch::Tensor x, double scale) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    relu_kernel<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x.data_ptr<float>(), y.data_ptr<float>(), scale, n);
    return y;
}"""
mod = load_inline(name="relu_NUMBER", cpp_sources="torch::Tensor relu(torch::Tensor x, double scale);",
                  cuda_sources=cuda, functions=["relu"])
''' + _MODEL.replace("FORWARD", "return mod.relu(x, self.scale)")
_CUDA_BODIES = {
    "right": "y[i] = fmaxf(x[i], 0.0f) * scale",
    "right, other": "y[i] = x[i] > 0 ? x[i] * scale : 0",
    "wrong": "y[i] = fmaxf(x[i], 0.0f)",
    "does not compile": "y[i] = fmaxf(x[i], 0.0f) * scal",
    "illegal address": "y[i + (1LL << 40)] = x[i]",
}
_TRITON_BODIES = {
    "right": "y + i, tl.maximum(v, 0.0) * scale",
    "right, other": "y + i, tl.where(v > 0, v * scale, 0.0)",
    "wrong": "y + i, tl.maximum(v, 0.0)",
    "does not compile": "y + i, tl.maximum(v, 0.0) * scal",
    "illegal address": "y + (i.to(tl.int64) + (1 << 40)), v",
}
_TORCH_BODIES = {
    "the reference": "return torch.relu(x) * self.scale",
    "the reference, other": "return torch.where(x > 0, x * self.scale, torch.zeros_like(x))",
    "wrong": "return torch.relu(x)",
    "an error": "return torch.relo(x) * self.scale",
    "the first result again": "self.y = getattr(self, 'y', torch.relu(x) * self.scale)\n        return self.y",
}
_STREAM = "with torch.cuda.stream(side):\n            y = x.clamp(min=0) * self.scale\n        return y"


class Answer(NamedTuple):
    """A text, what kind it is, and what is wrong with it."""

    kind: str
    defect: str
    text: str


def make_answers(count: int, *, extensions: int, has_gpu: bool) -> list[Answer]:
    """Return answers: three of four have a kernel, and the others only call torch. The last ones are extensions."""
    answers = [
        _torch(n // 4, has_gpu=has_gpu) if n % 4 == 3 else _kernel(n - n // 4, has_gpu=has_gpu) for n in range(count)
    ]
    return [*answers[: count - extensions], *map(_extension, range(min(count, extensions)))]


def _pick(bodies: dict[str, str], number: int) -> tuple[str, str]:
    return [*bodies.items()][number % len(bodies)]


def _kernel(number: int, *, has_gpu: bool) -> Answer:
    defect, body = _pick(_TRITON_BODIES if has_gpu else _CUDA_BODIES, number)
    variant = number // len(_CUDA_BODIES)
    block, warps = (64 << variant % 5, 1 << variant // 5 % 4) if has_gpu else (32 * (1 + variant % 32), 1)
    text = (_TRITON if has_gpu else _JITLOAD).replace("BODY", body)
    kind = "Triton" if has_gpu else "jitload on the CPU"
    return Answer(
        kind, defect, text.replace("BLOCK", str(block)).replace("WARPS", str(warps)).replace("NUMBER", str(number))
    )


def _torch(number: int, *, has_gpu: bool) -> Answer:
    defect, body = _pick({**_TORCH_BODIES, **({"another stream": _STREAM} if has_gpu else {})}, number)
    return Answer("torch", defect, f"# {number}\n{_TORCH.replace('FORWARD', body)}")


def _extension(number: int) -> Answer:
    defect, body = _pick(_CUDA_BODIES, number)
    text = _EXTENSION.replace("BODY", body).replace("NUMBER", str(number)).replace("BLOCK", str(32 << number % 5))
    return Answer("extension", defect, text)
