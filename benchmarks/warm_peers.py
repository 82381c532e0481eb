"""A build that lies on disk, found by each loader that `warm.py` compares; each function runs in a process of its own.

A function does its imports, then starts the clock. The first process fills the cache and its answer is not used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from children import Answer, timed
from cold_peers import load_tvm_ffi_cpp, start_cuda
from nvrtc_floor import compile_bare, nvrtc_path, open_nvrtc
from sources import SOURCE, TORCH_DECLARATION, TORCH_SOURCE, kernel_text

ENTRIES = 50  # different entries, after the first
REPEATS = 200  # identical calls
HEADERS = 20


def _jitload_find(arch: str, source: str, include_paths: Sequence[Path] = ()) -> object:
    import jitload

    functions = {"add_one": jitload.Launch(grid="ceil_div(n, 256)", block=256)}
    return jitload.load_inline(
        "bench", cuda_sources=source, functions=functions, arch=arch, extra_include_paths=include_paths
    )


def _jitload_times(arch: str, texts: Sequence[str], include_paths: Sequence[Path] = ()) -> Answer:
    first, *further = texts
    return {
        "first": [timed(_jitload_find, arch, first, include_paths)],
        "further": [timed(_jitload_find, arch, text, include_paths) for text in further],
        "same": [timed(_jitload_find, arch, first, include_paths) for _ in range(REPEATS)],
    }


def jitload_given(arch: str) -> Answer:
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    import jitload  # noqa: F401

    return _jitload_times(arch, [kernel_text(i) for i in range(1 + ENTRIES)])


def jitload_headers(arch: str) -> Answer:
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    import jitload  # noqa: F401

    folder, lines = user_headers()
    return _jitload_times(arch, [lines + kernel_text(i) for i in range(1 + ENTRIES)], [folder])


def user_headers() -> tuple[Path, str]:
    """Write the user's headers beside the cache, once; return their directory and the lines that include them."""
    folder = Path(os.environ["JITLOAD_CACHE_DIR"]).parent / "headers"
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(HEADERS):
        path = folder / f"part{i}.cuh"
        if not path.exists():  # a header that changes is no hit
            path.write_text(f"#pragma once\nstruct Part{i} {{ float value[{i + 1}]; }};\n")
    return folder, "".join(f'#include "part{i}.cuh"\n' for i in range(HEADERS))


def jitload_native(arch: str) -> Answer:  # noqa: ARG001  jitload asks the GPU
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    import jitload  # noqa: F401

    return {
        "first": [timed(_jitload_find, "native", SOURCE)],
        "same": [timed(_jitload_find, "native", SOURCE) for _ in range(REPEATS)],
    }


def jitload_triton(arch: str) -> Answer:
    import tvm_ffi  # noqa: F401
    from triton_kernel import add_one

    import jitload

    def find() -> object:
        signature = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32"}
        return jitload.load_triton(
            "bench", add_one, signature=signature, constexprs={"BLOCK": 256}, grid="ceil_div(n, BLOCK)", arch=arch
        )

    return {"first": [timed(find)], "same": [timed(find) for _ in range(REPEATS)]}


def tvm_ffi_cpp(arch: str) -> Answer:
    import tvm_ffi.cpp  # noqa: F401

    start_cuda()
    cubin = _cubin_on_disk(arch)
    return {
        "first": [timed(load_tvm_ffi_cpp, cubin)],
        "same": [timed(load_tvm_ffi_cpp, cubin) for _ in range(10)],
    }


def _cubin_on_disk(arch: str) -> bytes:
    """Return the cubin, kept beside the cache: upstream itself does not cache what NVRTC made."""
    path = Path(os.environ["TVM_FFI_CACHE_DIR"]).parent / "add_one.cubin"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(compile_bare(open_nvrtc(nvrtc_path()), SOURCE, arch))
    return path.read_bytes()


def torch_extension(arch: str) -> Answer:  # noqa: ARG001  its architecture is in the environment
    from torch.utils import cpp_extension

    load_inline: Any = cpp_extension.load_inline  # untyped

    def find() -> object:
        return load_inline(
            "bench_add_one", cpp_sources=TORCH_DECLARATION, cuda_sources=TORCH_SOURCE, functions=["add_one_host"]
        )

    start_cuda()
    return {"first": [timed(find)], "same": [timed(find) for _ in range(10)]}


def cupy_raw_kernel(arch: str) -> Answer:  # noqa: ARG001  CuPy asks the GPU
    import cupy

    def find() -> None:
        cupy.RawKernel(SOURCE, "add_one").compile()

    cupy.zeros(1)
    return {"first": [timed(find)], "same": [timed(find) for _ in range(REPEATS)]}


def triton_jit(arch: str) -> Answer:  # noqa: ARG001  Triton asks the GPU
    import torch
    from triton_kernel import add_one

    x = torch.zeros(256, device="cuda")
    y = torch.empty_like(x)
    return {"first": [timed(lambda: add_one[(1,)](x, y, 256, BLOCK=256, num_warps=8))]}


PEERS: dict[str, Callable[[str], Answer]] = {
    "jitload": jitload_given,
    "jitload-headers": jitload_headers,
    "jitload-native": jitload_native,
    "jitload-triton": jitload_triton,
    "tvm-ffi": tvm_ffi_cpp,
    "cupy": cupy_raw_kernel,
    "triton": triton_jit,
    "torch-load_inline": torch_extension,
}
