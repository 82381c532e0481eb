"""`jitload.torch_op`: schemas, fake functions, gradients and compiled graphs, on the CPU."""

import copy
import functools
import pickle
import runpy
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch_op_kernels
from torch_op_kernels import CASES, X, compiled

import jitload


@pytest.fixture(scope="module")
def mod():
    return torch_op_kernels.load()


@pytest.fixture(scope="module")
def operators(mod):
    return {name: jitload.torch_op(f"twenty::{name}", mod[name], **case.options) for name, case in CASES.items()}


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def clones(args):
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) and arg.is_contiguous() else arg for arg in args)


def call_function(mod, name, args):
    """Call the typed function itself on arguments of an operator that only writes to them."""
    mod[name](*args)
    return args


@pytest.mark.parametrize("name", CASES)
def test_an_operator_has_a_schema_computes_and_passes_opcheck(operators, mod, name):
    case, args = CASES[name], clones(CASES[name].args)
    assert str(operators[name]._schema) == f"twenty::{name}{case.schema}"
    result = operators[name](*args)
    if case.expected is None:
        torch.testing.assert_close(args, call_function(mod, name, clones(case.args)))
        assert not torch.equal(args[0], case.args[0]) or not torch.equal(args[1], case.args[1])
    else:
        torch.testing.assert_close(result, case.expected(*args))
    results = torch.library.opcheck(operators[name], case.args)
    assert set(results.values()) == {"SUCCESS"}
    assert len(results) == 4


def test_whole_graphs_are_compiled(operators):
    def program(arguments):
        for name, args in arguments.items():
            result = operators[name](*args)
            values = args if result is None else result if isinstance(result, tuple) else (result,)
            yield [value + 1 if isinstance(value, torch.Tensor) else value for value in values]

    eager_args, args = ({name: clones(case.args) for name, case in CASES.items()} for _ in range(2))
    results = compiled(lambda arguments: list(program(arguments)), dynamic=True)(args)
    torch.testing.assert_close(results, list(program(eager_args)))
    torch.testing.assert_close(args, eager_args)


def test_the_operator_is_torchs_own(operators):
    add_one = operators["add_one"]
    assert torch.ops.twenty.add_one.default is add_one
    torch.testing.assert_close(torch.ops.twenty.add_one(X), X + 1)
    assert copy.deepcopy(add_one) is add_one
    assert pickle.loads(pickle.dumps(add_one)) is add_one
    with torch.inference_mode():
        assert add_one(X).equal(X + 1)


def test_graphs_serve_other_sizes(operators):
    pool = operators["pool"]
    from torch._dynamo.testing import CompileCounter  # slow: not while tests are collected

    count = CompileCounter()
    program = torch.compile(lambda x, width: pool(x, width) * 2, fullgraph=True, backend=count, dynamic=True)
    for size, width in ((12, 5), (40, 7), (9, 2)):
        x = torch.arange(float(size))
        torch.testing.assert_close(program(x, width), 2 * torch.stack([part.max() for part in x.split(width)]))
    assert count.frame_count == 1
    x = torch.arange(30.0)
    torch._dynamo.mark_dynamic(x, 0)
    assert compiled(lambda x: pool(x, 4))(x).shape == (8,)


def test_data_dependent_sizes_are_symbols(operators):
    add_one = operators["add_one"]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        program = compiled(lambda x: add_one(x[x > 1]))
        torch.testing.assert_close(program(X), X[X > 1] + 1)


def test_programs_are_exported(operators):
    class Layer(torch.nn.Module):
        def forward(self, x, y):
            torch.ops.twenty.swap_(x, y)
            return operators["row_sum"](x)

    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Layer(), (X.clone(), X + 1), dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
    x, y = torch.zeros(5, 4), torch.ones(5, 4)
    assert program.module()(x, y).tolist() == [4] * 5
    assert x.sum() == 20
    assert y.sum() == 0


def test_written_views_are_seen_through_their_base(operators):
    def program(base):
        operators["scale_"](base[1], 3.0)
        return base.sum()

    eager, base = X.clone(), X.clone()
    assert compiled(program)(base) == program(eager) == X.sum() + 2 * X[1].sum()
    assert base.equal(eager)


def test_outputs_have_real_strides(mod):
    # The kernel copies rows and takes any layout of both, so that the output is laid out like the input.
    mod = jitload.load_inline(
        "torch_op_strides",
        cuda_sources="""
        __global__ void twice(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = 2 * x[i]; }
        __global__ void packs(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = 2 * x[0]; }""",
        functions={
            "twice": jitload.Launch(grid=1, block=1, args={"n": "x.numel()"}, strided=("x", "y")),
            "packs": jitload.Launch(grid=1, block=1, args={"n": "x.numel()"}, strided="x"),
        },
        arch="cpu",
    )
    twice = jitload.torch_op("strides::twice", mod.twice, out={"y": "like x"})
    packs = jitload.torch_op("strides::packs", mod.packs, out={"y": "like x"})
    for x in (X.t(), X[:, :2], X.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last)):
        strides = [torch.empty_like(x).stride(), torch.empty(x.shape).stride()]
        for results in ((twice(x), packs(x)), compiled(lambda x: (twice(x), packs(x)))(x)):
            assert [result.stride() for result in results] == strides
        for operator in (twice, packs):
            torch.library.opcheck(operator, (x,), test_utils=("test_schema", "test_faketensor"))
    torch.testing.assert_close(twice(X.t()), 2 * X.t())


def test_a_compiled_program_raises_the_error_of_a_call(operators):
    for x, message in ((X.half(), "must be a float32 CPU tensor, got float16"), (X.t(), "must be contiguous")):
        with pytest.raises((TypeError, ValueError), match=message):
            compiled(operators["add_one"])(x)


def test_torch_does_not_trace_the_kernel_of_an_operator(operators):
    def program(x):
        torch._dynamo.graph_break()
        return operators["add_one"](x) + 1

    with pytest.raises(TypeError, match="must be a float32 CPU tensor, got float16"):
        torch.compile(program, backend="aot_eager")(X.half())  # runs what it cannot trace
    assert torch.compile(program, backend="aot_eager")(X).equal(X + 2)


def test_results_of_fake_calls_are_where_the_arguments_are(operators):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert operators["add_one"](torch.empty(3, device="cuda:0")).device == torch.device("cuda:0")
        assert operators["iota"](0.0, 1.0, 5).device.type == "cpu"
    assert operators["row_sum"](X.to("meta")).shape == (3,)


@pytest.fixture
def square(mod):
    """An operator for floats whose gradient is another kernel."""
    square = jitload.torch_op("gradients::square", mod.square, out={"y": "like x"})
    schema = "(Tensor x, Tensor y) -> (Tensor z)"
    scale = jitload.torch_op("gradients::multiply", lambda x, y: x * y, schema=schema, out={"z": "like x"})
    square.register_autograd(
        lambda ctx, grad: 2 * scale(ctx.saved_tensors[0], grad.contiguous()),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    return square


def gradient(function, x):
    leaf = x.clone().requires_grad_()
    function(leaf).sum().backward()
    return leaf.grad


def test_gradients_are_kernels(square):
    assert gradient(square, X).equal(2 * X)
    assert gradient(compiled(lambda x: square(x) + 1), X).equal(2 * X)
    assert torch.autograd.gradcheck(square, (X.double().requires_grad_(),))
    results = torch.library.opcheck(square, (X.clone().requires_grad_(),))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("run", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_a_missing_gradient_is_an_error_until_it_is_registered(mod, run):
    triple = jitload.torch_op("gradients::missing", mod.reads_only, out={"y": "like x"}, unwritten="x")
    program = run(lambda x: triple(x) * 1)
    assert program(X).equal(2 * X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Exception, match=r"gradients::missing has no gradient. Register one .*register_autograd"):
            gradient(program, X)
    assert not [warning for warning in caught if "autograd kernel" in str(warning.message)]
    with torch.no_grad():
        assert program(X.clone().requires_grad_()).equal(2 * X)
    triple.register_autograd(lambda ctx, grad: 2 * grad)
    assert gradient(program, X).unique().tolist() == [2]
    triple.register_autograd(lambda ctx, grad: 5 * grad)
    assert gradient(program, X).unique().tolist() == [5]


@pytest.mark.parametrize("run", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_no_gradient_is_lost_in_written_tensors(operators, run):
    program = run(lambda x, y: operators["axpy"](x, y, 2.0))
    with pytest.raises(Exception, match="twenty::axpy writes to y, so no gradient can pass through it"):
        program(X.clone().requires_grad_(), X.clone())
    with pytest.raises(jitload.errors.LaunchSpecError, match="it writes to y, so it cannot have a gradient"):
        operators["axpy"].register_autograd(lambda ctx, grad: grad)


def write_list(tensors):
    for tensor in tensors:
        tensor.mul_(2)


@pytest.mark.filterwarnings("ignore:Error detected in MulBackward0")  # torch says where it was saved
@pytest.mark.parametrize("run", [lambda f: f, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["scale_", "maybe", "list"])
def test_autograd_notices_writes_to_saved_tensors(operators, run, name):
    in_list = jitload.torch_op("gradients::write_list", write_list, schema="(Tensor(a!)[] tensors) -> ()")
    write = {
        "scale_": lambda x: operators["scale_"](x, 2.0),
        "maybe": lambda x: operators["maybe"](X, x),
        "list": lambda x: in_list([X.clone(), x]),
    }[name]

    def program(weight):
        x = X + 1
        product = x * weight
        write(x)
        return product.sum()

    with pytest.raises(Exception, match="modified by an inplace operation"):
        run(program)(torch.ones(3, 4, requires_grad=True)).backward()


def test_the_backward_pass_does_not_overwrite_written_arguments(operators):
    from functorch.compile import min_cut_rematerialization_partition, nop
    from torch._dynamo.backends.common import aot_autograd

    def program(x, weight):
        with torch.no_grad():
            operators["scale_"](x, 2.0)
        return (weight * x * X).sum()

    def check(graph, args):
        donated.append(torch._guards.TracingContext.get().fw_metadata.bw_donated_idxs)
        return nop(graph, args)

    donated: list[Any] = []
    backend = aot_autograd(
        fw_compiler=nop,
        bw_compiler=check,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,  # as Inductor
    )
    weight = torch.ones(3, 4, requires_grad=True)
    with torch._functorch.config.patch(donated_buffer=True):
        torch.compile(program, fullgraph=True, backend=backend)(X.clone(), weight).backward()
    assert weight.grad.equal(2 * X * X)
    assert donated == [None]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own
@pytest.mark.parametrize(("run", "has_gradient"), [(lambda f: f, False), (lambda f: f, True), (compiled, False)])
def test_transforms_lose_no_derivatives(mod, run, has_gradient):
    add_one = jitload.torch_op("transforms::add_one", mod.add_one, out={"y": "like x"})
    if has_gradient:
        add_one.register_autograd(lambda ctx, grad: grad)

    def program(x):
        return add_one(x).sum()

    for transform in (torch.func.grad, torch.func.jacrev, lambda f: lambda x: torch.func.vjp(f, x)[1](X.sum())):
        with pytest.raises(Exception, match=r"transforms::add_one cannot be differentiated by torch\.func\.grad"):
            run(lambda x, transform=transform: transform(program)(x))(X)
    with pytest.raises(Exception, match="transforms::add_one has no tangents"):
        run(lambda x: torch.func.jvp(program, (x,), (x,)))(X)
    assert run(lambda x: torch.func.grad(lambda y: (y * add_one(x)).sum())(x))(X).equal(X + 1)  # not of the operator
    assert run(torch.vmap(add_one))(X).equal(X + 1)


def test_tangents_are_not_lost(operators):
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="has no tangents"):
        operators["add_one"](torch.autograd.forward_ad.make_dual(X, X))


def test_autocast_is_registered_with_torchs_function(mod):
    plain = jitload.torch_op("autocast::plain", mod.add_one, out={"y": "like x"})
    cast = jitload.torch_op("autocast::cast", mod.add_one, out={"y": "like x"})
    torch.library.register_autocast(cast, "cpu", torch.float32)
    for run in (lambda f: f, compiled):
        with torch.autocast("cpu", torch.bfloat16):
            assert run(cast)(X.bfloat16()).dtype == torch.float32
            with pytest.raises(Exception, match="must be a float32 CPU tensor, got bfloat16"):
                run(plain)(X.bfloat16())


def test_the_transformer_learns_as_torchs_own(monkeypatch, capsys):
    path = str(Path(__file__).parents[1] / "examples/transformer/train.py")
    monkeypatch.setattr(sys, "argv", [path, "aot_eager"])
    runpy.run_path(path, run_name="__main__")
    assert capsys.readouterr().out.endswith("equal to those of torch's own layer norm and softmax\n")


def test_registering_again_replaces_the_operator(mod):
    old = jitload.torch_op("again::f", mod.add_one, out={"y": "like x"})
    old.register_autograd(lambda ctx, grad: grad)
    named = compiled(lambda x: torch.ops.again.f(x) * 1)
    assert named(X).equal(X + 1)
    assert gradient(named, X).unique().tolist() == [1]
    jitload.torch_op("again::f", mod.square, out={"y": "like x"})
    assert named(X).equal(X * X)
    assert old(X).equal(X * X)
    with pytest.raises(Exception, match="has no gradient"):
        gradient(named, X)
    jitload.torch_op("again::f", mod.row_sum, out={"y": "[x.shape[0]]"})
    assert named(X).equal(X.sum(1))
    new = jitload.torch_op("again::f", mod.scale_)  # another schema
    torch.library.opcheck(new, (X.clone(), 2.0))  # torch has caches of schemas by name
    with pytest.raises(RuntimeError, match="again::f was registered again with another schema; use the new one"):
        old(X)
    x = X.clone()
    new(x, 2.0)
    assert x.equal(2 * X)
    with pytest.raises(Exception, match="missing value for argument 'factor'"):
        named(X)


def test_torchs_caches_on_disk_know_what_an_operator_does(mod):
    from torch.compiler import config

    def tag(rule, backward=None):
        operator = jitload.torch_op("tags::f", mod.add_one, out={"y": rule})
        if backward:
            operator.register_autograd(backward)
        return config.cache_key_tag

    def run(text, **names):
        exec(text, names)
        return names["backward"]

    calls = "def scale(grad): return grad * {}\ndef backward(ctx, grad): return scale(grad)"
    reads = "backward = lambda ctx, grad: [grad * factor for _ in range(1)][0]"
    closes = "def make(factor): return lambda ctx, grad: grad * factor\nbackward = make({})"
    backwards = [lambda: None, lambda: run(reads, factor=2), lambda: run(reads, factor=3)]
    backwards += [lambda t=t, n=n: run(t.format(n)) for t in (calls, closes) for n in (2, 3)]
    tags = [tag("like x", make()) for make in backwards]
    assert tags == [tag("like x", make()) for make in backwards]
    assert len({*tags, tag("[x.numel()]"), tag("like x", functools.partial(max, 2))}) == len(tags) + 2


def test_threads_call_and_register_operators(mod, operators):
    def work(number):
        operator = jitload.torch_op(f"threads::f{number}", mod.add_one, out={"y": "like x"})
        return all(operator(X).equal(operators["add_one"](X)) for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
