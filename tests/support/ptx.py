"""PTX and LTO-IR of a few kernels, as NVRTC makes them."""

from jitload.cuda import program as nvrtc
from jitload.cuda.job import NvrtcJob
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


def compile_to(kind: str, *options: str, source: str = SOURCE) -> bytes:
    """Return the PTX or the LTO-IR that NVRTC makes."""
    bindings = nvrtc.load_nvrtc(find_cuda_toolchain(read_settings()).nvrtc_path)
    job = NvrtcJob(name="k.cu", source=source, options=())
    with nvrtc._program(bindings, job) as (program, _):
        assert bindings.nvrtcCompileProgram(program, len(options), [option.encode() for option in options]) == (0,)
        return nvrtc._read(bindings, program, kind)
