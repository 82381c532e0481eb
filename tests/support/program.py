"""The driver's functions as a program calls them, for tests of the stub itself."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .driver import StubDriver

CUBIN = Path(__file__).parent.parent / "data" / "stub_kernels.sm_90.cubin"


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Cuda:
    """A program that has made device 0 current; `cuda("cuInit", 0)` calls a function and returns its result."""

    def __init__(self, driver: StubDriver) -> None:
        self.driver = driver
        driver.use_device(0)

    def __call__(self, name: str, *arguments: Any) -> int:
        result: int = getattr(self.driver.library, name)(*arguments)
        return result

    def library(self, image: bytes | None = None) -> ctypes.c_void_p:
        """Load a cubin, the one of the tests where none is given."""
        library = ctypes.c_void_p()
        code = ctypes.create_string_buffer(CUBIN.read_bytes() if image is None else image)
        assert self("cuLibraryLoadData", ctypes.byref(library), code, None, None, 0, None, None, 0) == 0
        code.raw = bytes(len(code))  # the driver has its own copy
        return library

    def kernel(self, name: str, library: ctypes.c_void_p | None = None) -> ctypes.c_void_p:
        """Find a kernel by its symbol."""
        kernel = ctypes.c_void_p()
        assert self("cuLibraryGetKernel", ctypes.byref(kernel), library or self.library(), name.encode()) == 0
        return kernel

    def launch(self, kernel: ctypes.c_void_p, *values: Any, **options: Any) -> int:
        """Launch with values that ctypes holds; `attributes` are lists of ints by their numbers in cuda.h."""
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)) if values else None
        attributes = [Attribute(id_, 0, (ctypes.c_int * 16)(*v)) for id_, v in options.pop("attributes", {}).items()]
        usual = {"grid": (1, 1, 1), "block": (32, 1, 1), "stream": None, "attribute_count": len(attributes)}
        config = Config(attributes=(Attribute * len(attributes))(*attributes), **{**usual, **options})
        return self("cuLaunchKernelEx", ctypes.byref(config), kernel, pointers, None)
