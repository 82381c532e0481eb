"""Kernels launched by Triton's own launcher, or by a library of ours, over the stub driver.

    python tests/triton_launches.py CASE:CAPABILITY...

Each launch is made in a child of this process, after the slow imports. The environment says where the stub is, and in
which directory the children write what it got (tests/test_triton_launches.py).
"""

import ctypes
import json
import os
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.driver import StubDriver
from support.records import LAUNCH_CLUSTER

STREAM = 0x77
SCRATCH = 0x5550000


class Tensor:
    """A tensor for Triton: it asks for the address, and for what `TensorDescriptor` checks."""

    class _Half:
        itemsize = 2
        is_floating_point = True

    dtype = _Half()

    def __init__(self, number: int, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> None:
        self.address = (1 + number) * 0x1000000
        self.shape = shape
        self.name = dtype
        self.strides = strides or tuple(_product(shape[axis + 1 :]) for axis in range(len(shape)))

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return self.strides


def _product(extents: tuple[int, ...]) -> int:
    return extents[0] * _product(extents[1:]) if extents else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A launch: the kernel's name in triton_kernels, how it is compiled, what it is given, and its grid for both."""

    kernel: str
    signature: dict[str, str]
    constexprs: dict[str, int]
    arguments: tuple[Any, ...]
    grid: tuple[str, ...]
    programs: tuple[int, int, int]
    options: dict[str, int] = field(default_factory=dict)


_ADD: dict[str, Any] = {
    "kernel": "vector_add",
    "signature": {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
    "constexprs": {"BLOCK": 1024},
    "arguments": (*(Tensor(number, (5000,), "float32") for number in range(3)), 5000),
    "grid": ("ceil_div(n, BLOCK)",),
    "programs": (5, 1, 1),
}
_MATMUL: dict[str, Any] = {
    "kernel": "persistent_matmul",
    "signature": {
        "a_desc": "tensordesc<fp16[128, 64]>", "b_desc": "tensordesc<fp16[128, 64]>",
        "c_desc": "tensordesc<fp16[128, 128]>", "M": "i32", "N": "i32", "K": "i32",
    },
    "constexprs": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "PROGRAMS": 132},
    "arguments": (
        Tensor(0, (512, 256), "float16", strides=(264, 1)), Tensor(1, (768, 256), "float16"),
        Tensor(2, (512, 768), "float16"), 512, 768, 256,
    ),
    "grid": ("M // 4",),
    "programs": (128, 1, 1),
}  # fmt: skip
CASES = {
    "add": Case(**_ADD),
    "pairs": Case(**_ADD, options={"num_ctas": 2}),
    "descriptors": Case(**_MATMUL, options={"num_warps": 8}),
    "descriptors_pairs": Case(**_MATMUL, options={"num_warps": 8, "num_ctas": 2}),
    "scratch": Case(
        kernel="device_descriptor_copy",
        signature={"x_ptr": "*fp32", "y_ptr": "*fp32", "M": "i32", "N": "i32"},
        constexprs={"BLOCK_M": 64, "BLOCK_N": 64},
        arguments=(Tensor(0, (512, 256), "float32"), Tensor(1, (512, 256), "float32"), 512, 256),
        grid=("ceil_div(M, BLOCK_M)", "ceil_div(N, BLOCK_N)"),
        programs=(8, 4, 1),
    ),
}


class _Scratch:
    """Scratch memory, where Triton's allocator has it."""

    def data_ptr(self) -> int:
        return SCRATCH


class _Driver:
    """Stands for Triton's driver: its launcher wants the helpers that it was compiled with, and nothing else."""

    utils: Any = None

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0


def find_kernel(case: Case) -> Any:
    """Return the kernel; some of that module's ask for a driver when they are made."""
    from triton.runtime import driver

    driver.set_active(_Driver())  # type: ignore[attr-defined,no-untyped-call]  # Triton's own
    import triton_kernels

    return getattr(triton_kernels, case.kernel)


def launch_with_triton(case: Case, capability: int, stub: StubDriver) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import driver
    from triton.compiler import ASTSource

    kernel = find_kernel(case)
    signature = {**case.signature, **dict.fromkeys(case.constexprs, "constexpr")}
    constants: dict[Any, Any] = {(tuple(signature).index(name),): value for name, value in case.constexprs.items()}
    arguments = [_described(value, type_) for value, type_ in zip(case.arguments, case.signature.values(), strict=True)]
    triton.set_allocator(lambda *_: _Scratch())
    arguments += case.constexprs.values()
    _Driver.utils = driver.CudaUtils()
    source = ASTSource(kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=case.options)
    launcher = driver.CudaLauncher(source, compiled.metadata)
    handle = load_kernel(stub, compiled.asm["cubin"], compiled.metadata.name)
    launcher(*case.programs, STREAM, handle, compiled.packed_metadata, None, None, None, *arguments)


def load_kernel(stub: StubDriver, cubin: bytes, name: str) -> int:
    """Return the handle of a kernel that may have as much shared memory as the device gives."""
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert stub.library.cuLibraryLoadData(ctypes.byref(library), cubin, None, None, 0, None, None, 0) == 0
    assert stub.library.cuLibraryGetKernel(ctypes.byref(kernel), library, name.encode()) == 0
    assert stub.library.cuKernelSetAttribute(8, 200_000, kernel, 0) == 0
    return kernel.value or 0


def _described(value: Any, type_: str) -> Any:
    if not type_.startswith("tensordesc"):
        return value
    from triton.tools.tensor_descriptor import TensorDescriptor

    block = re.search(r"\[(.*)\]", type_)
    assert block is not None
    return TensorDescriptor(value, list(value.shape), list(value.stride()), [int(n) for n in block[1].split(",")])


def launch_with_jitload(case: Case, capability: int, _: StubDriver) -> None:
    import numpy as np
    from support.arrays import CudaArray

    import jitload

    module = jitload.load_triton(
        "launches", find_kernel(case), signature=case.signature, constexprs=case.constexprs, grid=case.grid,
        arch=f"sm_{capability}", **case.options,
    )  # fmt: skip
    arguments = [
        CudaArray(np.zeros(1), dtype=value.name, shape=value.shape, strides=value.strides, address=value.address)
        if isinstance(value, Tensor)
        else value
        for value in case.arguments
    ]
    module[case.kernel][None, None, None, STREAM](*arguments)


def described(stub: StubDriver) -> dict[str, Any]:
    """Return what the driver got: tensor maps, and a launch with its parameters and attributes."""
    (launch,) = stub.launches()
    params = launch.params
    for made in stub.calls("cuMemAllocAsync"):
        params = params.replace(struct.pack("<Q", made.number("address")), struct.pack("<Q", SCRATCH))
    sizes = {LAUNCH_CLUSTER: 12}  # the others are ints
    attributes = {number: value[: sizes.get(number, 4)].hex() for number, value in sorted(launch.attributes.items())}
    return {
        "maps": [dict(call.fields) for call in stub.calls("cuTensorMapEncodeTiled")],
        "launch": (launch.grid, launch.block, launch.cluster, launch.shared_bytes, launch.stream, attributes),
        "parameters": [len(argument) for argument in launch.arguments],
        "bytes": params.hex(),
    }


WAYS = {"triton": launch_with_triton, "jitload": launch_with_jitload}


def main(*cases: str) -> None:
    """Fork a child for each way of each case; the first that fails ends the program."""
    sys.modules["torch"] = None  # it takes seconds to import
    import numpy as np  # noqa: F401
    from support.imports import import_slow_modules

    import jitload  # noqa: F401

    import_slow_modules()
    for case in cases:
        name, capability = case.split(":")
        for way, work in WAYS.items():
            if os.fork() == 0:
                stub = StubDriver(Path(os.environ["STUB"], "libcuda.so.1"))
                stub.use_device(0)
                stub.set_capability(0, *divmod(int(capability), 10))
                work(CASES[name], int(capability), stub)
                path = Path(os.environ["STUB"], f"{way}-{name}-{capability}.json")
                path.write_text(json.dumps(described(stub)), encoding="utf-8")
                os._exit(0)  # at once: Python's own end takes as long as the launch
            if status := os.waitstatus_to_exitcode(os.wait()[1]):
                sys.exit(f"{case}, {way}: status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
