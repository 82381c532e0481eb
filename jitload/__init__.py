"""Compile CUDA kernels just in time, and call them as typed functions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitload.api import (
    build,
    build_inline,
    compile_cubin,
    extract_triton,
    load,
    load_inline,
    load_module,
    load_triton,
)
from jitload.errors import JitLoadError
from jitload.launch import Launch

if TYPE_CHECKING:
    from jitload.loader.module import Module, global_tensor
    from jitload.operators.jax_call import jax_call as jax_call
    from jitload.operators.operator import torch_op as torch_op
    from jitload.prebuilding.api import prebuild as prebuild

__version__ = "0.1.0"

__all__ = [
    "JitLoadError",
    "Launch",
    "Module",
    "build",
    "build_inline",
    "compile_cubin",
    "extract_triton",
    "global_tensor",
    "load",
    "load_inline",
    "load_module",
    "load_triton",
]

_MODULES = ("dtype", "extension", "nvrtc")  # imported when they are named
_FROM_LOADER = ("Module", "global_tensor")  # imported late: the loader imports tvm-ffi, which imports torch


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"jitload.{name}")
    if name == "to_cpp_dtype":
        from jitload.dtype import to_cpp_dtype

        return to_cpp_dtype
    if name in _FROM_LOADER:
        from jitload.loader import module as loader

        return getattr(loader, name)
    if name == "prebuild":
        from jitload.prebuilding.api import prebuild

        return prebuild
    if name == "jax_call":
        from jitload.operators.jax_call import jax_call

        return jax_call
    if name == "torch_op":
        from jitload.operators.operator import torch_op

        return torch_op
    raise AttributeError(f"module 'jitload' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", "errors", "jax_call", "nvrtc", "prebuild", "torch_op"]
