"""The nvcc of this machine, for tests that need one."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from builds import ARCH

import jitload
from jitload.errors import ToolchainError
from jitload.settings import read_settings
from jitload.toolchain.cuda import Nvcc
from jitload.toolchain.nvcc import find_nvcc


@functools.cache
def real_nvcc() -> Nvcc | None:
    """Return the nvcc that jitload finds, or None."""
    with tempfile.TemporaryDirectory() as cache:
        try:
            return find_nvcc(read_settings(), Path(cache), name="test")
        except ToolchainError:
            return None


needs_nvcc = pytest.mark.skipif(real_nvcc() is None, reason="needs nvcc: pip install 'jitload[cu13,nvcc]'")


# No C++ header of tvm-ffi: nvcc takes two seconds for this one, and eight with them.
FILE = r"""
#include <stdint.h>
struct Any { int32_t type; uint32_t zero; int64_t value; };
__global__ void add(float* x) { x[threadIdx.x] += 1; }
void Add(float* x) { add<<<1, 32>>>(x); }
extern "C" __attribute__((visibility("default")))
int __tvm_ffi_get(void*, const Any*, int32_t, Any* result) {
  *result = {1, 0, VALUE};
  return 0;
}
"""


def script_of_nvcc(path: Path, change: str) -> Path:
    """Write a script that runs the real nvcc and notes its arguments; `change` is a filter for what it prints."""
    log = path.with_suffix(".log")
    path.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n{{ {real_nvcc().path} "$@" 2>&1; }} {change}\n')
    path.chmod(0o755)
    log.touch()
    return log


def file_of(directory: Path, text: str = FILE, name: str = "f.cu") -> Path:
    """Write a source file."""
    (directory / name).write_text(text)
    return directory / name


def build_file(path: Path, **options: Any) -> Path:
    """Build a file for one architecture."""
    return Path(jitload.build("m", sources=path, **{"arch": ARCH, "extra_cuda_cflags": ["-DVALUE=7"], **options}))
