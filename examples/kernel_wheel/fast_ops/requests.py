"""What is built: the arguments of `jitload.load`, and the architectures that the wheel has."""

from pathlib import Path

import jitload

ARCHS = ("cpu", "sm_80", "sm_90a")
REQUEST = {
    "name": "fast_ops",
    "sources": [str(Path(__file__).parent / "kernels" / "fast_ops.cu")],
    "functions": {"scale": jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})},
}
