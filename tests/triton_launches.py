"""Kernels launched by Triton's own launcher, or by a library of ours, over a libcuda that writes down what it gets.

    python tests/triton_launches.py CASE:CAPABILITY...

Each launch is made in a child of this process, after the slow imports. The environment says where that libcuda is, and
in which directory the children write (tests/test_triton_launches.py).
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """Scratch memory, where the recorder has it too."""

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


def launch_with_triton(case: Case, capability: int) -> None:
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
    launcher(*case.programs, STREAM, 16, compiled.packed_metadata, None, None, None, *arguments)


def _described(value: Any, type_: str) -> Any:
    if not type_.startswith("tensordesc"):
        return value
    from triton.tools.tensor_descriptor import TensorDescriptor

    block = re.search(r"\[(.*)\]", type_)
    assert block is not None
    return TensorDescriptor(value, list(value.shape), list(value.stride()), [int(n) for n in block[1].split(",")])


def launch_with_jitload(case: Case, capability: int) -> None:
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


def write_sizes(case: Case, capability: int) -> None:
    """Write the sizes of the parameters, as the cubin has them."""
    import jitload
    from jitload.elf.cubin import read_image

    cubin = jitload.extract_triton(
        find_kernel(case), signature=case.signature, constexprs=case.constexprs, arch=f"sm_{capability}", **case.options
    )
    sizes = ",".join(str(slot.size) for slot in read_image(cubin.data).kernels[0].slots)
    Path(os.environ["RECORDER_FILE"]).write_text(sizes, encoding="utf-8")


WAYS = {"sizes": write_sizes, "triton": launch_with_triton, "jitload": launch_with_jitload}


def main(*cases: str) -> None:
    """Fork a child for each way of each case; the first that fails ends the program."""
    sys.modules["torch"] = None  # it takes seconds to import
    import numpy as np  # noqa: F401
    from support.imports import import_slow_modules

    import jitload  # noqa: F401

    import_slow_modules()
    for case in cases:
        name, capability = case.split(":")
        files = {way: Path(os.environ["RECORDER_DIR"], f"{way}-{name}-{capability}.txt") for way in WAYS}
        for way, work in WAYS.items():
            if os.fork() == 0:
                os.environ |= {"RECORDER_FILE": str(files[way]), "RECORDER_CAPABILITY": capability}
                os.environ["RECORDER_SIZES"] = "" if way == "sizes" else files["sizes"].read_text(encoding="utf-8")
                ctypes.CDLL(os.environ["RECORDER"], mode=ctypes.RTLD_GLOBAL)
                work(CASES[name], int(capability))
                os._exit(0)  # at once: Python's own end takes as long as the launch
            if status := os.waitstatus_to_exitcode(os.wait()[1]):
                sys.exit(f"{case}, {way}: status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
