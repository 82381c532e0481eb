"""The first build of a kernel by each loader that `cold.py` compares; each function runs in a process of its own.

A function does its imports, initialises CUDA where there is a GPU, and only then starts the clock. It stops when the
kernel can be called. `salt` makes texts that no cache has seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from children import Answer, timed
from nvrtc_floor import compile_bare, nvrtc_path, open_nvrtc
from sources import SIXTEEN, TORCH_DECLARATION, TORCH_SOURCE, TVM_WRAPPER, kernel_text, sixteen_text

FURTHER = 5  # different kernels after the first


def start_cuda() -> None:
    """Initialise CUDA and its context through torch, where there is a GPU, as a program with tensors has done."""
    import torch

    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")


def bare_nvrtc(arch: str, salt: int) -> Answer:
    path = nvrtc_path()
    start = perf_counter()
    library = open_nvrtc(path)
    loaded = perf_counter()
    compile_bare(library, kernel_text(salt), arch)
    done = perf_counter()
    texts = [kernel_text(salt + 1 + i) for i in range(FURTHER)]
    return {
        "with load": [done - start],
        "first": [done - loaded],
        "further": [timed(compile_bare, library, text, arch) for text in texts],
        "sixteen": [timed(compile_bare, library, sixteen_text(salt), arch)],
    }


def _jitload_build(arch: str, source: str, names: tuple[str, ...] = ("add_one",)) -> object:
    import jitload

    functions = {name: jitload.Launch(grid="ceil_div(n, 256)", block=256) for name in names}
    return jitload.load_inline("bench", cuda_sources=source, functions=functions, arch=arch)


def jitload_first(arch: str, salt: int) -> Answer:
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    import jitload  # noqa: F401

    start_cuda()
    texts = [kernel_text(salt + 1 + i) for i in range(FURTHER)]
    return {
        "first": [timed(_jitload_build, arch, kernel_text(salt))],
        "further": [timed(_jitload_build, arch, text) for text in texts],
        "sixteen": [timed(_jitload_build, arch, sixteen_text(salt), tuple(SIXTEEN))],
    }


def jitload_with_imports(arch: str, salt: int) -> Answer:
    import jitload  # noqa: F401

    return {"first": [timed(_jitload_build, arch, kernel_text(salt))]}


def tvm_ffi_guide(arch: str, salt: int) -> Answer:
    from tvm_ffi import cpp

    def build() -> object:
        cubin = compile_bare(open_nvrtc(nvrtc_path()), kernel_text(salt), arch)
        return cpp.load_inline("bench_cubin", cuda_sources=TVM_WRAPPER, embed_cubin={"bench_cubin": cubin})

    start_cuda()
    return {"first": [timed(build)]}


def load_tvm_ffi_cpp(cubin: bytes) -> object:
    """Build, or find built, upstream's wrapper with the host compiler, for which upstream must be told of CUDA."""
    from tvm_ffi import cpp

    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return cpp.load_inline(
        "bench_cubin",
        cpp_sources=TVM_WRAPPER,
        embed_cubin={"bench_cubin": cubin},
        extra_include_paths=[str(toolkit / "include")],
        extra_ldflags=[f"-L{toolkit / 'lib64'}", "-lcudart"],
    )


def tvm_ffi_cpp(arch: str, salt: int) -> Answer:
    import tvm_ffi.cpp  # noqa: F401

    start_cuda()
    return {"first": [timed(lambda: load_tvm_ffi_cpp(compile_bare(open_nvrtc(nvrtc_path()), kernel_text(salt), arch)))]}


def torch_extension(arch: str, salt: int) -> Answer:  # noqa: ARG001  its architecture is in the environment
    from torch.utils import cpp_extension

    load_inline: Any = cpp_extension.load_inline  # untyped

    def build() -> object:
        return load_inline(
            f"bench_{salt}", cpp_sources=TORCH_DECLARATION, cuda_sources=TORCH_SOURCE, functions=["add_one_host"]
        )

    start_cuda()
    return {"first": [timed(build)]}


def cuda_core(arch: str, salt: int) -> Answer:
    try:
        from cuda.core import Device, Program, ProgramOptions
    except ImportError:  # before 0.5
        from cuda.core.experimental import Device, Program, ProgramOptions

    def build() -> object:
        program = Program(kernel_text(salt), code_type="c++", options=ProgramOptions(arch=arch))
        return program.compile("cubin").get_kernel("add_one")

    Device().set_current()
    return {"first": [timed(build)]}


def cupy_raw_kernel(arch: str, salt: int) -> Answer:  # noqa: ARG001  CuPy asks the GPU
    import cupy

    cupy.zeros(1)
    return {"first": [timed(lambda: cupy.RawKernel(kernel_text(salt), "add_one").compile())]}


def triton_jit(arch: str, salt: int) -> Answer:  # noqa: ARG001  Triton asks the GPU, and its cache is empty
    import torch
    from triton_kernel import add_one

    x = torch.zeros(256, device="cuda")
    y = torch.empty_like(x)
    return {"first": [timed(lambda: add_one[(1,)](x, y, 256, BLOCK=256, num_warps=8))]}


def torch_compile_kernel(arch: str, salt: int) -> Answer:  # noqa: ARG001  torch asks the GPU
    import torch

    start_cuda()
    compile_kernel = torch.cuda._compile_kernel  # noqa: SLF001  its only name
    return {"first": [timed(compile_kernel, kernel_text(salt), "add_one")]}


PEERS: dict[str, Callable[[str, int], Answer]] = {
    "nvrtc": bare_nvrtc,
    "jitload": jitload_first,
    "jitload-used-cache": jitload_first,
    "jitload-with-imports": jitload_with_imports,
    "tvm-ffi-nvcc": tvm_ffi_guide,
    "tvm-ffi-cpp": tvm_ffi_cpp,
    "cuda.core": cuda_core,
    "cupy": cupy_raw_kernel,
    "triton": triton_jit,
    "torch-compile_kernel": torch_compile_kernel,
    "torch-load_inline": torch_extension,
}
