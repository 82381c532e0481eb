"""Build a Triton kernel for two architectures into one file, and use it from a process that has no Triton."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import triton
import triton.language as tl

import jitload


@triton.jit
def scale(x_ptr, y_ptr, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * factor, mask=offsets < n)


USER = """
import sys
sys.modules["triton"] = sys.modules["jitload"] = None  # neither is needed, and neither can be imported here
import torch, tvm_ffi
mod = tvm_ffi.load_module(sys.argv[1])
if torch.cuda.is_available():
    x = torch.randn(100_000, device="cuda")
    y = torch.empty_like(x)
    mod.scale(x, y, 3.0, x.numel())
    assert torch.equal(y, 3 * x)
    print("scale: equal to torch's result on 100000 elements")
else:
    print("no GPU here: launching needs one")
"""

with tempfile.TemporaryDirectory() as directory:
    mod = jitload.load_triton(
        "shipped",
        scale,
        signature={"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "factor": "fp32", "n": "i32"},
        constexprs={"BLOCK": 1024},
        grid="ceil_div(n, BLOCK)",
        arch=("sm_80", "sm_90"),
        build_directory=directory,
    )
    print(f"{mod.scale.kernel}: {mod.scale.kernel.registers} registers")
    library = Path(directory) / "shipped.so"
    print(f"{library.name}: {library.stat().st_size // 1024} kB", flush=True)
    subprocess.run([sys.executable, "-c", USER, str(library)], check=True)
