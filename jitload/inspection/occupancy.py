"""Finds out how many blocks of a kernel a multiprocessor runs at the same time, and what limits their number.

The number is computed as in NVIDIA's `cuda_occupancy.h`. The driver knows the limits of the current GPU. Those of other
architectures come from "Technical Specifications per Compute Capability" in the CUDA guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jitload.errors import JitLoadError
from jitload.inspection.code import LoadedKernel, find_code
from jitload.model import Kernel
from jitload.toolchain.arch import capability_of, current_capability, device_attribute, native_arch, runs_on

_WARP = 32
_REGISTER_UNIT = 256  # registers are allocated to a warp in units of this many
_PARTITIONS = 4  # partitions of a multiprocessor; the registers of a warp are all in one partition
_REGISTERS = 65536  # registers of a multiprocessor; one block may have all of them
_KIB = 1024


class Multiprocessor(NamedTuple):
    """The limits of a multiprocessor.

    Attributes:
        blocks: The most blocks that it runs at the same time.
        warps: The most warps that it runs at the same time.
        shared_bytes: The shared memory for all blocks together, in bytes.
        reserved_bytes: The shared memory that the driver reserves for each block, in bytes.
        shared_unit: The unit in which shared memory is allocated, in bytes.
        barriers: The barriers for all blocks together, or None if they do not limit the number of blocks.
    """

    blocks: int
    warps: int
    shared_bytes: int
    reserved_bytes: int = 1024
    shared_unit: int = 128
    barriers: int | None = None


MULTIPROCESSORS = {
    75: Multiprocessor(16, 32, 64 * _KIB, reserved_bytes=0, shared_unit=256),
    80: Multiprocessor(32, 64, 164 * _KIB),
    86: Multiprocessor(16, 48, 100 * _KIB),
    87: Multiprocessor(16, 48, 164 * _KIB),
    89: Multiprocessor(24, 48, 100 * _KIB),
    90: Multiprocessor(32, 64, 228 * _KIB, barriers=64),
    100: Multiprocessor(32, 64, 228 * _KIB, barriers=64),
    101: Multiprocessor(24, 48, 228 * _KIB, barriers=24),
    103: Multiprocessor(32, 64, 228 * _KIB, barriers=32),
    110: Multiprocessor(24, 48, 228 * _KIB, barriers=24),
    120: Multiprocessor(24, 48, 100 * _KIB, barriers=24),
    121: Multiprocessor(24, 48, 100 * _KIB, barriers=24),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How many blocks of a kernel a multiprocessor runs at the same time.

    Attributes:
        function: The function's name.
        arch: The architecture of the machine code.
        block: Threads per block.
        shared_bytes: Dynamic shared memory per block, in bytes.
        blocks: Blocks per multiprocessor; 0 if a launch would fail.
        warps: Warps per multiprocessor.
        max_warps: The most warps that a multiprocessor runs.
        limits: The number of blocks that each resource allows: `registers`, `shared memory`, `warps`, `blocks` and
            `barriers`. A resource that the kernel does not use is left out.
        limited_by: The resources that allow the fewest blocks.
    """

    function: str
    arch: str
    block: int
    shared_bytes: int
    blocks: int
    warps: int
    max_warps: int
    limits: dict[str, int]
    limited_by: tuple[str, ...]

    @property
    def share(self) -> float:
        """`warps` divided by `max_warps`, from 0 to 1."""
        return self.warps / self.max_warps

    def __str__(self) -> str:
        limits = ", ".join(f"{name} {count}" for name, count in self.limits.items())
        return (
            f"{self.function}, {self.arch}, {self.block} threads per block, "
            f"{self.shared_bytes} bytes of dynamic shared memory\n"
            f"{self.blocks} blocks and {self.warps} of {self.max_warps} warps per multiprocessor ({self.share:.0%}), "
            f"limited by {' and '.join(self.limited_by)}\n"
            f"blocks by resource: {limits}"
        )


def block_limits(kernel: Kernel, block: int, shared_bytes: int, sm: Multiprocessor) -> dict[str, int]:
    """Return a mapping from the resources of a multiprocessor to the number of blocks that each resource allows."""
    warps = _warps(block)
    limits = {"warps": sm.warps // warps, "blocks": sm.blocks}
    if registers := kernel.registers:
        warp_registers = _round_up(registers * _WARP, _REGISTER_UNIT)
        # The hardware checks a block as if its warps were spread evenly over the partitions.
        fits = warp_registers * _round_up(warps, _PARTITIONS) <= _REGISTERS
        limits["registers"] = _REGISTERS // _PARTITIONS // warp_registers * _PARTITIONS // warps if fits else 0
    if shared := _round_up((kernel.shared_bytes or 0) + shared_bytes + sm.reserved_bytes, sm.shared_unit):
        limits["shared memory"] = sm.shared_bytes // shared
    if sm.barriers is not None and kernel.barriers:
        limits["barriers"] = sm.barriers // kernel.barriers
    return limits


def _warps(block: int) -> int:
    return -(-block // _WARP)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


# ---- a loaded kernel -------------------------------------------------------------------------------------------------

# The driver's numbers of the attributes of a device that are limits of its multiprocessors.
_DRIVER_LIMITS = {"blocks": 106, "warps": 39, "shared_bytes": 81, "reserved_bytes": 111}


def read_occupancy(loaded: LoadedKernel, arch: str | None, block: int | None, shared_bytes: int) -> Occupancy:
    """Return the occupancy of a kernel. By default, a block has 256 threads, or the kernel's maximum if smaller.

    If `arch` is None and the current GPU can run the code, the limits are those of this GPU, otherwise those of the
    code's architecture.
    """
    cubin, kernel = find_code(loaded, arch)
    most = min(kernel.max_threads, 1024)
    block = min(256, most) if block is None else block
    if not 1 <= block <= most:
        raise ValueError(f"{loaded.name}(): block={block}: a block of this kernel has 1 to {most} threads")
    if shared_bytes < 0:
        raise ValueError(f"{loaded.name}(): shared_bytes={shared_bytes} is negative")
    sm = _multiprocessor(loaded.name, cubin.arch, is_native=arch is None)
    limits = block_limits(kernel, block, shared_bytes, sm)
    blocks = min(limits.values())
    return Occupancy(
        function=loaded.name,
        arch=cubin.arch,
        block=block,
        shared_bytes=shared_bytes,
        blocks=blocks,
        warps=blocks * _warps(block),
        max_warps=sm.warps,
        limits=limits,
        limited_by=tuple(name for name, count in limits.items() if count == blocks),
    )


def _multiprocessor(function: str, arch: str, *, is_native: bool) -> Multiprocessor:
    """Return the limits of the current GPU's multiprocessors if it can run the code, or else of the architecture's.

    The current GPU's are the driver's, and from the table those that the driver lacks.
    """
    capability = current_capability() if is_native else None
    if capability and runs_on(arch, native_arch(capability)):
        limits = {name: device_attribute(attribute) or 0 for name, attribute in _DRIVER_LIMITS.items()}
        limits["warps"] //= _WARP  # the driver has the number of threads
        number = 10 * capability[0] + capability[1]
        return MULTIPROCESSORS.get(number, Multiprocessor(0, 0, 0))._replace(**limits)
    number, _ = capability_of(arch)
    if number not in MULTIPROCESSORS:
        names = ", ".join(f"sm_{listed}" for listed in MULTIPROCESSORS)
        raise JitLoadError(
            f"{function}(): the limits of sm_{number} are not known, only those of {names}; on a GPU of that "
            "kind the driver knows them"
        )
    return MULTIPROCESSORS[number]
