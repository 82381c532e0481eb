"""The ways to launch one kernel from Python that `launch.py` compares; each is ready to be timed when it returns.

A peer is a function from a `Case` to a `Sample`: seconds that `count` launches in a row cost the host. Every loop is
written out, so that each pays for its own call alone and all for the same loop.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Any

from sources import SOURCE, TORCH_DECLARATION, TORCH_SOURCE, TVM_WRAPPER
from turns import Sample

GRID, BLOCK = 1, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is launched: `add_one(x, y, n)`, for this architecture, from this cubin."""

    x: Any
    y: Any
    n: int
    arch: str
    cubin: bytes


# ---- the floor: the driver's own launch, in a loop in C --------------------------------------------------------------

_LOOP = """
#include <time.h>
typedef int (*launch_t)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        void*, void**, void**);

double launch_many(launch_t launch, void* function, void* x, void* y, int n, unsigned grid, unsigned block,
                   int count, int* status) {
    struct timespec start, stop;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < count; ++i) {
        void* params[] = {&x, &y, &n};
        int code = launch(function, grid, 1, 1, block, 1, 1, 0, 0, params, 0);
        if (code) *status = code;
    }
    clock_gettime(CLOCK_MONOTONIC, &stop);
    return (double)(stop.tv_sec - start.tv_sec) + 1e-9 * (double)(stop.tv_nsec - start.tv_nsec);
}
"""


def bare_c(case: Case) -> Sample:
    """Launch with `cuLaunchKernel` from a compiled C loop: no Python, no checks, the null stream."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function, status = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    _check(driver.cuModuleLoadData(ctypes.byref(module), case.cubin), "cuModuleLoadData")
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, b"add_one"), "cuModuleGetFunction")
    many = _compile_loop().launch_many
    many.restype = ctypes.c_double
    many.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
    launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p)
    x, y = case.x.data_ptr(), case.y.data_ptr()

    def sample(count: int) -> float:
        seconds: float = many(launch, function, x, y, case.n, GRID, BLOCK, count, ctypes.byref(status))
        _check(status.value, "cuLaunchKernel")
        return seconds

    return sample


def _check(code: int, call: str) -> None:
    if code != 0:
        raise RuntimeError(f"{call} failed with CUresult {code}")


def _compile_loop() -> ctypes.CDLL:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or "cc"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(_LOOP)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        return ctypes.CDLL(str(library))


# ---- jitload -------------------------------------------------------------------------------------------------------


def _jitload(case: Case, name: str, **launch: Any) -> Any:
    import jitload

    functions = {"add_one": jitload.Launch(**launch)} if launch else None
    return jitload.load_inline(name, cuda_sources=SOURCE, functions=functions, arch=case.arch)


def jitload_declared(case: Case) -> Sample:
    """Call `f(x, y, n)` of `Launch(grid=…, block=256)`."""
    return _three(_jitload(case, "declared", grid=f"ceil_div(n, {BLOCK})", block=BLOCK).add_one, case)


def jitload_attribute(case: Case) -> Sample:
    """Call `mod.f(x, y, n)`: with the look-up in the module."""
    mod = _jitload(case, "declared", grid=f"ceil_div(n, {BLOCK})", block=BLOCK)
    x, y, n = case.x, case.y, case.n

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            mod.add_one(x, y, n)
        return perf_counter() - start

    return sample


def jitload_computed(case: Case) -> Sample:
    """Call `f(x, y)`, with n computed in the wrapper."""
    mod = _jitload(case, "computed", grid=f"ceil_div(n, {BLOCK})", block=BLOCK, args={"n": "x.numel()"})
    return _two(mod.add_one, case)


def jitload_requires(case: Case) -> Sample:
    """Call `f(x, y, n)` of a declared launch that requires four terms."""
    terms = ("y.numel() >= n", "x.numel() >= n", "x.shape == y.shape", "n % 4 == 0")
    mod = _jitload(case, "requires", grid=f"ceil_div(n, {BLOCK})", block=BLOCK, requires=terms)
    return _three(mod.add_one, case)


def jitload_maps(case: Case) -> Sample:
    """Call `f(x, y, n)` of the same kernel with a tensor map of x and one of y, which stay the same."""
    import jitload

    parameters = "const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap y_map, "
    text = SOURCE.replace("add_one(", f"add_one({parameters}")
    maps = {f"{name}_map": jitload.Tma(name, box=(BLOCK,)) for name in "xy"}
    launch = jitload.Launch(grid=f"ceil_div(n, {BLOCK})", block=BLOCK, tma=maps)
    mod = jitload.load_inline(
        "maps", cuda_sources=f"#include <cuda.h>\n{text}", functions={"add_one": launch}, arch=case.arch
    )
    return _three(mod.add_one, case)


def jitload_held(case: Case) -> Sample:
    """Call `g(x, y, n)` of `g = mod.f[grid, block]`."""
    return _three(_jitload(case, "open").add_one[GRID, BLOCK], case)


def jitload_inline(case: Case) -> Sample:
    """Call `f[grid, block](x, y, n)`."""
    f = _jitload(case, "open").add_one
    x, y, n = case.x, case.y, case.n

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            f[GRID, BLOCK](x, y, n)
        return perf_counter() - start

    return sample


def jitload_gil(case: Case, *, release: bool) -> Sample:
    """Call the declared form with the GIL released, or kept, while the C code runs."""
    name = "gil_released" if release else "gil_kept"  # a module of its own: the setting is the function's
    f = _jitload(case, name, grid=f"ceil_div(n, {BLOCK})", block=BLOCK).add_one
    f.release_gil = release
    return _three(f, case)


def _three(f: Any, case: Case) -> Sample:
    x, y, n = case.x, case.y, case.n

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            f(x, y, n)
        return perf_counter() - start

    return sample


def _two(f: Any, case: Case) -> Sample:
    x, y = case.x, case.y

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            f(x, y)
        return perf_counter() - start

    return sample


# ---- tvm-ffi's own wrapper -----------------------------------------------------------------------------------------


def tvm_ffi_wrapper(case: Case, *, release: bool = True) -> Sample:
    """Call a hand-written wrapper around the cubin, as in tvm-ffi's CUBIN launcher guide; it checks nothing."""
    from tvm_ffi import cpp

    mod = cpp.load_inline("bench_cubin", cuda_sources=TVM_WRAPPER, embed_cubin={"bench_cubin": case.cubin})
    f = mod.get_function("add_one")  # a new object at each call, with a setting of its own
    f.release_gil = release
    return _three(f, case)


def tvm_ffi_nop(case: Case) -> Sample:
    """Call a function of tvm-ffi that does nothing: what its calling convention costs, without any launch."""
    import tvm_ffi.testing

    return _three(tvm_ffi.get_global_func("testing.nop"), case)


# ---- the others ----------------------------------------------------------------------------------------------------


def cuda_core(case: Case) -> Sample:
    """Call `cuda.core.launch(stream, config, kernel, …)` with the tensors' addresses."""
    import numpy as np

    try:
        from cuda.core import Device, LaunchConfig, ObjectCode, launch
    except ImportError:  # before 0.5
        from cuda.core.experimental import Device, LaunchConfig, ObjectCode, launch

    device = Device(case.x.device.index)
    device.set_current()
    stream, kernel = device.default_stream, ObjectCode.from_cubin(case.cubin).get_kernel("add_one")
    config = LaunchConfig(grid=GRID, block=BLOCK)
    x, y, n = case.x, case.y, np.int32(case.n)

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            launch(stream, config, kernel, x.data_ptr(), y.data_ptr(), n)
        return perf_counter() - start

    return sample


def cupy_raw_kernel(case: Case) -> Sample:
    """Call `cupy.RawKernel` with CuPy arrays over the same memory."""
    import cupy
    import numpy as np

    kernel = cupy.RawKernel(SOURCE, "add_one")
    x, y, n = cupy.asarray(case.x), cupy.asarray(case.y), np.int32(case.n)

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            kernel((GRID,), (BLOCK,), (x, y, n))
        return perf_counter() - start

    return sample


def torch_extension(case: Case) -> Sample:
    """Call an extension of `torch.utils.cpp_extension.load_inline` that launches with <<<…>>>."""
    from torch.utils import cpp_extension

    load_inline: Any = cpp_extension.load_inline  # untyped

    mod = load_inline(
        "jitload_bench_add_one",
        cpp_sources=TORCH_DECLARATION,
        cuda_sources=TORCH_SOURCE,
        functions=["add_one_host"],
    )
    return _three(mod.add_one_host, case)


def triton_jit(case: Case) -> Sample:
    """Call a Triton kernel of the same shape, `kernel[grid](x, y, n, BLOCK=…)`."""
    from triton_kernel import add_one

    x, y, n = case.x, case.y, case.n

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            add_one[(GRID,)](x, y, n, BLOCK=BLOCK, num_warps=BLOCK // 32)
        return perf_counter() - start

    return sample


def torch_compile_kernel(case: Case) -> Sample:
    """Call a kernel of `torch.cuda._compile_kernel`."""
    import torch

    kernel = torch.cuda._compile_kernel(SOURCE, "add_one")  # noqa: SLF001  its only name
    x, y, n = case.x, case.y, case.n

    def sample(count: int) -> float:
        start = perf_counter()
        for _ in repeat(None, count):
            kernel((GRID, 1, 1), (BLOCK, 1, 1), (x, y, n))
        return perf_counter() - start

    return sample


PEERS: dict[str, Callable[[Case], Sample]] = {
    "bare C": bare_c,
    "jitload declared": jitload_declared,
    "jitload computed n": jitload_computed,
    "jitload 4 requirements": jitload_requires,
    "jitload 2 tensor maps": jitload_maps,
    "jitload held g=f[..]": jitload_held,
    "jitload inline f[..]()": jitload_inline,
    "jitload mod.f()": jitload_attribute,
    "jitload GIL released": lambda case: jitload_gil(case, release=True),
    "jitload GIL kept": lambda case: jitload_gil(case, release=False),
    "tvm-ffi cubin wrapper": tvm_ffi_wrapper,
    "tvm-ffi wrapper, GIL kept": lambda case: tvm_ffi_wrapper(case, release=False),
    "tvm-ffi call, no launch": tvm_ffi_nop,
    "cuda.core launch": cuda_core,
    "CuPy RawKernel": cupy_raw_kernel,
    "torch load_inline": torch_extension,
    "Triton JIT": triton_jit,
    "torch _compile_kernel": torch_compile_kernel,
}
