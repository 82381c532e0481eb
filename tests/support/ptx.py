"""PTX and LTO-IR of a few kernels, as NVRTC makes them."""

from __future__ import annotations

import ctypes

from jitload.cuda import nvrtc
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

SOURCE = """
extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
template <class T> __global__ void fill(T* x, T value) { x[threadIdx.x] = value; }
template __global__ void fill(int*, int);
template __global__ void fill(double*, double);
__device__ float table[4];
"""


def compile_to(what: str, *options: str, source: str = SOURCE) -> bytes:
    """Return the PTX or the LTO-IR that NVRTC makes."""
    kit = find_cuda_toolchain(read_settings())
    library = nvrtc._load(str(kit.nvrtc_path))
    job = nvrtc.NvrtcJob(name="k.cu", source=source, options=())
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    with nvrtc._program(library, job) as program:
        assert library.nvrtcCompileProgram(program, len(options), given) == 0
        return nvrtc._read_sized(library, program, what)
