"""Stand-ins for Triton's cubins: CUDA kernels with the same parameters, and libraries around them.

A test says what Triton would say of a kernel, and compares what reaches the driver with what it worked out by itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import jitload
from jitload.building.ninja import run_ninja, write_ninja
from jitload.building.runtime import find_objects, library_steps
from jitload.codegen.wrapper import write_wrapper
from jitload.model import Assumption, Cubin, Kernel, Parameter, Specialization
from jitload.request.request import TritonSource, VariantSource
from jitload.settings import read_settings
from jitload.toolchain.host import find_compiler, find_ninja
from jitload.triton.wrapper import write_triton_sources

from .arrays import CudaArray
from .driver import LaunchRecord, StubDriver

_C_TYPES = {
    "i1": "bool", "u1": "bool", "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long",
    "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned", "u64": "unsigned long long",
    "fp16": "unsigned short", "bf16": "unsigned short", "fp32": "float", "fp64": "double",
}  # fmt: skip
_SIZES = {"1": 1, "8": 1, "16": 2, "32": 4, "64": 8}
_FLOATS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
_MAP = "struct alignas(64) Map { char bytes[128]; };\n"


def parameter(name: str, type_: str, dtype: str | None = None) -> Parameter:
    """Return an argument of a Triton type: `*fp32`, `i32`, `bf16`, …; `dtype` for a pointer or a descriptor."""
    if type_.startswith(("*", "tensordesc", "None")):
        dtypes = {**_FLOATS, "i32": "int32", "i64": "int64", "u8": "uint8", "i1": "bool"}
        return Parameter(name=name, type=type_, kind="pointer", size=8, offset=0, dtype=dtype or dtypes.get(type_[1:]))
    letters, bits = re.fullmatch(r"([a-z]+)(\d+)", type_).groups()  # type: ignore[union-attr]
    kind: Any = {"i": "int", "u": "uint", "fp": "float", "bf": "float"}[letters] if bits != "1" else "bool"
    return Parameter(name=name, type=type_, kind=kind, size=_SIZES[bits], offset=0, dtype=_FLOATS.get(type_))


def multiple(name: str, value: int = 16) -> Assumption:
    """Assume a multiple of an integer's value or of an address."""
    return Assumption(parameter=name, kind="multiple_of", value=value)


def one(name: str) -> Assumption:
    """Assume that an integer is 1."""
    return Assumption(parameter=name, kind="equal_to", value=1)


def null(name: str) -> Assumption:
    """Assume that an argument is None."""
    return Assumption(parameter=name, kind="null", value=0)


def aligned_array(
    offset: int = 0, dtype: str = "float32", device: int = 0, shape: tuple[int, ...] = (64,)
) -> CudaArray:
    """Return an array at a multiple of 256 bytes, plus an offset."""
    memory = np.zeros(4096, np.uint8)
    start = -memory.ctypes.data % 256 + offset
    return CudaArray(memory[start:], device, dtype=dtype, shape=shape)


def specialize(name: str, arguments: Sequence[Parameter], **facts: Any) -> Specialization:
    """Return what Triton would say of a kernel; `taken` are the names that the cubin takes, default all."""
    taken = facts.pop("taken", [p.name for p in arguments])
    parameters = facts.pop("parameters", [p for p in arguments if p.name in taken])
    kernel = Kernel(
        name=name,
        symbol=name,
        parameters=tuple(parameters),
        registers=0,
        shared_bytes=0,
        local_bytes=0,
        max_threads=1024,
    )
    usual = {"num_warps": 4, "triton_version": "3.6.0", "hidden_pointers": 2}
    return Specialization(kernel=kernel, arguments=tuple(arguments), **{**usual, **facts})


def stand_in(specialization: Specialization, arch: str = "sm_90", *, body: str = "") -> Cubin:
    """Compile a kernel that takes the parameters of a specialisation."""
    types = [_c_type(p) for p in specialization.kernel.parameters] + ["void*"] * specialization.hidden_pointers
    text = ", ".join(f"{type_} p{number}" for number, type_ in enumerate(types))
    source = f'{_MAP}extern "C" __global__ void {specialization.kernel.symbol}({text}) {{ {body} }}'
    compiled = jitload.compile_cubin(source, arch=arch)
    return replace(compiled, triton=specialization)


def _c_type(parameter_: Parameter) -> str:
    if parameter_.kind == "struct":
        return "const __grid_constant__ Map"
    return "void*" if parameter_.kind == "pointer" else _C_TYPES[parameter_.type]


def function(name: str, *variants: tuple[str, Cubin | tuple[Cubin, ...]], grid: Any = 1) -> TritonSource:
    """Return a function of variants, each with a name and its cubin or cubins."""
    made = tuple(
        VariantSource(name=label, cubins=cubins if isinstance(cubins, tuple) else (cubins,))
        for label, cubins in variants
    )
    return TritonSource((), name, made, grid, doc=f"The kernel {name}.")


@dataclass
class TensorDescriptor:
    """As Triton has it."""

    base: Any
    shape: Any
    strides: Any
    block_shape: Any
    padding: str = "zero"
    round_f32_to_tf32: bool = False


def descriptor_parameters(name: str, rank: int, *, flags: int | None = None) -> list[Parameter]:
    """Return what a cubin takes of a descriptor; with `flags`, of one that is expanded."""
    ints = [parameter(f"{name}.shape{axis}", "i32") for axis in range(rank)]
    longs = [parameter(f"{name}.stride{axis}", "i64") for axis in range(rank)]
    if flags is None:
        first = Parameter(name=name, type="nvTmaDesc", kind="struct", size=128, offset=0)
        return [first, *ints, *longs]
    wide = [parameter(f"{name}.long{axis}", "i64") for axis in range(2 * rank)]
    bits = [parameter(f"{name}.flag{number}", "i1") for number in range(flags)]
    return [parameter(name, "*fp16"), *wide, *bits, *ints, *longs]


def build_triton(directory: Path, *functions: TritonSource) -> Path:
    """Build a library of functions in an empty directory."""
    settings = read_settings()
    compiler = find_compiler(settings)
    runtimes = find_objects(("runtime", "triton_runtime"), settings)
    directory.mkdir(parents=True)
    write_triton_sources("kernels", functions, directory)
    write_wrapper(directory)
    write_ninja(directory, library_steps(compiler, runtimes, "kernels.so"))
    run_ninja(find_ninja(settings), directory, name="kernels")
    return directory / "kernels.so"


def load_triton(directory: Path, *functions: TritonSource) -> jitload.Module:
    """Build and load a library of functions."""
    return jitload.load_module(build_triton(directory, *functions))


def launched(driver: StubDriver, function: Any, *arguments: Any) -> LaunchRecord:
    """Return the one launch that a call makes."""
    driver.clear()
    function(*arguments)
    (launch,) = driver.launches()
    return launch
