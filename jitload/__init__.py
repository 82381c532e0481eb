"""Compile CUDA kernels just in time, and call them as typed functions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitload.api import build, build_inline, compile_cubin, load, load_inline, load_module
from jitload.errors import JitLoadError
from jitload.request.launch import Launch
from jitload.request.tune import Tune

if TYPE_CHECKING:
    from jitload.checking import check as check
    from jitload.judging.judge import Judge as Judge
    from jitload.loader.module import Module, global_tensor
    from jitload.measuring.comparison import compare as compare
    from jitload.measuring.tuning import Tuning as Tuning
    from jitload.operators.jax_call import jax_call as jax_call
    from jitload.operators.operator import torch_op as torch_op
    from jitload.prebuilding.api import prebuild as prebuild
    from jitload.request.tma import Tma as Tma
    from jitload.triton_api import extract_triton, load_triton
    from jitload.tuning.tuner import tune as tune

__version__ = "0.1.0"

__all__ = [
    "JitLoadError",
    "Launch",
    "Module",
    "Tune",
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

_MODULES = ("dtype", "extension", "nvrtc")  # submodules that are imported when they are first accessed
_LATE = {  # names whose modules are slow to import: the loader imports tvm-ffi, for example, which imports torch
    "Judge": "jitload.judging.judge",
    "Module": "jitload.loader.module",
    "Tma": "jitload.request.tma",
    "check": "jitload.checking",
    "compare": "jitload.measuring.comparison",
    "extract_triton": "jitload.triton_api",
    "global_tensor": "jitload.loader.module",
    "jax_call": "jitload.operators.jax_call",
    "load_ipython_extension": "jitload.notebook",  # for `%load_ext jitload`
    "load_triton": "jitload.triton_api",
    "prebuild": "jitload.prebuilding.api",
    "to_cpp_dtype": "jitload.dtype",
    "torch_op": "jitload.operators.operator",
    "tune": "jitload.tuning.tuner",
    "Tuning": "jitload.measuring.tuning",
    "unload_ipython_extension": "jitload.notebook",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"jitload.{name}")
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'jitload' has no attribute {name!r}")


def __dir__() -> list[str]:
    late = ("Judge", "Tma", "Tuning", "check", "compare", "errors", "jax_call", "nvrtc", "prebuild", "torch_op", "tune")
    return [*__all__, "__version__", *late]
