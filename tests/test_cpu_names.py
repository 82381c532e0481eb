"""Kernels and variables on the CPU may have any name that CUDA allows, and messages about them."""

import numpy as np
import pytest

import jitload
from jitload.errors import CompileError

LIBC = ("abort", "calloc", "dlsym", "environ", "getenv", "mmap", "munmap", "pthread_mutex_lock", "puts", "syscall")
OWN = ("jitload_run", "jitload_cpu_switch", "jitload_library", "kernels")
KERNEL = r"""
extern "C" __global__ void {}(int* x) {{
  extern __shared__ int optarg[];
  optarg[threadIdx.x] = x[0] + 1;
  __syncthreads();
  atomicAdd(x + 1, optarg[blockDim.x - 1 - threadIdx.x] + stderror);
}}
"""


def test_names_of_libc_and_of_the_runtime():
    """The runtime keeps calling libc's functions, and the kernels keep their names."""
    text = "__device__ int stderror = 7, timezone = 8;\n" + "".join(map(KERNEL.format, (*LIBC, *OWN)))
    mod = jitload.load_inline("names", cuda_sources=text, arch="cpu")
    assert set(mod) == {*LIBC, *OWN}
    for name in (*LIBC, *OWN):
        x = np.zeros(2, np.int32)
        mod[name][100, 32, 128](x)
        assert x[1] == 100 * 32 * 8, name
    for variable, value in (("stderror", 7), ("timezone", 8)):
        assert np.from_dlpack(jitload.global_tensor(mod, variable, "int32", 1)) == value
    assert mod[LIBC[0]].kernel[3:] == (None, None, None, 1024, None, None)  # only the number of threads is known


@pytest.mark.parametrize("arch", ["cpu", "sm_90"])
@pytest.mark.parametrize("name", ["memcpy", "max", "sin"])
def test_a_name_that_cannot_be_had(arch, name):
    text = f'extern "C" __global__ void {name}(float* x, int n) {{ x[0] = n; }}'
    with pytest.raises(jitload.JitLoadError, match=rf"(?s){name}.*(?:name|linkage)"):
        jitload.build_inline("taken", cuda_sources=text, arch=arch)


def test_a_name_that_only_gpus_allow():
    text = 'extern "C" __global__ void main(float* x, int n) { x[0] = n; }'
    with pytest.raises(CompileError, match=r"(?s)main.*give the kernel another name"):
        jitload.build_inline("taken", cuda_sources=text, arch="cpu", gpu_check=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__global__ int k(int* x) { return 1; }", "a __global__ function must have a void return type"),
        (
            "#include <torch/all.h>\n__global__ void k() {}",
            "(?s)<torch/all.h> is for host code.*leave the bindings out",
        ),
    ],
)
def test_messages_without_the_check_for_gpus(text, message):
    with pytest.raises(CompileError, match=message):
        jitload.load_inline("m", cuda_sources=text, arch="cpu", gpu_check=False)


def test_a_source_may_define_atomics_that_old_gpus_lack():
    """CUDA's programming guide defines an atomicAdd for doubles under this condition."""
    text = """
    #if __CUDA_ARCH__ < 600
    __device__ double atomicAdd(double* p, double v) {
      unsigned long long* bits = (unsigned long long*)p;
      unsigned long long old = *bits, assumed;
      do {
        assumed = old;
        old = atomicCAS(bits, assumed, __double_as_longlong(v + __longlong_as_double(assumed)));
      } while (assumed != old);
      return __longlong_as_double(old);
    }
    #endif
    extern "C" __global__ void k(double* x) { atomicAdd(x, 0.5f); }"""
    x = np.zeros(1)
    jitload.load_inline("atomics", cuda_sources=text, arch="cpu").k[4, 64](x)
    assert x[0] == 128


def test_a_source_may_define_functions_that_cuda_has():
    """They take precedence over CUDA's functions of the same parameters, but not over those of other parameters."""
    text = r"""
    #include <algorithm>
    __device__ int max(int a, int b) { return 100 + (a > b ? a : b); }
    __device__ __forceinline__ float min(float a, float b) { return 100 + (a < b ? a : b); }
    static __device__ float rsqrtf(float x) { return 100 + x; }
    template <class T> __device__ T max(T a, T b) { return 1000; }
    template <class T> __device__ T larger(T a, T b) { return max(a, b); }
    __global__ void call(float* x) {
      x[0] = max(1, 2);
      x[1] = max(1u, 2u);
      x[2] = max(1, 2u);
      x[3] = larger(1, 2) + larger(1.5f, 2.5f);
      x[4] = min(1.0f, 2.0f);
      x[5] = min(1.0f, 2.0);
      x[6] = rsqrtf(4.0f);
      x[7] = max<float>(1, 2) + std::max<float>(0.5, 2);
    }"""
    x = np.zeros(8, np.float32)
    jitload.load_inline("own", cuda_sources=text, arch="cpu").call[1, 1](x)
    assert x.tolist() == [102, 2, 2, 104.5, 101, 1, 104, 1002]
