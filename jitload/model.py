"""Records of compiled code: cubins, kernels and their parameters.

Most of those that only jitload uses are named tuples, because creating a dataclass at import takes seven times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from jitload.candidate import Candidate
    from jitload.expressions.compiler import Op

TENSOR_MAP_BYTES = 128  # of a CUtensorMap
_KERNELS_SHOWN = 4  # in the repr of a cubin
ParameterKind = Literal["pointer", "int", "uint", "float", "bool", "struct", "bits", "stream"]


class Parameter(NamedTuple):
    """One parameter of a kernel.

    Attributes:
        name: Its name in the source (`in_` for `in`), or `arg0`, `arg1`, … if the source does not show it.
        type: Its C++ type without typedefs, such as `const float*`; if the type is unknown, a text that shows only the
            size, such as `b64` or `b8[24]`.
        kind: `pointer`; `int`, `uint`, `float` or `bool` for a scalar; `struct` for any other value; `bits` if the type
            is unknown (an `extern "C"` kernel in a cubin without source); `stream` for a host function's parameter
            that gets the current CUDA stream.
        size: Its size in bytes in the kernel's parameter block, from the cubin; 0 for a type whose size only the
            compiler knows, as long as no kernel is known.
        offset: Its byte offset in the parameter block, from the cubin.
        dtype: For a pointer, the DLPack name of the element type that a tensor must have (`float32`, `bfloat16`,
            `float8_e4m3fn`, `bool`), or None if any element type is accepted. For a `float` scalar, the scalar's type.
        alignment: For a pointer, the alignment in bytes that its address must have (16 for `float4*`); otherwise 1.
        layout: For a struct, the numbers in it. `f4*2@0;i4*1@8` means two floats of 4 bytes at byte 0, and an integer
            of 4 bytes at byte 8. `u` is an unsigned integer, a bool or a pointer, `r` a bfloat16, `b` a float8,
            and `?` padding, or bytes whose meaning is not known. `f4*6@0/12` is an array with rows of 12 bytes.
            The layout of a CUDA vector type begins with `=`: `=f4*4@0`. The layout is "" if nothing is known.
    """

    name: str
    type: str
    kind: ParameterKind
    size: int
    offset: int
    dtype: str | None = None
    alignment: int = 1
    layout: str = ""

    @property
    def is_tensor_map(self) -> bool:
        """Whether this stands for a tensor of which the kernel gets only a tensor map, so that its strides may vary."""
        return self.kind == "pointer" and self.size == TENSOR_MAP_BYTES


def untyped_parameters(slots: Iterable[tuple[int, int]]) -> tuple[Parameter, ...]:
    """Return parameters of which only the offsets and sizes in bytes are known.

    For example, `b64` is the type of one of 8 bytes. A size other than 1, 2, 4 or 8 is an array: `b8[24]`.
    """
    return tuple(
        Parameter(f"arg{number}", f"b{8 * size}" if size in (1, 2, 4, 8) else f"b8[{size}]", "bits", size, offset)
        for number, (offset, size) in enumerate(slots)
    )


class Kernel(NamedTuple):
    """One `__global__` function of a cubin.

    Attributes:
        name: Its C++ name with namespaces and template arguments, `ns::scale<float, 4>`.
        symbol: Its symbol in the cubin.
        parameters: Its parameters in order.
        registers: Registers per thread. `registers`, `shared_bytes` and `local_bytes` are None on the CPU, where they
            do not apply.
        shared_bytes: Static shared memory per block, in bytes.
        local_bytes: Local memory (stack frame) per thread, in bytes.
        max_threads: The maximum number of threads per block: `__launch_bounds__`, or else 1024.
        spill_bytes: The bytes that a thread stores to local memory because it has too few registers, as reported by
            ptxas; None if the number is not known, as for cubins that were compiled elsewhere.
        barriers: The number of barriers that a block uses, or None if it is not known, as on the CPU.
    """

    name: str
    symbol: str
    parameters: tuple[Parameter, ...]
    registers: int | None
    shared_bytes: int | None
    local_bytes: int | None
    max_threads: int
    spill_bytes: int | None = None
    barriers: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the kernel as a dictionary, in which each parameter is a dictionary, too."""
        return {**self._asdict(), "parameters": [parameter._asdict() for parameter in self.parameters]}

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.type} {p.name}' for p in self.parameters)})"

    def __repr__(self) -> str:
        from jitload.tables import describe_resources

        return f"<jitload kernel {self}: {describe_resources(self)}>"


class Variable(NamedTuple):
    """A `__device__` or `__constant__` variable of a cubin.

    Attributes:
        name: Its C++ name.
        symbol: Its symbol in the cubin.
        size: Its size in bytes.
        dtype: The dtype of its elements, or None if it is not known.
    """

    name: str
    symbol: str
    size: int
    dtype: str | None = None


class Assumption(NamedTuple):
    """A property of an argument that a Triton kernel's code relies on: without it, the results would be wrong.

    Attributes:
        parameter: The name of a run-time parameter.
        kind: `multiple_of`: the integer, or the address in the pointer, is a multiple of `value`; `equal_to`: the
            integer equals `value`; `null`: the argument is None.
        value: 16 for `multiple_of`, 1 for `equal_to`, 0 for `null`.
    """

    parameter: str
    kind: Literal["multiple_of", "equal_to", "null"]
    value: int


class Descriptor(NamedTuple):
    """A host-side tensor descriptor among a Triton kernel's parameters, `tensordesc<fp16[128, 64]>`.

    A descriptor is passed as several consecutive parameters. The first one has the descriptor's name. For rank n, the
    parameters are:

    - by default: a 128-byte `CUtensorMap`, n x i32 (shape), n x i64 (strides)
    - if `is_expanded`: the base pointer, 2n x i64 (shape, strides), `flags` x i1, n x i32 (shape), n x i64 (strides)

    Attributes:
        parameter: The name of the parameter.
        dtype: The element type that a tensor must have, as its DLPack name.
        block_shape: The block that an access transfers, in elements.
        swizzle: The swizzle mode from Triton's `tensordesc_meta`, in the driver's numbering: 0 for none, 1 for 32
            bytes, 2 for 64 bytes, 3 for 128 bytes.
        elem_size: Bytes per element.
        elem_type: The number of the element type, from `tensordesc_meta`, in the device's numbering, not the driver's.
        fp4_padded: Whether elements have 4 bits, two in a byte, and are padded during the transfer.
        is_expanded: Whether the descriptor is passed as plain parameters, as on GPUs below sm_90.
        flags: The number of flags among the plain parameters (padding, rounding to tf32).
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

    @property
    def parts(self) -> tuple[tuple[str, int, str], ...]:
        """What the machine code takes for the descriptor, in order: parts with their axes and types."""
        axes = range(len(self.block_shape))
        shape, strides = (
            tuple((part, axis, type_) for axis in axes) for part, type_ in (("shape", "i32"), ("stride", "i64"))
        )
        if not self.is_expanded:
            return (("map", 0, "tensordesc"), *shape, *strides)
        flags = (("padding", 0, "i1"), ("rounding", 0, "i1"))[: self.flags]
        return (
            ("value", 0, "tensordesc"),
            *(("shape", axis, "i64") for axis in axes),
            *strides,
            *flags,
            *shape,
            *strides,
        )


class Specialization(NamedTuple):
    """A compiled Triton kernel: how its cubin is launched, and for which arguments.

    Attributes:
        kernel: The kernel with the parameters that the cubin has, except the hidden pointers at the end.
        arguments: The arguments that a caller passes, in the order of the source: all parameters except constexprs.
            Parameters that are assumed to be 1 or None are included, although the machine code does not take them.
            A descriptor has the kind `pointer` and the dtype of its elements; its `type` is Triton's name of the type.
        num_warps: Warps per block, as the compiler decided.
        triton_version: The version of Triton that compiled the kernel.
        assumptions: The properties of arguments that the code relies on.
        descriptors: The host-side descriptors among the arguments.
        constexprs: The values that were compiled in, by name; launch expressions may use the integers.
        tuples: For each parameter that is a tuple, its name and the names of its items. Items that were compiled in
            are also in `constexprs`.
        warp_size: Threads per warp.
        num_ctas: Blocks per program.
        cluster: Blocks per cluster in x, y and z.
        shared_bytes: Dynamic shared memory per block, in bytes.
        hidden_pointers: The number of pointers (global scratch, profile scratch) after the parameters: 0, 1 or 2.
        scratch_bytes: The size of the scratch memory that each block needs during a launch, in bytes.
        scratch_alignment: The alignment of the scratch memory of all blocks, in bytes.
        is_pdl: Whether the kernel may start before the previous kernel in its stream has ended.
        is_cooperative: Whether all blocks start at the same time.
    """

    kernel: Kernel
    arguments: tuple[Parameter, ...]
    num_warps: int
    triton_version: str
    assumptions: tuple[Assumption, ...] = ()
    descriptors: tuple[Descriptor, ...] = ()
    constexprs: tuple[tuple[str, int | float | bool | str | None], ...] = ()
    tuples: tuple[tuple[str, tuple[str, ...]], ...] = ()
    warp_size: int = 32
    num_ctas: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    hidden_pointers: int = 0
    scratch_bytes: int = 0
    scratch_alignment: int = 1
    is_pdl: bool = False
    is_cooperative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Machine code for one architecture.

    Attributes:
        data: The bytes of the ELF file. In a library, they may be PTX instead, followed by a NUL.
        arch: The architecture with its suffix, `sm_90a`, or `compute_90a` for PTX.
        log: The compiler's output, word for word.
        kernels: The kernels, in the order of the source.
        variables: The `__device__` and `__constant__` variables.
        triton: How to launch the kernel, if Triton compiled it.
        ptx: The PTX that the machine code was assembled from, or "" if it is not known.
    """

    data: bytes
    arch: str
    log: str = ""
    kernels: tuple[Kernel, ...] = ()
    variables: tuple[Variable, ...] = ()
    triton: Specialization | None = None
    ptx: str = ""

    def __repr__(self) -> str:
        shown = [str(kernel) for kernel in self.kernels[:_KERNELS_SHOWN]]
        others = [f"{len(self.kernels) - len(shown)} more"] if len(self.kernels) > len(shown) else []
        kernels = "; ".join((*shown, *others)) or "no kernels"
        return f"<jitload cubin for {self.arch}, {len(self.data):,} bytes: {kernels}>"


class CompiledSource(NamedTuple):
    """Device code compiled for one architecture.

    Attributes:
        cubin: The cubin with its typed kernels.
        symbols: A mapping from the name of a kernel in a `Launch`, such as `scale<float>`, to the kernel's symbol.
        candidates: The functions in the source that look like kernels.
        headers: The user's headers that the compiler may have read.
        bounds: The steps that check accesses, by the kernels' symbols; empty if calls do not check them. The operand of
            `OUTSIDE` and of `SKIP_IF_INSIDE` is the number of a parameter, or -1 for shared memory.
    """

    cubin: Cubin
    symbols: dict[str, str]
    candidates: tuple[Candidate, ...]
    headers: tuple[Path, ...]
    bounds: Mapping[str, tuple[tuple[Op, ...], ...]] = MappingProxyType({})

    def as_ptx(self, arch: str) -> CompiledSource:
        """Return this code with its PTX in place of its cubin. The driver compiles the PTX for each GPU.

        Registers, for example, are unknown until then.
        """
        unknown: dict[str, Any] = {"registers": None, "local_bytes": None, "spill_bytes": None}
        kernels = tuple(kernel._replace(**unknown) for kernel in self.cubin.kernels)
        data = f"{self.cubin.ptx}\0".encode()  # the driver reads up to the NUL
        return self._replace(cubin=replace(self.cubin, data=data, arch=arch, kernels=kernels, ptx=""))


class CpuKernel(NamedTuple):
    """How a kernel runs on the CPU.

    Attributes:
        row: The kernel's row in the object file's table of kernels.
        mode: How its threads run: the name of an enumerator in jitload/cpu.h.
        max_threads: The maximum number of threads per block: `__launch_bounds__`, or else 1024.
        shared_bytes: The size of its `__shared__` variables in bytes, not counting `extern __shared__` arrays.
    """

    row: int
    mode: str
    max_threads: int
    shared_bytes: int


class CpuProgram(NamedTuple):
    """Kernels compiled for the CPU.

    Attributes:
        compiled: The names and types of kernels and variables. Its cubin has no data, because the code is for the CPU.
        object_file: The object file's name in the work directory.
        kernels: A mapping from symbols to kernels.
        variables: A mapping from the names of variables to their symbols in the object file.
        dynamic_shared: The symbols of `extern __shared__` arrays, which the wrapper has to define.
        files_read: The files that the compiler read.
        table: The symbol of the object file's table of kernels.
        separate: The same kernels without checks of races, for launches whose threads are known to be separate.
        separation: The steps that fail for other launches, by the names of kernels.
    """

    compiled: CompiledSource
    object_file: str
    kernels: dict[str, CpuKernel]
    variables: dict[str, str]
    dynamic_shared: tuple[str, ...]
    files_read: tuple[Path, ...]
    table: str = "__jitload_cpu_kernels"
    separate: CpuProgram | None = None
    separation: Mapping[str, tuple[Op, ...]] = MappingProxyType({})
