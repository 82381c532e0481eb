"""cuRAND's device functions, on both targets: the package to install, and the numbers that Philox defines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import jitload
from jitload.errors import CompileError
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_headers

pytest_plugins = ["support.gpu_fixtures"]
SOURCE = """
#include <curand_kernel.h>
extern "C" __global__ void draw(unsigned* bits, float* uniform, float* normal, unsigned long long seed) {
  int i = threadIdx.x;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, i, 0, &state);
  for (int k = 0; k < 5; ++k) bits[5 * i + k] = curand(&state);
  curand_init(seed, i, 0, &state);
  uniform[i] = curand_uniform(&state);
  curandState other;
  curand_init(seed, i, 0, &other);
  normal[2 * i] = curand_normal(&other);
  normal[2 * i + 1] = curand_log_normal(&other, 0.0f, 1.0f);
}"""
M32 = 2**32 - 1
kit = find_cuda_headers(read_settings())
HAS_CURAND = kit is not None and any((path / "curand_kernel.h").is_file() for path in kit.include_dirs)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Return four random numbers of Philox4x32-10 (Salmon and others, 2011)."""
    a, b, c, d = counter
    for step in range(10):
        k0, k1 = (key[0] + step * 0x9E3779B9) & M32, (key[1] + step * 0xBB67AE85) & M32
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ k0, second & M32, first >> 32 ^ d ^ k1, first & M32
    return [a, b, c, d]


@pytest.mark.skipif(HAS_CURAND, reason="cuRAND is installed")
@pytest.mark.parametrize("arch", ["sm_90", "cpu"])
def test_the_package_to_install_is_named(arch: str) -> None:
    with pytest.raises(CompileError, match="pip install nvidia-curand"):
        jitload.build_inline("draw", cuda_sources=SOURCE, arch=arch)


@pytest.mark.skipif(not HAS_CURAND, reason="needs pip install nvidia-curand")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_random_numbers(device: str, request: pytest.FixtureRequest) -> None:
    if device == "cuda":
        request.getfixturevalue("gpu")
    module = jitload.load_inline("draw", cuda_sources=SOURCE, arch="native" if device == "cuda" else "cpu")
    bits = torch.zeros(64, 5, dtype=torch.uint32, device=device)
    uniform, normal = torch.zeros(64, device=device), torch.zeros(64, 2, device=device)
    seed = 0x123456789ABCDEF
    module.draw[1, 64](bits, uniform, normal, seed)
    expected = [
        philox([0, 0, i, 0], [seed & M32, seed >> 32]) + philox([1, 0, i, 0], [seed & M32, seed >> 32])[:1]
        for i in range(64)
    ]
    assert bits.cpu().tolist() == expected
    first = np.array([row[0] for row in expected], np.uint32).astype(np.float32)
    np.testing.assert_array_equal(uniform.cpu().numpy(), first * np.float32(2**-32) + np.float32(2**-33))
    assert abs(normal[:, 0].mean().item()) < 0.5
    assert 0.7 < normal[:, 0].std().item() < 1.3
    assert 0.7 < normal[:, 1].log().std().item() < 1.3
