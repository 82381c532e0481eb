"""An autotuned Triton kernel, and what makes one of another kernel, importable where there is no GPU."""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


def tuned(*configs: triton.Config) -> Callable[[Any], Any]:
    """Return the decorator for a kernel tuned for its sizes."""

    def decorate(kernel: Any) -> Any:
        sizes = [name for name in kernel.arg_names if name in ("n", "M")]
        return triton.autotune(list(configs), sizes)(kernel)

    return decorate


@tuned(triton.Config({"BLOCK": 512}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8))
@triton.jit
def tuned_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)
