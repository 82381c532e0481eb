"""What is built: the arguments of `jitload.load`, and the architectures that the wheel has. TUNE is what is tuned."""

from pathlib import Path

import jitload

ARCHS = ("cpu", "sm_80", "sm_90a")
REQUEST = {
    "name": "fast_ops",
    "sources": [str(Path(__file__).parent / "kernels" / "fast_ops.cu")],
    "functions": {
        "scale": jitload.Launch(
            kernel="scale<{V}>",
            grid="ceil_div(n, B * V)",
            block="B",
            args={"n": "x.numel()"},
            tune=jitload.Tune(B=(128, 256, 512), V=(1, 2, 4), key="next_power_of_2(n)", nearest="log2"),
        )
    },
    "tuned": "fast_ops:tuned.json",
}
TUNE = [
    {**REQUEST, "tune": [{"function": "scale", "args": [f"float32[{n}]", 2.0, 1.0, f"float32[{n}]"]}]}
    for n in (1 << 12, 1 << 16, 1 << 20)
]
