"""How the libraries of the real kernels are asked for; the grids are written as people write them for Triton."""

from typing import Any

import triton
import triton_kernels as kernels
from triton_support import ADD, DESCRIPTORS, PERSISTENT

SOFTMAX = {
    "x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "x_stride": "i32", "out_stride": "i32", "n_rows": "i32",
    "n_cols": "i32",
}  # fmt: skip
HISTOGRAM = {"values_ptr": "*i32:16", "counts_ptr": "*i32:16", "n": "i32"}
PROGRAMS = PERSISTENT["PROGRAMS"]

LIBRARIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "vector_add": (
        kernels.vector_add,
        {"signature": ADD, "BLOCK": 1024, "grid": lambda META: (triton.cdiv(META["n"], META["BLOCK"]),)},
    ),
    "softmax": (kernels.softmax, {"signature": SOFTMAX, "BLOCK": 1024, "grid": "n_rows"}),
    "histogram": (kernels.histogram, {"signature": HISTOGRAM, "BLOCK": 512, "grid": "ceil_div(n, BLOCK)"}),
    "persistent_matmul": (
        kernels.persistent_matmul,
        {
            "signature": DESCRIPTORS,
            "constexprs": PERSISTENT,
            "num_warps": 8,
            "grid": lambda m: (min(PROGRAMS, triton.cdiv(m["M"], m["BLOCK_M"]) * triton.cdiv(m["N"], m["BLOCK_N"])),),
        },
    ),
    "device_descriptor_copy": (
        kernels.device_descriptor_copy,
        {
            "signature": {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "M": "i32", "N": "i32:16"},
            "constexprs": {"BLOCK_M": 64, "BLOCK_N": 64},
            "grid": ("ceil_div(M, BLOCK_M)", "ceil_div(N, BLOCK_N)"),
        },
    ),
}  # fmt: skip
