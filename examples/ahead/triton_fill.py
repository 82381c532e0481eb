"""`jitload prebuild examples/ahead/triton_fill.py --arch sm_90`: a Triton kernel with several block sizes, no GPU."""

import triton
import triton.language as tl


@triton.jit
def fill(x, value, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, value, mask=offsets < n)


def request(block: int) -> dict:
    """Return the arguments of `load_triton`, and of `prebuild`, too."""
    signature = {"x": "*fp32:16", "value": "fp32", "n": "i32"}
    return {
        "name": f"fill_{block}",
        "kernel": fill,
        "signature": signature,
        "constexprs": {"BLOCK": block},
        "grid": "ceil_div(n, BLOCK)",
    }


# What the command looks for: a list, or a function that returns one.
REQUESTS = [request(256), request(1024)]
