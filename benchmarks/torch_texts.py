"""What does a PyTorch extension source cost to build: with jitload's headers, and with torch's own `load_inline`?

Each text is built in one process per peer, after a first text that is not counted, as programs that write kernels do.
After the first CUDA text, jitload's process waits until the precompiled header is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from common import machine_line

CPP = """
torch::Tensor scaled_sum_{n}(torch::Tensor x, double alpha) {{
  TORCH_CHECK(x.dim() == 2, "x must be 2D, got ", x.sizes());
  return (x * alpha).sum(1) + {n};
}}
"""
CUDA = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void add_kernel_{n}(const float* a, const float* b, float* out, int size) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) out[i] = a[i] + b[i] + {n};
}}

torch::Tensor add_{n}(torch::Tensor a, torch::Tensor b) {{
  auto out = torch::zeros_like(a);
  int size = a.numel();
  add_kernel_{n}<<<(size + 255) / 256, 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), size);
  return out;
}}
"""
PROGRAM = """
import json, sys, time, timeit
import torch
peer, kind, count, cpp, cuda = json.loads(sys.argv[1])
if peer == "jitload":
    from jitload.cpp_extension import load_inline
else:
    from torch.utils.cpp_extension import load_inline
seconds = []
for n in range(count + 1):
    keywords = {"use_pch": True} if peer == "torch, use_pch" else {}
    name = f"add_{n}" if kind == "CUDA" else f"scaled_sum_{n}"
    declaration = f"torch::Tensor {name}(torch::Tensor a, torch::Tensor b);"
    sources = (declaration, cuda.format(n=n)) if kind == "CUDA" else (cpp.format(n=n),)
    start = time.perf_counter()
    module = load_inline(f"text_{n}", *sources, functions=[name], **keywords)
    seconds.append(time.perf_counter() - start)
    if (peer, kind, n) == ("jitload", "CUDA", 0):
        from children import wait_until_precompiled
        wait_until_precompiled()
call = None
if kind == "C++":
    x, function = torch.ones(2, 3), getattr(module, name)
    call = min(timeit.repeat(lambda: function(x, 0.5), number=2000, repeat=5)) / 2000
print(json.dumps([seconds, call]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3, help="texts that are counted")
    parser.add_argument("--peers", default="jitload,torch,torch, use_pch", help="jitload, torch or torch, use_pch")
    parser.add_argument("--kinds", default="C++,CUDA")
    arguments = parser.parse_args()
    print(machine_line())
    print(f"{'text':6}{'peer':18}{'first':>8}{'median of further':>20}{'call':>10}")
    peers = [peer for peer in ("jitload", "torch", "torch, use_pch") if peer in arguments.peers]
    for kind in arguments.kinds.split(","):
        for peer in peers:
            report(kind, peer, arguments.count)


def report(kind: str, peer: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = filter(None, (os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH")))
        environment = {
            **os.environ,
            "JITLOAD_CACHE_DIR": directory,
            "TORCH_EXTENSIONS_DIR": directory,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        command = [sys.executable, "-c", PROGRAM, json.dumps([peer, kind, count, CPP, CUDA])]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"{kind:6}{peer:18}  {result.stderr.strip().splitlines()[-1][:80]}")
        return
    seconds, call = json.loads(result.stdout.splitlines()[-1])
    further = sorted(seconds[1:])[len(seconds[1:]) // 2]
    print(f"{kind:6}{peer:18}{seconds[0]:6.2f} s{further:18.2f} s" + (f"{call * 1e6:7.2f} µs" if call else ""))


if __name__ == "__main__":
    main()
