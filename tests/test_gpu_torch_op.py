"""`jitload.torch_op` on a GPU: CUDA graphs, streams, devices and programs that torch compiles."""

import pytest

torch = pytest.importorskip("torch")
import torch_op_kernels
from torch_op_kernels import CASES

import jitload

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
_names = ("add_one", "scale_", "moments", "iota", "square", "axpy")


@pytest.fixture(scope="module")
def operators(gpu):
    mod = jitload.load_inline(
        "torch_op_gpu",
        cuda_sources=torch_op_kernels.SOURCE,
        functions=torch_op_kernels.FUNCTIONS,
        arch=("native", "cpu"),
    )
    return {name: jitload.torch_op(f"gpu::{name}", mod[name], **CASES[name].options) for name in _names}


def on_gpu(args, device="cuda"):
    return [arg.to(device, copy=True) if isinstance(arg, torch.Tensor) else arg for arg in args]


@pytest.mark.parametrize("name", _names)
def test_operators_compute_and_pass_opcheck(operators, name):
    case, args = CASES[name], on_gpu(CASES[name].args)
    result = operators[name](*args)
    if case.expected is not None:
        torch.testing.assert_close(result, case.expected(*case.args), check_device=False)
    assert set(torch.library.opcheck(operators[name], tuple(on_gpu(case.args))).values()) == {"SUCCESS"}
    assert operators["iota"](0.0, 1.0, 3).is_cuda


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch captures one, to keep the memory's pool
def test_cuda_graph_trees_replay_operators(operators):
    add_one, scale_ = operators["add_one"], operators["scale_"]

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def program(x):
        y = add_one(x)
        scale_(y, 3.0)
        return add_one(y)

    from torch._dynamo.utils import counters

    for number in range(5):
        x = torch.full((1000,), float(number), device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        assert program(x).unique().tolist() == [3 * (number + 1) + 1]
    assert counters["inductor"]["cudagraph_skips"] == 0


def test_streams_are_captured(operators):
    add_one = operators["add_one"]
    x = torch.zeros(64, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        y = add_one(add_one(x))
    x.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert y.unique().tolist() == [7]


def test_results_are_where_the_arguments_are(operators):
    for device in ("cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))):
        x = torch.ones(8, device=device)
        y = operators["add_one"](x)
        assert y.device == x.device
        assert y.unique().tolist() == [2]
    with pytest.raises(ValueError, match="'y' is on cpu, but 'x' is on cuda:0; all tensors must be on one device"):
        operators["axpy"](torch.ones(3, device="cuda"), torch.ones(3), 1.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_errors_are_those_of_a_call(operators, compiled):
    function = operators["add_one"]
    program = torch.compile(lambda x: function(x), fullgraph=True, backend="aot_eager") if compiled else function
    with pytest.raises(Exception, match="must be a float32 CUDA or CPU tensor, got float16"):
        program(torch.ones(3, device="cuda", dtype=torch.float16))
