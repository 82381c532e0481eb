"""The attributes of a `Launch` on a Hopper GPU: clusters, dependent launches, priority.

What each attribute does, test_gpu_launcher.py shows; that a launch passes it, test_call_attributes.py does.
"""

import pytest
import torch
from support.hopper import ints, load_functions, node_attribute

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


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
