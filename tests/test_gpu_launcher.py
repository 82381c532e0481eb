"""Launch attributes, shared memory and refused launches on a Hopper GPU, by the C++ launcher and by a `Launch`."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from support.hopper import (
    MAX_DYNAMIC_SHARED,
    OPTIN,
    WAYS,
    How,
    compile_kernels,
    ints,
    kernel_attribute,
    launch,
    load_functions,
    load_wrapper,
    node_attribute,
)

import jitload
from jitload.cuda.fatbin import make_fatbin

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, hopper: None) -> str:
    chosen: str = request.param
    if chosen == "runtime" and not load_wrapper().has_runtime():
        pytest.skip("the CUDA runtime's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    return chosen


def all_is_well() -> bool:
    """Return whether torch's next calls meet no error that somebody left behind."""
    torch.cuda.synchronize()
    return torch.ones(3, device="cuda").sum().item() == 3


def neighbours(how: How, axis: int) -> list[int]:
    """Return what each block must have read: the number of the next block of its cluster along an axis."""
    results = []
    for z, y, x in product(*map(range, reversed(how.grid))):
        index = [x, y, z]
        base = index[axis] // how.cluster[axis] * how.cluster[axis]
        index[axis] = base + (index[axis] - base + 1) % how.cluster[axis]
        results.append(index[0] + how.grid[0] * (index[1] + how.grid[1] * index[2]))
    return results


@pytest.mark.parametrize("cluster", [(16, 1, 1), (4, 4, 1), (1, 2, 8)])
def test_a_cluster_over_the_portable_size(way, cluster):
    how = How(grid=(32, 4, 8), cluster=cluster, policy=1)
    out = ints(32 * 4 * 8)
    for axis in (0, 1, 2):
        launch(way, "ask_neighbour", out.fill_(-1), axis, how)
        assert out.tolist() == neighbours(how, axis)


def test_a_refused_cluster_names_the_limit_and_leaves_nothing_behind(way):
    pattern = r", cluster \(32, 1, 1\): the limit is (\d+) blocks in a cluster$"
    with pytest.raises(RuntimeError, match=pattern):
        launch(way, "ask_neighbour", ints(32), 0, How(grid=(32, 1, 1), cluster=(32, 1, 1)))
    assert all_is_well()


def check_attributes(launch_along: Callable[[torch.Tensor, int], None]) -> None:
    """Capture a launch, and read the attributes of `URGENT` back."""
    out = ints(64)
    launch_along(out, 0)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        launch_along(out, 1)
    assert node_attribute(graph, 4) == [4, 2, 1]  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert node_attribute(graph, 5)[0] == 1  # …_CLUSTER_SCHEDULING_POLICY_PREFERENCE: spread
    assert node_attribute(graph, 8)[0] == -2  # …_PRIORITY
    graph.replay()
    assert out.tolist() == neighbours(URGENT, 1)


URGENT = How(grid=(32, 2, 1), cluster=(4, 2, 1), policy=1, priority=-2)


def test_a_captured_launch_has_the_attributes(way):
    check_attributes(lambda out, axis: launch(way, "ask_neighbour", out, axis, URGENT))


def test_a_captured_call_has_the_attributes():
    check_attributes(load_functions().urgent)


def test_a_cooperative_grid_meets_at_its_barrier(way):
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.zeros(1 + blocks, dtype=torch.int32, device="cuda")
    launch(way, "meet", out, 0, How(grid=(blocks, 1, 1), block=128, cooperative=True))
    assert set(out.tolist()) == {blocks * (blocks - 1) // 2}


KIB = 1024


def reverse(shared_bytes: int, most_shared: int = How().most_shared) -> bool:
    """Return whether a kernel that needs so much shared memory gives the right result."""
    size = shared_bytes // 4
    x = torch.arange(float(size), device="cuda")
    how = How(block=1024, shared_bytes=shared_bytes, most_shared=most_shared)
    launch("plain", "reverse", x, size, how)
    return torch.equal(x, torch.arange(float(size), device="cuda").flip(0))


@pytest.mark.parametrize("most_shared", [-1, 200 * KIB, 1 * KIB, 0])
def test_the_most_shared_memory(most_shared):
    assert all(reverse(size, most_shared) for size in (200 * KIB, 1 * KIB, OPTIN, 48 * KIB))


def test_shared_memory_opted_in_for_by_the_launch_and_never_lowered():
    load_wrapper().replace(compile_kernels())
    assert reverse(48 * KIB)
    assert kernel_attribute("reverse", MAX_DYNAMIC_SHARED) < 200 * KIB
    for size in (200 * KIB, 1 * KIB, OPTIN, 0):
        assert reverse(size)
        assert kernel_attribute("reverse", MAX_DYNAMIC_SHARED) == OPTIN


@pytest.mark.parametrize("way", ["plain", "driver", "builder"])
def test_a_refused_launch_says_what_it_was_and_leaves_torch_alone(way):
    x = torch.zeros(4, device="cuda")
    expected = r"last refused launch: add on cuda:0, grid \(4, 1, 1\), block \(128, 1, 1\), 0 bytes"
    with pytest.raises(RuntimeError, match=expected):
        launch(way, "add", x, 1, How(grid=(4, 1, 1), block=128))
    assert all_is_well()
    launch(way, "add", x, 1, How(grid=(4, 1, 1), block=64))
    assert x.tolist() == [1.0] * 4


ADD = 'extern "C" __global__ void add(float* x) { x[threadIdx.x] += 1; }'
RUN = """
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
namespace ffi = tvm::ffi;
void Run(ffi::Bytes bytes, ffi::TensorView x) {
  ffi::CubinModule module(bytes);
  ffi::CubinKernel kernel = module["add"];
  void* pointer = x.data_ptr();
  void* args[] = {&pointer};
  CUresult result = kernel.Launch(args, ffi::dim3(1), ffi::dim3(32), nullptr);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(cuStreamSynchronize(nullptr));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);
"""


def test_a_fatbin_that_we_write_runs():
    """The driver takes the image for this device, whichever place it has; one without such an image is told."""
    module = jitload.load_inline("fatbins", cuda_sources=RUN)
    images = {arch: jitload.compile_cubin(ADD, arch=arch).data for arch in ("sm_80", "sm_90", "sm_90a")}
    x = torch.zeros(32, device="cuda")
    for count, archs in enumerate([("sm_80", "sm_90a"), ("sm_90a", "sm_80"), ("sm_90",), ("sm_80", "sm_90")], start=1):
        torch.cuda.synchronize()
        module.run(make_fatbin([(arch, images[arch]) for arch in archs]), x)
        assert x.tolist() == [count] * 32
    with pytest.raises(RuntimeError, match="fatbin"):
        module.run(make_fatbin([("sm_80", images["sm_80"])]), x)
    assert all_is_well()


def test_a_large_cluster_that_the_kernel_declares():
    out = ints(32)
    load_functions().declared(out, 0)
    assert set(out.tolist()) == {16}
    with pytest.raises(RuntimeError, match=r"grid\.x \(24\) is not a multiple of the kernel's own cluster\.x \(16\)$"):
        load_functions().declared[24, 32](out, 0)


FIRST_NS = 20_000_000  # how long the first kernel takes: much longer than two launches from a busy processor


@pytest.mark.parametrize("follower", ["follow", "follow_in_turn"])
def test_a_dependent_pair_overlaps(follower):
    functions = load_functions()
    times = torch.zeros(4, dtype=torch.uint64, device="cuda")
    for nanoseconds in (1000, FIRST_NS):  # the first round loads what is needed
        torch.cuda.synchronize()
        functions.begin_early(times, nanoseconds)
        functions[follower](times, 0)
    first_ended, second_began, had_waited, seen = times.view(torch.int64).tolist()
    assert (second_began < first_ended - FIRST_NS // 2) == (follower == "follow")
    assert had_waited >= first_ended == seen
