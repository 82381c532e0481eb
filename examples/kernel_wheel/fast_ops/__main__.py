"""Shows what calls launch: python -m fast_ops."""

import numpy as np

from . import _kernels, scale

for n in (1 << 12, 1 << 16, 100_000):
    x = np.arange(n, dtype=np.float32)
    out = np.zeros_like(x)
    scale(x, 2.0, 1.0, out)
    assert (out == 2 * x + 1).all()
    chosen = _kernels("cpu").scale.variant(x, 2.0, 1.0, out)
    print(f"{n} elements: {chosen.values}, {chosen.how}")
