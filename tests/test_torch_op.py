"""`jitload.torch_op`: schemas, fake functions, gradients and compiled graphs, on the CPU."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch_op_kernels
from torch._dynamo.testing import CompileCounter
from torch_op_kernels import CASES, X

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


def compiled(program, **options):
    return torch.compile(program, fullgraph=True, backend="aot_eager", **options)


def clones(args):
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) and arg.is_contiguous() else arg for arg in args)


def call_function(mod, name, args):
    """Call the typed function itself on arguments of an operator that only writes to them."""
    mod[name](*args)
    return args


@pytest.mark.parametrize("name", CASES)
def test_signatures_become_schemas(operators, name):
    assert str(operators[name]._schema) == f"twenty::{name}{CASES[name].schema}"


@pytest.mark.parametrize("name", CASES)
def test_operators_compute(operators, mod, name):
    case, args = CASES[name], clones(CASES[name].args)
    result = operators[name](*args)
    if case.expected is None:
        torch.testing.assert_close(args, call_function(mod, name, clones(case.args)))
        assert not torch.equal(args[0], case.args[0]) or not torch.equal(args[1], case.args[1])
    else:
        torch.testing.assert_close(result, case.expected(*args))


@pytest.mark.parametrize("name", CASES)
def test_opcheck_passes(operators, name):
    results = torch.library.opcheck(operators[name], CASES[name].args)
    assert set(results.values()) == {"SUCCESS"}
    assert len(results) == 4


@pytest.mark.parametrize("name", CASES)
def test_whole_graphs_are_compiled(operators, name):
    case, operator = CASES[name], operators[name]

    def program(*args):
        result = operator(*args)
        values = args if result is None else result if isinstance(result, tuple) else (result,)
        return [value + 1 if isinstance(value, torch.Tensor) else value for value in values]

    eager_args, args = clones(case.args), clones(case.args)
    torch.testing.assert_close(compiled(program, dynamic=True)(*args), program(*eager_args))
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
        for operator, model in ((twice, torch.empty_like(x)), (packs, torch.empty(x.shape))):
            strides = [function(x).stride() for function in (operator, compiled(lambda x, op=operator: op(x)))]
            assert strides == [model.stride()] * 2
            torch.library.opcheck(operator, (x,), test_utils=("test_schema", "test_faketensor"))
    torch.testing.assert_close(twice(X.t()), 2 * X.t())


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add_one", (X.half(),)),
        ("add_one", (X.t(),)),
        ("scale_", (torch.ones(4, 4).t(), 1.0)),
        ("maybe", (X, X.double())),
        ("square", (X.half(),)),
        ("select", (X, X.int(), X.int())),
    ],
)
def test_errors_are_those_of_a_call(operators, name, args):
    with pytest.raises((TypeError, ValueError)) as eager:
        operators[name](*args)
    with pytest.raises((torch._dynamo.exc.TorchRuntimeError, torch._dynamo.exc.Unsupported)) as traced:
        compiled(lambda *args: operators[name](*args))(*args)
    assert str(eager.value).replace("'", "") in str(traced.value).replace("'", "").replace("\\", "")
    assert type(eager.value).__name__ in str(traced.value) or eager.type is ValueError


def test_torch_does_not_trace_the_kernel_of_an_operator(operators):
    def program(x):
        torch._dynamo.graph_break()
        return operators["add_one"](x) + 1

    with pytest.raises(TypeError, match="must be a float32 CPU tensor, got float16"):
        torch.compile(program, backend="aot_eager")(X.half())  # runs what it cannot trace
    assert torch.compile(program, backend="aot_eager")(X).equal(X + 2)


def test_fake_tensors_on_other_devices_are_refused(operators):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        with pytest.raises(ValueError, match="argument 'x' must be a CPU tensor, but it is on cuda:0; to support both"):
            operators["add_one"](torch.empty(3, device="cuda:0"))
        assert operators["iota"](0.0, 1.0, 5).device.type == "cpu"
    assert operators["row_sum"](X.to("meta")).shape == (3,)


# ---- gradients ---------------------------------------------------------------------------------------------------


@pytest.fixture
def square(mod):
    """An operator for floats whose gradient is another kernel."""
    square = jitload.torch_op("gradients::square", mod.square, out={"y": "like x"})
    scale = jitload.torch_op(
        "gradients::multiply",
        lambda x, y: x * y,
        schema="(Tensor x, Tensor y) -> (Tensor z)",
        out={"z": "like x"},
    )
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
    with pytest.raises(Exception, match=r"gradients::missing has no gradient. Register one .*register_autograd"):
        gradient(program, X)
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


def test_autograd_notices_writes_to_saved_tensors(operators):
    x, weight = X.clone(), torch.ones(3, 4, requires_grad=True)
    product = x * weight
    operators["scale_"](x, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_vmap_follows_the_users_rule(mod):
    add_one = jitload.torch_op("vmaps::add_one", mod.add_one, out={"y": "like x"})
    add_one.register_vmap(lambda info, in_dims, x: (add_one(x), in_dims[0]))
    assert torch.vmap(add_one)(X).equal(X + 1)


def test_autocast_follows_the_policy(mod):
    plain = jitload.torch_op("autocast::plain", mod.add_one, out={"y": "like x"})
    cast = jitload.torch_op("autocast::cast", mod.add_one, out={"y": "like x"}, autocast=True)
    double = jitload.torch_op("autocast::double", mod.square, out={"y": "like x"}, autocast="float64")
    for run in (lambda f: f, compiled):
        with torch.autocast("cpu", torch.bfloat16):
            assert run(cast)(X.bfloat16()).dtype == torch.float32
            assert run(double)(X.bfloat16()).dtype == torch.float64
            with pytest.raises(Exception, match="must be a float32 CPU tensor, got bfloat16"):
                run(plain)(X.bfloat16())
    with pytest.raises(TypeError, match="got bfloat16"):
        cast(X.bfloat16())


# ---- registering again -------------------------------------------------------------------------------------------


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
    with pytest.raises(RuntimeError, match="again::f was registered again with another schema; use the new one"):
        old(X)
    x = X.clone()
    new(x, 2.0)
    assert x.equal(2 * X)
    with pytest.raises(Exception, match="missing value for argument 'factor'"):
        named(X)


def test_torchs_caches_on_disk_know_what_an_operator_does(mod):
    from torch.compiler import config

    def tag(rule, factor=None):
        operator = jitload.torch_op("tags::f", mod.add_one, out={"y": rule})
        if factor:
            operator.register_autograd(lambda ctx, grad: grad * 2 if factor == 2 else grad * 3)
        return config.cache_key_tag

    assert tag("like x") == tag("like x")
    tags = {tag("like x"), tag("[x.numel()]"), tag("like x", 2)}
    assert len(tags) == 3


def test_threads_call_and_register_operators(mod, operators):
    problems: list[Any] = []

    def work(number):
        try:
            operator = jitload.torch_op(f"threads::f{number}", mod.add_one, out={"y": "like x"})
            for _ in range(20):
                assert operator(X).equal(operators["add_one"](X))
        except Exception as error:  # noqa: BLE001  another thread raises it
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("add_one", {"out": {"z": "like x"}}, "there is no tensor 'z'"),
        ("add_one", {"out": {"x": "like y"}}, r"out: 'x' \(const float\*\) is const, so it is an input"),
        ("add_one", {"unwritten": "x"}, "unwritten: 'x' .* is const"),
        ("add_one", {"out": {"y": "like x"}, "unwritten": "y"}, "'y' is in out as well"),
        ("add_one", {"out": {"y": "as x"}}, r"out\['y'\]: this is not a rule for an output"),
        ("add_one", {"out": {"y": 3}}, "a rule is a str, got int"),
        ("add_one", {"out": {"y": "like z"}}, "there is no tensor 'z' among the inputs; they are x"),
        (
            "add_one",
            {"out": {"y": "float16 like x"}},
            "'y' is a tensor of float32, not float16: write 'float32 like x'",
        ),
        ("add_one", {"out": {"y": "float33[3]"}}, "there is no dtype 'float33'"),
        ("add_one", {"out": {"y": "[n]"}}, "there is no parameter 'n'"),
        ("add_one", {"out": {"y": "[x.shape[0] / 2]"}}, "/ is not part of launch expressions"),
        ("to_half", {"out": {"y": "like x"}}, "'y' is a tensor of float16, not float32 of 'x'"),
        ("square", {"out": {"y": "[3]"}}, "'y' takes several dtypes: begin the rule with one"),
        ("square", {"out": {"y": "like x"}, "autocast": True}, "its kernels take several dtypes"),
        ("add_one", {"out": {"y": "like x"}, "autocast": "int32"}, "must be True or a floating-point dtype"),
        ("bias_gelu", {"out": {"y": "like bias"}}, "'bias' may be None, so an output cannot depend on it"),
        ("bias_gelu", {"out": {"y": "[bias.shape[0]]"}}, "'bias' is not a tensor"),
    ],
)
def test_wrong_rules_are_refused(mod, name, options, message):
    with pytest.raises(jitload.errors.LaunchSpecError, match=message):
        jitload.torch_op("wrong::f", mod[name], **options)
    assert not hasattr(torch.ops.wrong, "f")


@pytest.mark.parametrize("name", ["add", "my::", "my::add.out", "a::b::c", "aten::add", 3])
def test_wrong_names_are_refused(mod, name):
    with pytest.raises(jitload.errors.LaunchSpecError, match="must be like 'my::add', in a namespace of your own"):
        jitload.torch_op(name, mod.add_one)


def test_operators_of_others_are_not_replaced(mod):
    with torch.library._scoped_library("others", "FRAGMENT") as library:
        library.define("f(Tensor x) -> Tensor")
        with pytest.raises(jitload.errors.LaunchSpecError, match="others::f is already an operator"):
            jitload.torch_op("others::f", mod.add_one, out={"y": "like x"})


def test_types_that_torch_lacks_are_refused_by_name():
    mod = jitload.load_inline(
        "torch_op_types",
        cuda_sources="""
        struct Params { int n; float scale; };
        __global__ void by_value(float* x, Params params) {}
        __global__ void addresses(float** x) {}""",
        arch="cpu",
    )
    with pytest.raises(jitload.errors.LaunchSpecError, match=r"argument 'params' \(Params\) is a structure"):
        jitload.torch_op("types::by_value", mod.by_value)
    with pytest.raises(jitload.errors.LaunchSpecError, match=r"argument 'x' \(float\*\*\) points to addresses"):
        jitload.torch_op("types::addresses", mod.addresses)


# ---- schemas -----------------------------------------------------------------------------------------------------


def test_a_schema_describes_any_function(mod):
    def double_into(x, y, n):
        assert n == 3
        torch.mul(x, 2, out=y)

    written = jitload.torch_op("schemas::written", double_into, schema="(Tensor x, Tensor(a!) y, SymInt n=3) -> ()")
    y = torch.empty_like(X)
    written(X, y)
    assert y.equal(2 * X)
    allocated = jitload.torch_op(
        "schemas::allocated",
        double_into,
        schema="(Tensor x, Tensor(a!) y, SymInt n=3) -> ()",
        out={"y": "x.dtype[3, 4]"},
    )
    assert str(allocated._schema) == "schemas::allocated(Tensor x, SymInt n=3) -> Tensor"
    assert compiled(lambda x: allocated(x) + 1)(X).equal(2 * X + 1)
    returned = jitload.torch_op(
        "schemas::returned", torch.aminmax, schema="(Tensor x) -> (Tensor low, Tensor high)",
        out={"low": "x.dtype[]", "high": "x.dtype[]"},
    )  # fmt: skip
    assert [value.item() for value in compiled(lambda x: returned(x))(X)] == [0, 2.75]
    torch.library.opcheck(returned, (X,))


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("Tensor x -> Tensor", {}, "schema: it is malformed"),
        ("(Tensor(a!) x) -> Tensor(a!)", {}, "cannot return one of its arguments"),
        ("(Tensor x) -> int", {}, "an operator returns tensors only"),
        ("(Tensor x, *, int n) -> ()", {}, "arguments that are only keywords"),
        ("(Tensor x) -> (Tensor y)", {}, "it must have a rule for each result, y"),
    ],
)
def test_wrong_schemas_are_refused(schema, options, message):
    with pytest.raises(jitload.errors.LaunchSpecError, match=message):
        jitload.torch_op("wrong::f", print, schema=schema, **options)


def test_results_that_are_arguments_are_refused():
    operator = jitload.torch_op(
        "schemas::same", lambda x: x[1:], schema="(Tensor x) -> (Tensor y)", out={"y": "like x"}
    )
    with pytest.raises(RuntimeError, match="must not return one of its arguments or a view"):
        operator(X)


def test_functions_without_types_need_a_schema():
    with pytest.raises(jitload.errors.LaunchSpecError, match="Give them: schema="):
        jitload.torch_op("wrong::f", print)


# ---- jitload within compiled functions ----------------------------------------------------------------------------


def test_calls_without_an_operator_say_what_to_do(mod):
    y = torch.empty_like(X)
    for program in (
        lambda x: mod.add_one(x, y),
        lambda x: mod.add_one[1, 128](x, y),
        lambda x: mod.add_one.call(x, y=y),
    ):
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r'jitload.torch_op\("my::f", f\)'):
            compiled(program)(X)
        torch.compile(program, backend="aot_eager")(X)
        assert y.equal(X + 1)


def test_builds_within_a_compiled_function(mod):
    def program(x):
        module = torch_op_kernels.load()
        y = torch.empty_like(x)
        module.add_one(x, y)
        return y * 2

    with pytest.raises(torch._dynamo.exc.Unsupported, match="do it before, at module level"):
        compiled(program)(X)
    assert torch.compile(program, backend="aot_eager")(X).equal(2 * X + 2)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="register operators outside of compiled functions"):
        compiled(lambda x: jitload.torch_op("inside::f", mod.add_one)(x))(X)
