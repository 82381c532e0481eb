"""The functions that tvm-ffi has under the path `tvm_ffi.cpp.extension`."""

from jitload.api import build, build_inline, load, load_inline

__all__ = ["build", "build_inline", "load", "load_inline"]
