"""`f.check(…)` runs a call on the CPU, on copies, with checks of addresses and races."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
from support.kernels import CHECKED

import jitload
from jitload.building.resources import free_memory
from jitload.errors import CompileError

SOURCE = (
    CHECKED
    + r"""
#include <cuda_fp16.h>
extern "C" __global__ void vectors(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void behind(const float* const* rows, float* y) { y[threadIdx.x] = rows[0][threadIdx.x]; }
extern "C" __global__ void narrow(const float* x, __half* y) { y[threadIdx.x] = __float2half(x[threadIdx.x]); }
struct Box { const float* data; int n; };
extern "C" __global__ void boxed(Box box, float* y) { y[threadIdx.x] = box.data[threadIdx.x]; }
"""
)


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("checked", cuda_sources=SOURCE, arch="sm_90a")


def test_a_race_is_reported_with_kernel_block_thread_and_lines(mod):
    with pytest.raises(RuntimeError, match=r"^reverse\(\): a race: .* in block \(0, 0, 0\), thread .*checked\.cu:\d"):
        mod.reverse[1, 64].check(torch.ones(64), torch.zeros(64))


@pytest.mark.parametrize("make", [torch.zeros, lambda n: np.zeros(n, "f")])
def test_an_access_outside_a_tensor_is_reported_and_nothing_is_changed(mod, make):
    x, y = make(8), make(7)
    with pytest.raises(RuntimeError, match=r"^shift\(\): a write of 4 bytes at byte 28 of 'y', .* \(7, 0, 0\), at "):
        jitload.check(mod.shift[1, 64], x, y, 8)
    with pytest.raises(RuntimeError, match=r"^narrow\(\): a write of 2 bytes at byte 14 of 'y'"):
        mod.narrow[1, 8].check(x, y.astype("e") if isinstance(y, np.ndarray) else y.half())
    mod.shift[1, 64].check(x, y, np.int32(7))
    assert not y.any()


def test_the_copies_overlap_as_the_tensors_do(mod):
    memory = torch.zeros(100)
    mod.shift[1, 64].check(memory[:50], memory[50:], 50)
    with pytest.raises(RuntimeError, match="a race"):
        mod.shift[1, 64].check(memory[:50], memory[1:51], 50)
    array = np.zeros(100, "f")
    with pytest.raises(RuntimeError, match="a race"):
        mod.shift[1, 64].check(torch.from_numpy(array)[:50], array[1:51], 50)


def test_the_copies_are_aligned_as_the_tensors_are(mod):
    memory = torch.zeros(1025)
    mod.vectors[1, 64].check(memory[1:257] if memory[1:].data_ptr() % 16 == 0 else memory[:256], torch.zeros(256))
    with pytest.raises(ValueError, match="aligned"):
        mod.vectors[1, 64].check(memory[1:257], torch.zeros(256))


@pytest.mark.skipif(free_memory() < 6 << 30, reason="the copy takes 2 GiB")
def test_large_arrays_of_numpy_are_copied(mod):
    mod.shift[1, 64].check(np.zeros((1 << 29) + 16, "f"), torch.zeros(8), 8)


def test_tensors_that_a_call_refuses_are_refused(mod):
    unaligned = torch.frombuffer(bytearray(65), dtype=torch.float32, offset=1, count=8)
    array = np.zeros(8, "f")
    array.flags.writeable = False
    mod.shift[1, 64].check(array, torch.zeros(8), 8)
    for x, y, message in (
        (unaligned, torch.zeros(8), "'x' .* must be aligned to 4 bytes"),
        (torch.zeros(8), unaligned.numpy(), "'y' .* must be aligned to 4 bytes"),
        (torch.zeros(8), array, "'y' is read-only"),
    ):
        with pytest.raises((ValueError, BufferError), match=message):
            mod.shift[1, 64].check(x, y, 8)


def test_wrong_arguments_are_refused_as_in_a_call(mod):
    with pytest.raises(TypeError, match="'x' must be a float32"):
        mod.shift[1, 64].check(torch.ones(8).half(), torch.zeros(8), 8)
    with pytest.raises(TypeError, match="takes 3 arguments"):
        mod.shift[1, 64].check(torch.ones(8))
    with pytest.raises(TypeError, match=r"'x' cannot be read as a tensor: .* on meta"):
        mod.shift[1, 64].check(torch.ones(8, device="meta"), torch.zeros(8), 8)


def test_memory_behind_addresses_cannot_be_checked(mod):
    x = torch.zeros(4)
    for function, argument in ((mod.behind, torch.zeros(2, dtype=torch.int64)), (mod.boxed, bytes(16))):
        with pytest.raises(jitload.JitLoadError, match=r"cannot check .* may have addresses"):
            function[1, 4].check(argument, x)
    for argument in (x.data_ptr(), ctypes.c_void_p(x.data_ptr()), tvm_ffi.from_dlpack(x)):
        with pytest.raises(jitload.JitLoadError, match=r"argument 'x' .* Only tensors of torch and arrays of NumPy"):
            mod.reverse[1, 4].check(argument, x)


@pytest.mark.parametrize("arch", ["cpu", "sm_90a"])
def test_the_variant_that_the_call_chooses_is_checked(arch):
    text = r"""template <class T, int N> __global__ void twice(const T* x, T* y, int n) {
        for (int i = threadIdx.x; i < n; i += N) y[i] = x[i] + x[i];
        if (LANES == 32 && threadIdx.x == 5) y[n] = x[0];
    }"""
    args, tune, dtypes = {"n": "x.numel()"}, jitload.Tune(N=(32, 64), key="n"), ["float32", "int32"]
    launch = jitload.Launch("twice<{x.dtype}, {N}>", grid=1, block="N", args=args, tune=tune, dtypes=dtypes)
    functions = {"twice": launch, "plain": jitload.Launch("twice<int, 32>", args=args)}
    mod = jitload.load_inline("t", cuda_sources=text, functions=functions, arch=arch, extra_cuda_cflags=["-DLANES={N}"])
    x = torch.ones(9, dtype=torch.int32)
    for function in (mod.twice, mod.plain[1, 32]):  # the latter has the options of the first variant
        with pytest.raises(RuntimeError, match=r"at byte 36 of 'y'.*thread \(5, 0, 0\)"):
            function.check(x, torch.zeros_like(x))


def test_kernels_that_only_a_gpu_runs_do_not_keep_others_from_being_checked():
    text = r"""
    #include <mma.h>
    __device__ int lane() { int r; asm("mov.u32 %0, %laneid;" : "=r"(r)); return r; }
    __device__ int twice(int x) { return 2 * x; }
    template <class T> __device__ T twice(T x) { return x + x; }
    namespace n {
    __global__ void __launch_bounds__(32) in_ptx(float* y) { y[lane()] = 1; }
    template <class T> __global__ void plain(const T* x, T* y) { y[threadIdx.x] = twice(x[threadIdx.x]) + ZERO; }
    extern "C" __global__ void tensor_cores(float* y) {
        nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f;
        nvcuda::wmma::fill_fragment(f, 0.0f);
        nvcuda::wmma::store_matrix_sync(y, f, 16, nvcuda::wmma::mem_row_major);
    }
    }"""
    functions = {
        "plain": [jitload.Launch(f"n::plain<{t}>") for t in ("float", "int")],
        "in_ptx": jitload.Launch("n::in_ptx"),
    }
    options = {"arch": "sm_90a", "extra_cuda_cflags": ["-DZERO=0"]}
    mod = jitload.load_inline("several", cuda_sources=text, functions=functions, **options)
    x = torch.ones(8)
    mod.plain[1, 8].check(x, torch.zeros(8))
    with pytest.raises(RuntimeError, match=r"^plain\(\): a write .* thread \(7, 0, 0\), at several\.cu:8"):
        mod.plain[1, 8].check(x, torch.zeros(7))
    with pytest.raises(CompileError, match=r"several\.cu:3: GPU only: inline PTX"):
        mod.in_ptx[1, 8].check(x)


def test_a_header_may_be_edited_between_checks_of_a_kernel_beside_one_for_a_gpu(tmp_path):
    header = tmp_path / "edited.cuh"
    header.write_text("#define ONE 1\n")
    text = """#include "edited.cuh"
    __global__ void in_ptx(int* y) { asm("mov.u32 %0, %laneid;" : "=r"(*y)); }
    __global__ void plain(float* y) { y[threadIdx.x] = ONE; }"""
    mod = jitload.load_inline("edited", cuda_sources=text, extra_include_paths=[tmp_path], arch="sm_90a")
    mod.plain[1, 8].check(torch.zeros(8))
    header.write_text("#define ONE 1 + y[8]\n")
    with pytest.raises(RuntimeError, match="a read of 4 bytes at byte 32 of 'y'"):
        mod.plain[1, 8].check(torch.zeros(8))
    header.write_text("#define ONE missing\n")
    with pytest.raises(CompileError):
        mod.plain[1, 8].check(torch.zeros(8))


def test_what_has_no_source_of_a_kernel_cannot_be_checked(tmp_path):
    text = "void f(float* x) { *x = 1; }"
    host = jitload.load_inline("c", cpp_sources=text, functions={"f": jitload.Launch()})
    path = jitload.build_inline("checked", cuda_sources=SOURCE, arch="sm_90a", output=tmp_path / "checked.so")
    loaded: Any = jitload.load_module(path)
    message = r"(f|relu|reverse)\(\) cannot be .* has no CUDA source at hand.* of PyTorch extension sources"
    for function in (host.f, torch.relu, loaded.reverse):
        with pytest.raises(jitload.JitLoadError, match=message):
            jitload.check(function, torch.ones(1))


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_a_call_on_the_gpu_is_checked_on_copies():
    mod = jitload.load_inline("checked", cuda_sources=SOURCE)
    memory = torch.zeros(100, device="cuda")
    mod.shift[1, 64].check(memory[:50], memory[50:], 50)
    assert not memory.any()
    with pytest.raises(RuntimeError, match="a write of 4 bytes at byte 28 of 'y'"):
        mod.shift[1, 64].check(memory[:8], memory[50:57], 8)
    with pytest.raises(RuntimeError, match="a race"):
        mod.shift[1, 64].check(memory[:50], memory[1:51], 50)
