"""Functions of float that jitload computes itself on the CPU: errors, special values and rounding."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.headers import OPTIMIZED

import jitload
from jitload import Launch

Array = np.ndarray[Any, Any]
# By name: the truth in double, and by how many ulps a result may be away from it; CUDA documents 1 or 2.
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "expf": (np.exp, 1), "exp2f": (np.exp2, 1), "logf": (np.log, 0.51), "log2f": (np.log2, 0.51),
    "log10f": (np.log10, 0.51), "tanhf": (np.tanh, 0.51),
}  # fmt: skip
OTHER_NAMES = {"__expf": "expf", "exp": "expf", "__logf": "logf", "log": "logf", "tanh": "tanhf", "log2": "log2f"}
KERNEL = """extern "C" __global__ void {name}(const float* x, float* y, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x; {wait} if (i < n) y[i] = {function}(x[i]);
}}
"""
LAUNCH = Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})
# Is a product and a sum one operation? `fused` always is one, and `apart` never.
SUMS = {"plain": "x[1] * x[2] + x[3]", "apart": "__fmul_rn(x[1], x[2]) + x[3]", "fused": "fmaf(x[1], x[2], x[3])"}
INFINITE, NONE = float("inf"), float("nan")
SPECIAL: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "expf": ((0.0, -0.0, INFINITE, -INFINITE, 89, -104, 1e30, -1e30), (1, 1, INFINITE, 0, INFINITE, 0, INFINITE, 0)),
    "exp2f": ((0, 3, -149, 127, 128, -151, INFINITE, -INFINITE), (1, 8, 2**-149, 2.0**127, INFINITE, 0, INFINITE, 0)),
    "logf": ((1, 0.0, -0.0, -1, INFINITE, -INFINITE, -1e-45), (0, -INFINITE, -INFINITE, NONE, INFINITE, NONE, NONE)),
    "log2f": ((1, 8, 2**-149, 0.0, -2, INFINITE), (0, 3, -149, -INFINITE, NONE, INFINITE)),
    "log10f": ((1, 1000, 1e10, 0.0, -2, INFINITE), (0, 3, 10, -INFINITE, NONE, INFINITE)),
    "tanhf": ((0.0, -0.0, 1e-45, -1e-40, 20, -20, INFINITE, -INFINITE), (0.0, -0.0, 1e-45, -1e-40, 1, -1, 1, -1)),
}


def load(names: Collection[str], waiting: Collection[str] = (), flags: Sequence[str] = OPTIMIZED) -> jitload.Module:
    """Compile functions as loops; those that wait as well run on fibers, one number at a time."""
    text = "".join(KERNEL.format(name=f"k_{name}", function=name, wait="") for name in names)
    text += "".join(KERNEL.format(name=f"w_{name}", function=name, wait="__syncthreads();") for name in waiting)
    text += "".join(
        f'extern "C" __global__ void {name}(float* x) {{ x[0] = {sum_}; }}\n' for name, sum_ in SUMS.items()
    )
    launches = {
        **{f"k_{name}": LAUNCH for name in names},
        **{f"w_{name}": LAUNCH for name in waiting},
        **dict.fromkeys(SUMS, Launch(grid=1, block=1)),
    }
    return jitload.load_inline("math", cuda_sources=text, functions=launches, arch="cpu", extra_cflags=list(flags))


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return load((*FUNCTIONS, *OTHER_NAMES), waiting=FUNCTIONS)


@pytest.fixture(scope="module")
def native() -> jitload.Module:
    return load(FUNCTIONS, flags=["-march=native"])


def call(mod: jitload.Module, name: str, x: Array, kind: str = "k") -> Array:
    y = np.zeros_like(x)
    getattr(mod, f"{kind}_{name}")(x, y)
    return y


def ulps(result: Array, truth: Array) -> Array:
    """Return by how many units in the last place of a float numbers are off; infinity counts as 2**128."""
    limit = 2.0**128
    clipped = np.clip(truth, -limit, limit)
    unit = np.ldexp(1.0, np.maximum(np.frexp(clipped)[1] - 24, -149))
    away: Array = np.abs(np.clip(result.astype(np.float64), -limit, limit) - clipped) / unit
    return np.where(np.isnan(truth) | np.isnan(result), np.where(np.isnan(truth) & np.isnan(result), 0, np.inf), away)


def worst(mod: jitload.Module, name: str, bits: Array) -> float:
    """Return how far the results for floats of these bits are from the truth at most."""
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        return float(ulps(call(mod, name, x), FUNCTIONS[name][0](x.astype(np.float64))).max())


@pytest.mark.parametrize("step", [4099, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_as_small_as_cuda_says(mod, name, step):
    for start in range(0, 1 << 32, step << 22):
        bits = np.arange(start, min(start + (step << 22), 1 << 32), step, dtype=np.uint64).astype(np.uint32)
        assert worst(mod, name, bits) <= FUNCTIONS[name][1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_have_the_results_of_c(mod, name):
    x = np.array([*SPECIAL[name][0], NONE] * 5, np.float32)  # in vectors, and in what is left of them
    expected = np.array([*SPECIAL[name][1], NONE] * 5, np.float32)
    result = call(mod, name, x)
    np.testing.assert_array_equal(result, expected)
    numbers = ~np.isnan(expected)
    assert (np.signbit(result) == np.signbit(expected))[numbers].all()


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_are_the_same_function(mod, name):
    x = np.linspace(-100, 100, 10_001, dtype=np.float32)
    np.testing.assert_array_equal(call(mod, name, x), call(mod, OTHER_NAMES[name], x))


def test_the_same_numbers_one_by_one_and_in_vectors(mod):
    x = np.arange(0, 1 << 32, 20_011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    for name in FUNCTIONS:
        np.testing.assert_array_equal(call(mod, name, x, "w"), call(mod, name, x))


def test_exact_where_the_compiler_contracts(native):
    """With `-march=native` a product and a sum are one operation; the errors stay within their limits."""
    for name, (_, most) in FUNCTIONS.items():
        assert worst(native, name, np.arange(0, 1 << 32, 20_011, dtype=np.uint64).astype(np.uint32)) <= most


def test_a_product_and_a_sum_are_rounded_once_where_the_options_allow(mod, native):
    words = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    off = load((), flags=["-march=native", "-ffp-contract=off"])
    for module, contracts in ((mod, False), (native, "fma" in words), (off, False)):
        results = {}
        for name in SUMS:
            x = np.array([-1, 1 + 2**-12, 1 + 2**-12, -1 - 2**-11], np.float32)
            getattr(module, name)(x)
            results[name] = x[0].item()
        assert results == {"plain": 2**-24 if contracts else 0, "apart": 0, "fused": 2**-24}
