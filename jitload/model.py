"""The frozen records that travel between stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ParameterKind = Literal["pointer", "int", "uint", "float", "bool", "struct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: Its name in the source (`in_` for `in`), or `arg0`, `arg1`, … where the source does not show it.
        type: Its C++ type, typedefs resolved, `const float*`.
        kind: `pointer`; `int`, `uint`, `float` or `bool` for a scalar; `struct` for anything else by value.
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
class Cubin:
    """Machine code for one architecture.

    Attributes:
        data: The ELF image.
        arch: The architecture with its suffix, `sm_90a`.
        log: What the compiler said, word for word; empty when it said nothing.
        kernels: The kernels in the image, in the order of the source.
        variables: The `__device__` and `__constant__` variables in the image.
    """

    data: bytes = field(repr=False)
    arch: str
    log: str = field(default="", repr=False)
    kernels: tuple[Kernel, ...] = ()
    variables: tuple[Variable, ...] = ()


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
