"""Flash attention in Triton: both masks as variants of one library, with a grid over rows and heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import jitload


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, scale, stride, n, heads, BLOCK: tl.constexpr, HEAD: tl.constexpr,
              CAUSAL: tl.constexpr):  # fmt: skip
    rows, lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, HEAD)
    at = tl.program_id(1) * stride + rows[:, None] * HEAD + lanes[None, :]
    q = tl.load(q_ptr + at, mask=rows[:, None] < n, other=0.0)
    top = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
    weight = tl.zeros([BLOCK], dtype=tl.float32)
    total = tl.zeros([BLOCK, HEAD], dtype=tl.float32)
    end = min((tl.program_id(0) + 1) * BLOCK, n) if CAUSAL else n
    for start in range(0, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inner = tl.program_id(1) * stride + columns[:, None] * HEAD + lanes[None, :]
        k = tl.load(k_ptr + inner, mask=columns[:, None] < n, other=0.0)
        v = tl.load(v_ptr + inner, mask=columns[:, None] < n, other=0.0)
        is_seen = (columns[None, :] < n) & (rows[:, None] >= columns[None, :]) if CAUSAL else columns[None, :] < n
        scores = tl.where(is_seen, tl.dot(q, tl.trans(k)) * (scale * 1.44269504), -float("inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        p, fade = tl.exp2(scores - higher[:, None]), tl.exp2(top - higher)
        weight = weight * fade + tl.sum(p, axis=1)
        total = total * fade[:, None] + tl.dot(p.to(v.dtype), v)
        top = higher
    tl.store(out_ptr + at, (total / weight[:, None]).to(out_ptr.dtype.element_ty), mask=rows[:, None] < n)


mod = jitload.load_triton(
    "attention",
    attention,
    signature="*fp16:16, *fp16:16, *fp16:16, *fp16:16, fp32, i32:16, i32, i32",  # the run-time parameters in order
    constexprs={"BLOCK": 64, "HEAD": 64},
    variants=[{"CAUSAL": False}, {"CAUSAL": True}],
    grid=("ceil_div(n, BLOCK)", "heads"),
    arch="native" if torch.cuda.is_available() else "sm_90a",
)
print(mod)
for function in (mod.attention__CAUSAL_False, mod.attention__CAUSAL_True):
    print(f"{function.kernel}: {function.kernel.registers} registers")

if torch.cuda.is_available():
    q, k, v = torch.randn(3, 12, 1000, 64, dtype=torch.float16, device="cuda")
    for function, is_causal in ((mod.attention__CAUSAL_False, False), (mod.attention__CAUSAL_True, True)):
        out = torch.empty_like(q)
        function(q, k, v, out, 0.125, q.stride(0), 1000, 12)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.125)
        torch.testing.assert_close(out, expected, atol=1e-2, rtol=1e-2)
    print("attention: equal to torch's result on 12 heads of 1000 rows, causal and not")
else:
    print("no GPU here: launching needs one")
