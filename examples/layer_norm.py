"""Layer normalisation of half and bfloat16 rows: a block per row, sums by warp shuffles and shared memory."""

from __future__ import annotations

import functools

import torch

import jitload

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float block_sum(float value) {
    __shared__ float warps[32];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    __syncthreads();  // the sum before this one has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) value += warps[warp];
    return value;
}

template <class T>
__global__ void layer_norm(const T* x, const T* weight, const T* bias, T* y, int columns, float epsilon) {
    x += (size_t)blockIdx.x * columns, y += (size_t)blockIdx.x * columns;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += float(x[i]);
    const float mean = block_sum(sum) / columns;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) squares += (float(x[i]) - mean) * (float(x[i]) - mean);
    const float scale = rsqrtf(block_sum(squares) / columns + epsilon);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        y[i] = T((float(x[i]) - mean) * scale * float(weight[i]) + float(bias[i]));
}"""

TYPES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
Launch = functools.partial(jitload.Launch, grid="x.shape[0]", block=256, args={"columns": "x.shape[1]"})
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU the same source runs on the CPU
functions = {f"norm{type_}": Launch(kernel=f"layer_norm<{type_}>") for type_ in TYPES.values()}
mod = jitload.load_inline("layer_norm", cuda_sources=SOURCE, functions=functions)
for dtype, type_ in TYPES.items():
    function = mod[f"norm{type_}"]
    print(f"{function.kernel}: {function.kernel.registers or 'no'} registers")
    x = torch.randn(512, 4096, device=DEVICE, dtype=dtype)
    weight, bias = torch.randn(2, 4096, device=DEVICE, dtype=dtype)
    y = torch.empty_like(x)
    function(x, weight, bias, y, 1e-5)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (4096,), weight, bias), rtol=2e-2, atol=2e-2)
    print(f"{dtype}: equal to torch's result on {tuple(x.shape)}")
