"""The frozen records that travel between stages."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ParameterKind = Literal["pointer", "int", "uint", "float", "bool", "struct", "bits"]


def python_name(name: str) -> str:
    """Return a parameter's name in signatures and expressions: `in_` for `in`."""
    return f"{name}_" if keyword.iskeyword(name) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: Its name in the source (`in_` for `in`), or `arg0`, `arg1`, … where the source does not show it.
        type: Its C++ type, typedefs resolved, `const float*`; `b64`, by its size, where nothing tells it.
        kind: `pointer`; `int`, `uint`, `float` or `bool` for a scalar; `struct` for anything else by value; `bits`
            where nothing tells (a cubin that came without its source, an `extern "C"` kernel).
        size: Bytes in the kernel's parameter block, as the cubin states them.
        offset: Byte offset in the parameter block, as the cubin states it.
        dtype: For a pointer, the element type a tensor must have, as its DLPack name (`float32`, `bfloat16`,
            `float8_e4m3fn`, `bool`); None accepts any. For a `float` scalar, its format.
        alignment: For a pointer, the alignment in bytes its address must have (16 for `float4*`); otherwise 1.
    """

    name: str
    type: str
    kind: ParameterKind
    size: int
    offset: int
    dtype: str | None = None
    alignment: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One `__global__` function of a cubin.

    Attributes:
        name: Its C++ name with namespaces and template arguments, `ns::scale<float, 4>`.
        symbol: Its symbol in the cubin.
        parameters: Its parameters in order.
        registers: Registers a thread uses.
        shared_bytes: Static shared memory of a block, in bytes.
        local_bytes: Local memory (stack frame) of a thread, in bytes.
        max_threads: The most threads a block may have: `__launch_bounds__`, else 1024.
    """

    name: str
    symbol: str
    parameters: tuple[Parameter, ...]
    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.type} {p.name}' for p in self.parameters)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One `__device__` or `__constant__` variable of a cubin: C++ name, symbol, and size in bytes."""

    name: str
    symbol: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What a Triton kernel's machine code was specialised for: with other values it would compute garbage.

    Attributes:
        parameter: The name of a run-time parameter.
        kind: `multiple_of`: an integer's value, or the address in a pointer; `equal_to`: an integer's value; `null`:
            the argument is None.
        value: 16 or 1; 0 for `null`.
    """

    parameter: str
    kind: Literal["multiple_of", "equal_to", "null"]
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Memory that a Triton kernel wants for the time of a launch; without it, `size` is 0.

    Attributes:
        size: Bytes.
        alignment: The alignment of the whole, in bytes.
        is_per_cta: Whether `size` is what one block wants (Triton 3.4 on), or one program (3.3).
    """

    size: int = 0
    alignment: int = 1
    is_per_cta: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A host-side tensor descriptor among a Triton kernel's parameters, `tensordesc<fp16[128, 64]>`.

    The kernel's parameters for it start at the one named like it and follow each other. With rank n: a 128-byte
    `CUtensorMap`, n x i32 (shape), n x i64 (strides); or, where `is_expanded`, the base pointer, 2n x i64 (shape,
    strides), `flags` x i1, n x i32 (shape), n x i64 (strides).

    Attributes:
        parameter: The name of the parameter.
        dtype: The element type a tensor must have, as its DLPack name.
        block_shape: What one access moves, in elements.
        swizzle: As Triton's `tensordesc_meta` has it, in the driver's numbering (0 none, 1 32 B, 2 64 B, 3 128 B).
        elem_size: Bytes of an element.
        elem_type: The element type's number as `tensordesc_meta` has it: the device's numbering, not the driver's.
        fp4_padded: Whether elements are 4 bits, two in a byte, padded on their way.
        is_expanded: Whether the descriptor is plain parameters, as below sm_90.
        flags: How many flags stand among the plain parameters (padding, round to tf32).
    """

    parameter: str
    dtype: str
    block_shape: tuple[int, ...]
    swizzle: int = 0
    elem_size: int = 0
    elem_type: int = 0
    fp4_padded: bool = False
    is_expanded: bool = False
    flags: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialization:
    """One compiled Triton kernel: how its cubin is launched, and for which arguments.

    Attributes:
        kernel: The kernel; its parameters are those of the cubin without the hidden pointers behind them.
        arguments: What a caller gives, in the order of the kernel's source: all parameters but the constexprs, those
            included that the machine code does not take because they are assumed to be 1 or None. A descriptor is a
            `pointer` of its element type, whose `type` is Triton's text.
        assumptions: What must hold of the arguments.
        descriptors: The host-side descriptors among the arguments.
        constexprs: The values that were compiled in, by name, as they are; launch expressions may use the integers.
        num_warps: Warps of a block, as the compiler left it.
        warp_size: Threads of a warp.
        num_ctas: Blocks of a program.
        cluster: Blocks of a cluster in x, y and z.
        shared_bytes: Dynamic shared memory of a block.
        hidden_pointers: How many pointers (global scratch, profile scratch) follow the parameters: 0, 1 or 2.
        global_scratch: The scratch memory it wants.
        profile_scratch: The same for instrumentation.
        is_pdl: Whether it may start before the kernel ahead of it has ended.
        is_cooperative: Whether all blocks start at once.
        grid_multiplies: How programs become blocks: `x` times `num_ctas`, or each dimension times the cluster's.
        triton_version: The version that compiled it.
    """

    kernel: Kernel
    arguments: tuple[Parameter, ...]
    assumptions: tuple[Assumption, ...] = ()
    descriptors: tuple[Descriptor, ...] = ()
    constexprs: tuple[tuple[str, int | float | bool | str | None], ...] = ()
    num_warps: int
    warp_size: int = 32
    num_ctas: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    hidden_pointers: int = 0
    global_scratch: Scratch = Scratch()
    profile_scratch: Scratch = Scratch()
    is_pdl: bool = False
    is_cooperative: bool = False
    grid_multiplies: Literal["x", "per_dim"] = "x"
    triton_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Machine code for one architecture.

    Attributes:
        data: The ELF image.
        arch: The architecture with its suffix, `sm_90a`.
        log: What the compiler said, word for word; empty when it said nothing.
        kernels: The kernels in the image, in the order of the source.
        variables: The `__device__` and `__constant__` variables in the image.
        triton: How to launch it, where it is a Triton kernel's.
    """

    data: bytes = field(repr=False)
    arch: str
    log: str = field(default="", repr=False)
    kernels: tuple[Kernel, ...] = ()
    variables: tuple[Variable, ...] = ()
    triton: Specialization | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlot:
    """Place of one parameter in a kernel's parameter block, as `.nv.info` records it, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageKernel:
    """What a cubin itself says of one kernel; types and names are not in it."""

    symbol: str
    slots: tuple[ParameterSlot, ...]
    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a cubin's ELF says: its architecture (`sm_90a`), its kernels and its variables."""

    arch: str
    kernels: tuple[ImageKernel, ...]
    variables: tuple[Variable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place in a source that looks like a `__global__` function; only the compiler knows if it is one.

    Attributes:
        name: The name with its namespaces, `ns::scale`.
        is_template: Whether `template<…>` stands before it, so that it is no kernel until it is instantiated.
        parameters: The names of its parameters as far as the text shows them; "" for an unnamed one.
        types: The text of each parameter's type, white space folded.
        doc: The comment right above it, without its comment marks.
        piece: Index of the piece of `cuda_sources` it stands in.
        line: Its line in that piece, counted from 1.
    """

    name: str
    is_template: bool
    parameters: tuple[str, ...]
    types: tuple[str, ...]
    doc: str
    piece: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSource:
    """Device code compiled for one architecture.

    Attributes:
        cubin: The cubin with its typed kernels.
        symbols: The symbol of each kernel that a launch named.
        candidates: The places in the source that look like kernels.
        headers: The user's headers that the compiler may have read.
    """

    cubin: Cubin
    symbols: dict[str, str]
    candidates: tuple[Candidate, ...]
    headers: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProgram:
    """Kernels compiled for the CPU.

    Attributes:
        compiled: Their types and names, as NVRTC would have given them; the cubin is empty.
        object_file: The object file's name in the work directory.
        rows: For each kernel's symbol its row in the table, and whether its threads may wait for each other.
        dynamic_shared: The symbols of `extern __shared__` arrays, which the wrapper has to define.
        files_read: The files that the compiler read.
    """

    compiled: CompiledSource
    object_file: str
    rows: dict[str, tuple[int, bool]]
    dynamic_shared: tuple[str, ...]
    files_read: tuple[Path, ...]
