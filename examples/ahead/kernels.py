"""`jitload prebuild examples/ahead/kernels.py --arch sm_80 --arch sm_90a`: one source with two sizes, no GPU.

A call of `jitload.load()` with the same arguments finds what this builds.
"""

from pathlib import Path

import jitload

SOURCE = Path(__file__).with_name("row_sums.cu")
LAUNCH = jitload.Launch(grid="ceil_div(rows, 256)", block=256, args={"rows": "sums.numel()"})
REQUESTS = [
    {"name": name, "sources": SOURCE, "extra_cuda_cflags": flags, "functions": {"row_sums": LAUNCH}}
    for name, flags in (
        ("row_sums", ["-DCOLUMNS=64"]),
        ("row_sums_wide", ["-DCOLUMNS=256", "--use_fast_math"]),
    )
]
