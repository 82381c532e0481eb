"""Warp operations on the CPU: every shuffle at every distance, and votes."""

import numpy as np
import pytest

import jitload

TYPES = {"int": "int32", "float": "float32", "double": "float64", "unsigned long long": "uint64"}
FARTHEST = 34  # the instruction reads five bits; a lane gets its own value if the source lane is out of range
KERNEL = """
extern "C" __global__ void k{number}(const {type}* x, {type}* y, int width) {{
  {type} value = x[blockIdx.x * blockDim.x + threadIdx.x];
  y += blockIdx.x * blockDim.x * 4 * {farthest} + threadIdx.x;
  for (int by = 0; by < {farthest}; ++by) {{
    y[0] = __shfl_sync(~0u, value, by, width);
    y[blockDim.x] = __shfl_up_sync(~0u, value, by, width);
    y[blockDim.x * 2] = __shfl_down_sync(~0u, value, by, width);
    y[blockDim.x * 3] = __shfl_xor_sync(~0u, value, by, width);
    y += blockDim.x * 4;
  }}
}}
"""
VOTES = ("__ballot_sync", "__any_sync", "__all_sync", "__uni_sync")
SOURCE = "".join(f'extern "C" __global__ void lacks{name}(int* x) {{ x[0] = {name}(1u, 1); }}\n' for name in VOTES)
SOURCE += 'extern "C" __global__ void uni(int* x, int* y) { y[threadIdx.x] = __uni_sync(~0u, x[threadIdx.x]); }\n'
SOURCE += "".join(KERNEL.format(number=number, type=name, farthest=FARTHEST) for number, name in enumerate(TYPES))


@pytest.fixture(scope="module")
def module() -> jitload.Module:
    return jitload.load_inline("shuffles", cuda_sources=SOURCE, arch="cpu")


def source_lanes(by: int, width: int) -> list[list[int]]:
    """Return the lane that each lane reads from: by index, up, down and xor."""
    lanes = range(32)
    by %= 32
    first = [lane // width * width for lane in lanes]
    return [
        [first[lane] + by % width for lane in lanes],
        [lane - by if lane - by >= first[lane] else lane for lane in lanes],
        [lane + by if lane + by < first[lane] + width else lane for lane in lanes],
        [lane ^ by if lane ^ by < min(first[lane] + width, 32) else lane for lane in lanes],
    ]


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("number", range(len(TYPES)))
def test_every_shuffle_reads_from_the_lane_that_a_gpu_reads_from(module, number, width, threads):
    x = np.random.default_rng(0).integers(1, 1 << 30, 2 * threads).astype(list(TYPES.values())[number])
    y = np.zeros((2, FARTHEST, 4, threads), x.dtype)
    module[f"k{number}"][2, threads](x, y, width)
    warps = x.reshape(2, threads // 32, 32)
    for by in range(FARTHEST):
        for mode, lanes in enumerate(source_lanes(by, width)):
            np.testing.assert_array_equal(y[:, by, mode].reshape(warps.shape), warps[:, :, lanes], f"{mode}, by {by}")


@pytest.mark.parametrize("name", VOTES)
def test_a_vote_whose_mask_lacks_the_caller_names_the_function(module, name):
    with pytest.raises(RuntimeError, match=rf"{name}\(\) with mask 0x00000001, which lacks lane 1"):
        module[f"lacks{name}"][1, 4](np.zeros(1, np.int32))


def test_uni_tells_whether_lanes_agree(module):
    for first, remaining in ((0, 0), (1, 1), (2, 1), (0, 1), (1, 0)):
        x, y = np.full(32, remaining, np.int32), np.full(32, 7, np.int32)
        x[0] = first
        module.uni[1, 32](x, y)
        assert y.tolist() == [int(bool(first) == bool(remaining))] * 32
