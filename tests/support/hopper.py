"""The launcher's GPU tests: one wrapper over kernels of Hopper, and how a launch of it is written down."""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch

import jitload
from jitload import Launch

from .wrappers import SOURCES

WAYS = ("driver", "runtime", "builder")  # CUlaunchConfig, cudaLaunchConfig_t, jitload::LaunchConfig
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
OPTIN = 232_448  # bytes of shared memory that a Hopper GPU gives one block
_NONE = -1000


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """A launch: its extents and attributes; no stream means torch's current one."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: int = 32
    shared_bytes: int = 0
    stream: int | None = None
    cluster: tuple[int, int, int] = (_NONE, 1, 1)
    policy: int = _NONE
    pdl: bool = False
    cooperative: bool = False
    priority: int = _NONE
    most_shared: int = _NONE

    def numbers(self) -> list[int]:
        """Return it as `tests/launcher/hopper.cc` reads it."""
        stream = torch.cuda.current_stream().cuda_stream if self.stream is None else self.stream
        extents = [*self.grid, self.block, self.shared_bytes, stream, *self.cluster]
        return [*extents, self.policy, int(self.pdl), int(self.cooperative), self.priority, self.most_shared]


@functools.cache
def compile_kernels(arch: str = "native") -> bytes:
    """Return the cubin."""
    return jitload.compile_cubin((SOURCES / "hopper.cu").read_text(encoding="utf-8"), arch=arch).data


FUNCTIONS = {
    "declared": Launch(kernel="declared_cluster", grid=32, block=32),
    "begin_early": Launch(grid=1, block=32),
    "follow": Launch(grid=1, block=32, pdl=True),
    "follow_in_turn": Launch(kernel="follow", grid=1, block=32),
    "urgent": Launch(
        kernel="ask_neighbour", grid=(32, 2), block=32, cluster=(4, 2), priority=-2, cluster_policy="spread"
    ),
}


@functools.cache
def load_functions(arch: str = "native") -> jitload.Module:
    """Compile and load the same kernels behind a generated wrapper."""
    source = (SOURCES / "hopper.cu").read_text(encoding="utf-8")
    return jitload.load_inline("hopper_functions", cuda_sources=source, functions=FUNCTIONS, arch=arch)


@functools.cache
def load_wrapper(arch: str = "native") -> Any:
    """Compile and load the wrapper."""
    text = (SOURCES / "hopper.cc").read_text(encoding="utf-8")
    return jitload.load_inline("hopper", cuda_sources=text, embed_cubin={"hopper": compile_kernels(arch)})


def launch(way: str, kernel: str, out: torch.Tensor, number: int, how: How) -> None:
    """Launch a kernel by one of the header's ways; `plain` is `CubinKernel::Launch`."""
    load_wrapper().launch(way, kernel, out, number, how.numbers())


def ints(count: int, device: str = "cuda") -> torch.Tensor:
    """Return integers that no kernel here writes."""
    return torch.full((count,), -1, dtype=torch.int32, device=device)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver's."""
    code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert code == 0, f"{name}: {code}"


def kernel_attribute(kernel: str, attribute: int, device: int = 0) -> int:
    """Return what the driver says of a kernel."""
    value, handle = ctypes.c_int(), ctypes.c_void_p(load_wrapper().handle(kernel))
    call("cuKernelGetAttribute", ctypes.byref(value), attribute, handle, device)
    return value.value


def node_attribute(graph: torch.cuda.CUDAGraph, attribute: int) -> list[int]:
    """Return a launch attribute of a captured graph's only kernel, as three numbers."""
    raw, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t(1)
    node, value = ctypes.c_void_p(), (ctypes.c_int * 16)()
    call("cuGraphGetNodes", raw, ctypes.byref(node), ctypes.byref(count))
    assert count.value == 1
    call("cuGraphKernelNodeGetAttribute", node, attribute, ctypes.byref(value))
    return list(value[:3])
