"""Take a Triton kernel into a library that launches it without Triton, and see what it was specialised for."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import jitload


@triton.jit
def square(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Write the square of each element."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x * x, mask=offsets < n)


arch = "native" if torch.cuda.is_available() else "sm_90a"
aligned = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "n": "i32"}  # :16 promises a multiple of 16, and is checked
mod = jitload.load_triton(
    "squares",
    square,
    signature=aligned,
    constexprs={"BLOCK": 1024},
    # The first variant that the arguments fit runs: fast code for aligned tensors, safe code for all others.
    variants=[{}, {"signature": {"x_ptr": "*fp32", "y_ptr": "*fp32"}}],
    grid=lambda META: (triton.cdiv(META["n"], META["BLOCK"]),),  # or grid="ceil_div(n, BLOCK)"
    arch=arch,
)
print(mod)
for name in ("square__variant_0", "square__x_ptr_fp32__y_ptr_fp32"):
    print(f"{mod[name].kernel}: {mod[name].kernel.registers} registers")

facts = jitload.extract_triton(square, signature=aligned, BLOCK=1024, arch=arch).triton
assumed = ", ".join(f"{a.parameter} {a.kind.replace('_', ' ')} {a.value}" for a in facts.assumptions)
print(f"Triton {facts.triton_version}: {facts.num_warps} warps, {facts.hidden_pointers} hidden pointers, {assumed}")

if torch.cuda.is_available():
    x = torch.randn(100_001, device="cuda")
    y = torch.empty_like(x)
    mod.square(x, y, x.numel())
    assert torch.equal(y, x * x)
    mod.square(x[1:], y[1:], x.numel() - 1)  # not aligned: the second variant
    assert torch.equal(y, x * x)
    print("square: equal to torch's result on 100001 elements")
else:
    print("no GPU here: launching needs one")
