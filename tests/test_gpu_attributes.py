"""The attributes of a `Launch` on a Hopper GPU: clusters, dependent launches, cooperation, priority."""

from itertools import product

import pytest
import torch
from support.hopper import OPTIN, SHAPES, ints, load_functions, node_attribute

pytest_plugins = ["support.gpu_fixtures"]
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def all_is_well() -> bool:
    """Return whether torch's next calls meet no error that somebody left behind."""
    torch.cuda.synchronize()
    return torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_a_cluster_in_x_y_and_z(name, axis):
    shape = SHAPES[name]
    grid = [2 * extent for extent in shape]
    out = ints(grid[0] * grid[1] * grid[2])
    load_functions()[f"ask_{name}"](out, axis)
    expected = []
    for z, y, x in product(*map(range, reversed(grid))):
        index = [x, y, z]
        base = index[axis] // shape[axis] * shape[axis]
        index[axis] = base + (index[axis] - base + 1) % shape[axis]
        expected.append(index[0] + grid[0] * (index[1] + grid[1] * index[2]))
    assert out.tolist() == expected


def test_a_large_cluster_that_the_kernel_declares():
    out = ints(32)
    load_functions().declared(out, 0)
    assert set(out.tolist()) == {16}
    with pytest.raises(RuntimeError, match=r"grid\.x \(24\) is not a multiple of the kernel's own cluster\.x \(16\)$"):
        load_functions().declared[24, 32](out, 0)
    assert all_is_well()


def test_an_impossible_cluster_names_the_limit():
    expected = r"a cluster of \(32, 1, 1\), 32 blocks, is not possible here: the limit is \d+ blocks$"
    with pytest.raises(RuntimeError, match=rf"^ask\(\): the launch failed: CUDA_ERROR_.*; {expected}"):
        load_functions().ask(ints(96), 0)
    assert all_is_well()


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


def test_a_cooperative_grid():
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.zeros(1 + blocks, dtype=torch.int32, device="cuda")
    load_functions().meet[blocks, 128](out, 0)
    assert set(out.tolist()) == {blocks * (blocks - 1) // 2}
    with pytest.raises(RuntimeError, match=r"meet\(\): the launch failed: CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"):
        load_functions().meet[1_000_000, 128](out, 0)
    assert all_is_well()


def test_shared_memory_up_to_the_devices_limit():
    for size in (OPTIN // 4, 256, 50 * 1024):
        x = torch.arange(float(size), device="cuda")
        load_functions().reverse(x, size)
        assert torch.equal(x, torch.arange(float(size), device="cuda").flip(0))


def test_a_captured_launch_has_the_attributes():
    out = ints(64)
    load_functions().urgent(out, 0)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        load_functions().urgent(out, 1)
    assert node_attribute(graph, 4) == [4, 2, 1]  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert node_attribute(graph, 5)[0] == 1  # CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: spread
    assert node_attribute(graph, 8)[0] == -2  # CU_LAUNCH_ATTRIBUTE_PRIORITY
    out.fill_(-1)
    graph.replay()
    assert out.tolist() == [32 * (1 - row) + column for row in (0, 1) for column in range(32)]
