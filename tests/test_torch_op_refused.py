"""What `jitload.torch_op` refuses, schemas for other functions, and jitload within compiled functions."""

import re

import pytest

torch = pytest.importorskip("torch")
import torch_op_kernels
from torch_op_kernels import X, compiled

import jitload


@pytest.fixture(scope="module")
def mod():
    return torch_op_kernels.load()


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("add_one", {"out": {"z": "like x"}}, "there is no tensor 'z'"),
        ("add_one", {"out": {"x": "like y"}}, r"out: 'x' \(const float\*\) is const, so it is an input"),
        ("add_one", {"out": {"y": "like x"}, "unwritten": "y"}, "'y' is also in out"),
        ("add_one", {"out": {"y": "like z"}}, "there is no tensor 'z' among the inputs; the tensors are x"),
        ("add_one", {"out": {"y": "float16 like x"}}, "'y' is a tensor of float32, not float16: write 'float32 like"),
        ("add_one", {"out": {"y": "[n]"}}, "there is no parameter 'n'"),
        ("to_half", {"out": {"y": "like x"}}, "'y' is a tensor of float16, not float32 of 'x'"),
        ("square", {"out": {"y": "[3]"}}, "'y' takes several dtypes: begin the rule with a dtype"),
        ("scale_", {"unwritten": "x"}, "it neither returns a tensor nor writes to one"),
    ],
)
def test_wrong_rules_are_refused(mod, name, options, message):
    with pytest.raises(jitload.errors.LaunchSpecError, match=message):
        jitload.torch_op("wrong::f", mod[name], **options)
    assert not hasattr(torch.ops.wrong, "f")


@pytest.mark.parametrize("name", ["add", "my::add.", "my::add._x", "a::b::c", "aten::add", 3])
def test_wrong_names_are_refused(mod, name):
    with pytest.raises(jitload.errors.LaunchSpecError, match="must be like 'my::add', in a namespace of your own"):
        jitload.torch_op(name, mod.add_one)


@pytest.mark.parametrize("name", ["wrong::class", "load_library::f", "wrong::f.default"])
def test_names_that_torch_cannot_read_are_refused(mod, name):
    with pytest.raises(jitload.errors.LaunchSpecError, match=f"torch refuses the operator {re.escape(name)}"):
        jitload.torch_op(name, mod.add_one, out={"y": "like x"})


@pytest.mark.parametrize("function", [None, 3, "add_one", "module"])
def test_functions_can_be_called(mod, function):
    value = mod if function == "module" else function
    with pytest.raises(jitload.errors.LaunchSpecError, match="the operator needs a function, got"):
        jitload.torch_op("wrong::f", value, schema="(Tensor(a!) x) -> ()")


@pytest.mark.parametrize(
    ("shape", "problem"), [("x.shape[1]", "is out of range"), ("4 // (x.numel() - 3)", "division")]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_shapes_that_cannot_be_computed_name_the_rule(mod, shape, problem, device):
    operator = jitload.torch_op("shapes::f", mod.add_one, out={"y": f"[{shape}]"})
    with pytest.raises(ValueError, match=rf"shapes::f\(\): out\['y'\] = .*{problem}.*; x has shape \[3\]"):
        operator(torch.ones(3, device=device))


def test_results_in_nullable_pointers_are_never_none(mod):
    rules = {"seen": "zeros like in_", "out": "[seen.shape[0], seen.shape[1]]"}
    operator = jitload.torch_op("shapes::nullable", mod.maybe, out=rules)
    seen, out = operator(X)
    assert seen.equal(torch.ones_like(X))
    assert out.equal(X - 1)


def test_gradients_and_rules_are_functions(mod):
    operator = jitload.torch_op("shapes::g", mod.add_one, out={"y": "like x"})
    with pytest.raises(TypeError, match="backward must be a function, got NoneType"):
        operator.register_autograd(None)
    with pytest.raises(TypeError, match="setup_context must be a function, got int"):
        operator.register_autograd(print, setup_context=3)
    with pytest.raises(TypeError, match="the rule for vmap must be a function, got int"):
        operator.register_vmap(3)


def test_operators_of_others_are_not_replaced(mod):
    with torch.library._scoped_library("others", "FRAGMENT") as library:
        library.define("f(Tensor x) -> Tensor")
        with pytest.raises(jitload.errors.LaunchSpecError, match="torch already has an operator others::f"):
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


def test_a_kernel_without_a_launch_is_refused():
    mod = jitload.load_inline(
        "torch_op_launches",
        cuda_sources='extern "C" __global__ void inc(float* x) { x[blockIdx.x] += 1; }',
        functions={"free": jitload.Launch(kernel="inc"), "gridless": jitload.Launch(kernel="inc", block=1)},
        arch="cpu",
    )
    for schema in (None, "(Tensor(a!) x) -> ()"):
        no_grid = r"(?s)has no grid and block, .*mod\.free\[grid, block\]"
        with pytest.raises(jitload.errors.LaunchSpecError, match=no_grid):
            jitload.torch_op("launches::f", mod.free, schema=schema)
        with pytest.raises(jitload.errors.LaunchSpecError, match="'gridless': it has no grid, and calls"):
            jitload.torch_op("launches::f", mod.gridless[None, 1], schema=schema)
    for function in (mod.free[4, 1], mod.gridless[4, None]):
        x = torch.zeros(4)
        jitload.torch_op("launches::f", function)(x)
        assert x.tolist() == [1] * 4


def test_a_schema_describes_any_function(mod):
    def double_into(x, y, n):
        assert n == 3
        torch.mul(x, 2, out=y)

    written = jitload.torch_op("schemas::written", double_into, schema="(Tensor x, Tensor(a!) y, SymInt n=3) -> ()")
    y = torch.empty_like(X)
    written(X, y)
    assert y.equal(2 * X)
    schema = "(Tensor x, Tensor(a!) y, SymInt n=3) -> ()"
    allocated = jitload.torch_op("schemas::allocated", double_into, schema=schema, out={"y": "x.dtype[3, 4]"})
    assert str(allocated._schema) == "schemas::allocated(Tensor x, SymInt n=3) -> Tensor"
    assert compiled(lambda x: allocated(x) + 1)(X).equal(2 * X + 1)
    rules = {"low": "x.dtype[]", "high": "x.dtype[]"}
    schema = "(Tensor x) -> (Tensor low, Tensor high)"
    returned = jitload.torch_op("schemas::returned", torch.aminmax, schema=schema, out=rules)
    assert [value.item() for value in compiled(lambda x: returned(x))(X)] == [0, 2.75]
    torch.library.opcheck(returned, (X,))


def test_lists_of_tensors_are_tensors():
    join = jitload.torch_op(
        "schemas::join", lambda parts: torch.cat(parts), schema="(Tensor[] parts) -> (Tensor y)",
        out={"y": "float32[6, 4]"},
    )  # fmt: skip
    assert compiled(lambda x: join([x, x]))(X).equal(torch.cat([X, X]))
    assert join([X.to("meta"), X.to("meta")]).is_meta
    with pytest.raises(RuntimeError, match="schemas::join has no gradient"):
        join([X, X.clone().requires_grad_()]).sum().backward()
    schema = "(Tensor[] parts) -> (Tensor y)"
    first = jitload.torch_op("schemas::first", lambda parts: parts[0], schema=schema, out={"y": "float32[3, 4]"})
    with pytest.raises(RuntimeError, match="must not return one of its arguments"):
        first([X])


def test_values_reach_the_function_as_torch_shows_them():
    import tvm_ffi

    values = []
    arguments = "Tensor(a!) x, Device? device, ScalarType dtype=float16, Layout layout=strided, int[] sizes=[1, 2]"
    for function in (lambda *args: values.append(args), tvm_ffi.convert(lambda *args: values.append(args))):
        operator = jitload.torch_op("schemas::values", function, schema=f"({arguments}, str name='a,b') -> ()")
        for options in ({}, {"dtype": torch.float64}):
            operator(X, torch.device("cpu"), **options)
        compiled(lambda x, operator=operator: operator(x, torch.device("cpu")))(X.clone())
    expected = [[torch.float16, torch.strided], [torch.float64, torch.strided], [torch.float16, torch.strided]]
    assert [list(args[2:4]) for args in values[:3]] == expected
    assert all(args[1] == torch.device("cpu") and args[4:] == ([1, 2], "a,b") for args in values[:3])
    assert all(isinstance(args[1], tvm_ffi.Device) for args in values[3:])


def test_a_declared_device_chooses_that_of_results():
    ones = jitload.torch_op(
        "schemas::ones", lambda n, device: torch.ones(n, device=device),
        schema="(SymInt n, Device? device=None) -> (Tensor y)", out={"y": "float32[n]"},
    )  # fmt: skip
    assert str(ones._schema) == "schemas::ones(SymInt n, Device? device=None) -> Tensor"
    assert compiled(lambda x: ones(x.shape[0]), dynamic=True)(X).tolist() == [1, 1, 1]
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert ones(3, torch.device("cuda")).is_cuda


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (None, {}, "Pass them: schema="),
        ("(Tensor x, int x) -> ()", {}, "two arguments are named 'x'"),
        ("Tensor x -> Tensor", {}, "schema: it is malformed"),
        ("(Unknown x) -> ()", {}, "it is malformed: unknown type specifier"),
        ("(int n=3, Tensor(a!) x) -> ()", {}, "malformed: Non-default positional argument follows default argument"),
        ("(Tensor x) -> (Tensor x)", {"out": {"x": "like x"}}, "'x' is the name of both an argument and a result"),
        ("(Tensor(a!) x) -> Tensor(a!)", {}, "cannot return one of its arguments"),
        ("(Tensor x) -> int", {}, "an operator returns tensors only"),
        ("(Tensor x, *, Tensor(a!) y) -> ()", {}, "'y' is a keyword-only tensor, which torch does not support"),
        ("(Tensor x) -> (Tensor y)", {}, "it must have a rule for each result in the schema, in this order: y"),
    ],
)
def test_wrong_schemas_are_refused(schema, options, message):
    with pytest.raises(jitload.errors.LaunchSpecError, match=message):
        jitload.torch_op("wrong::f", print, schema=schema, **options)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x[1:], x + 1), "must not return one of its arguments or a view"),
        (lambda x: (x + 1,) * 2, "nor one tensor twice"),
        (lambda x: x + 1, "declares 2 tensors, but the function returned Tensor$"),
        (lambda x: [x + 1, None], "declares 2 tensors, but the function returned Tensor, NoneType"),
    ],
)
def test_results_are_those_of_the_schema(function, message):
    rules = {"y": "like x", "z": "like x"}
    operator = jitload.torch_op("schemas::same", function, schema="(Tensor x) -> (Tensor y, Tensor z)", out=rules)
    with pytest.raises((RuntimeError, TypeError), match=message):
        operator(X)


def compiled_call_raises(advice):
    """Expect advice from torch.compile; before 2.13, torch looks for a module's functions in its class alone."""
    other = "|could not find name" if torch.__version__ < (2, 13) else ""
    return pytest.raises(torch._dynamo.exc.Unsupported, match=advice + other)


def test_calls_without_an_operator_say_what_to_do(mod):
    y = torch.empty_like(X)
    calls = (lambda x: mod.add_one(x, y), lambda x: mod.add_one[1, 128](x, y), lambda x: mod.add_one.call(x, y=y))
    for program in calls:
        with compiled_call_raises(r'jitload.torch_op\("my::f", f\)'):
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
    with compiled_call_raises("cannot be called in functions that torch.compile compiles"):
        compiled(lambda x: jitload.torch_op("inside::f", mod.add_one)(x))(X)


def test_what_a_first_call_measures_is_not_traced():
    """Otherwise, torch would compile the tuner itself."""
    launch = jitload.Launch(grid=1, block="B", tune=jitload.Tune(B=(1, 2), measure="first call"))
    source = "__global__ void increment(float* x) { if (threadIdx.x == 0) *x += 1; }"
    mod = jitload.load_inline("first", cuda_sources=source, functions={"increment": launch}, arch="cpu")
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    def program(x):
        mod.increment(x)
        return x + 1

    assert torch.compile(program, backend=count)(torch.zeros(1)) == 2
    assert mod.increment.variant(torch.zeros(1)).how == "tuned"
    assert len(graphs) <= 1  # that of `x + 1`
