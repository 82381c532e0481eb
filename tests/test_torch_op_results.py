"""`jitload.torch_op`: results whose presence, rank or dtype depends on the arguments, and arguments that overlap."""

import pytest

torch = pytest.importorskip("torch")
from torch_op_kernels import X, compiled

import jitload
from jitload.operators.graphs import mark_caches


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def check(operator, expected, *calls):
    """Check an operator with several argument lists: eagerly, in compiled programs, and with torch's own checks."""
    for args in calls:
        for call in (operator, compiled(lambda *args: operator(*args))):
            torch.testing.assert_close(call(*args), expected(*args))
    assert set(torch.library.opcheck(operator, calls[-1]).values()) == {"SUCCESS"}


def test_results_of_functions_may_be_none():
    def run(x, add):
        return None if add is None else x + add

    rules = {"y": "None if add is None else like x"}
    maybe = jitload.torch_op("results::maybe", run, schema="(Tensor x, float? add) -> (Tensor? y)", out=rules)
    check(maybe, run, (X, None), (X, 2.0))
    several = jitload.torch_op(
        "results::several",
        lambda x, n: tuple(x + i if i < n else None for i in range(3)),
        schema="(Tensor x, int n) -> (Tensor a, Tensor? b, Tensor? c)",
        out={"a": "like x", "b": "like x if n > 1 else None", "c": "like b if n > 2 and b is not None else None"},
    )
    assert str(several._schema) == "results::several(Tensor x, int n) -> (Tensor, Tensor?, Tensor?)"
    check(several, several.function, *((X, n) for n in (1, 2, 3)))
    several.register_autograd(lambda ctx, *grads: (sum(grad for grad in grads if grad is not None), None))
    x = X.clone().requires_grad_()
    sum(compiled(several)(x, 2)[:2]).sum().backward()
    assert x.grad.unique().tolist() == [2]


ROWS = {"rows": "x.numel() // n", "n": "x.shape[-1]"}


def test_kernels_get_null_for_results_that_are_none():
    mod = jitload.load_inline(
        "torch_op_null",
        cuda_sources="""__global__ void top(const float* x, float* best, int* index, bool with_index, int rows, int n) {
            int r = blockIdx.x, at = 0;
            for (int i = 1; i < n; ++i) if (x[r * n + i] > x[r * n + at]) at = i;
            best[r] = x[r * n + at];
            if (index) index[r] = at;
        }""",
        functions={"top": jitload.Launch(grid="rows", block=1, args=ROWS, nullable="index")},
        arch="cpu",
    )
    rules = {"best": "[*x.shape[:-1]]", "index": "[*best.shape] if with_index else None"}
    top = jitload.torch_op("results::top", mod.top, out=rules)
    assert str(top._schema) == "results::top(Tensor x, bool with_index) -> (Tensor, Tensor?)"

    def expected(x, with_index):
        best = x.max(-1)
        return best.values, best.indices.int() if with_index else None

    check(top, expected, (X, True), (X, False), (X[0], True), (X.expand(2, 2, 3, 4).contiguous(), False))


def test_ranks_and_dtypes_depend_on_arguments():
    def reduce(x, keepdim, dtype, dim=-1):
        return x.sum(dim, keepdim=keepdim, dtype=dtype)

    operator = jitload.torch_op(
        "results::reduce",
        reduce,
        schema="(Tensor x, bool keepdim, ScalarType? dtype, int dim=-1) -> (Tensor y)",
        out={
            "y": "x.dtype[*x.shape[:dim], *x.shape[dim + 1 if dim != -1 else x.ndim:]] if dtype is None and not keepdim"
            " else x.dtype[*x.shape[:-1], 1] if dtype is None"
            " else dtype[*x.shape[:-1], 1] if keepdim else dtype[*x.shape[0:-1]]"
        },
    )
    check(operator, reduce, *((X, keep, dtype) for keep in (True, False) for dtype in (None, torch.float64)))
    check(operator, reduce, (X.reshape(2, 3, 2), False, None, 1))


def test_extents_are_slices_of_lists():
    def run(x, size):
        return x.new_zeros([*size[1:], x.shape[0], *(size[:2])])

    zeros = jitload.torch_op(
        "results::slices",
        run,
        schema="(Tensor x, SymInt[]? size) -> (Tensor y)",
        out={"y": "x.dtype[*size[1:], x.shape[0], *size[:min(2, x.ndim)]] if size is not None else like x"},
    )
    check(zeros, run, (X, [2, 3, 4]))
    program = compiled(lambda x: zeros(x, [x.shape[0], x.shape[1] + 1]), dynamic=True)
    assert [program(torch.ones(n, n)).shape for n in (3, 5)] == [(4, 3, 3, 4), (6, 5, 5, 6)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_none_in_a_call_is_named(device):
    schema, rule = "(Tensor x, Tensor? mask, Tensor(a!) y) -> ()", "like mask if mask is None else like x"
    operator = jitload.torch_op("results::wrong", print, schema=schema, out={"y": rule})
    words = r"results::wrong\(\): out\['y'\] = 'like mask if .*: the rule uses .* None; .*, mask is None$"
    with pytest.raises(ValueError, match=words):
        operator(X.to(device), None)
    with pytest.raises(TypeError, match="argument 'x' must be a tensor, got None"):
        operator(None, X.to(device))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("like mask", "'mask' may be None, so the rule must test it: '… if mask is None else …'"),
        ("x.dtype[*size]", "'size' may be None, so the rule must test it"),
        ("None if n > 1 else like x", "'y' must not be None: declare it as 'Tensor. y'"),
        ("like x if x is None else float32[1]", "'x' is never None"),
        ("like x if n > 1 else as x", "this is not a rule for an output"),
        ("x.dtype[*n]", "is not a list of extents: write .size"),
        ("x.dtype[*x.shape[:1.5]]", "1.5 is not an integer"),
    ],
)
def test_wrong_rules_are_refused(rule, message):
    schema = "(Tensor x, Tensor? mask, int[]? size, ScalarType? dtype, int n) -> (Tensor y)"
    with pytest.raises(jitload.errors.LaunchSpecError, match=message):
        jitload.torch_op("results::refused", print, schema=schema, out={"y": rule})


def fake_positive(x, limit):
    size = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(size), None if limit is None else x.new_empty(1)


def test_fake_functions_describe_sizes_that_depend_on_data():
    from torch.compiler import config

    def run(x, limit):
        return x[x > (limit or 0)].clone(), None if limit is None else x.new_full([1], limit)

    def register(fake):
        schema = "(Tensor x, float? limit=None) -> (Tensor y, Tensor? used)"
        operator = jitload.torch_op("results::positive", run, schema=schema, fake=fake)
        mark_caches({"results::positive": operator})  # without the operators of other tests
        return operator, config.cache_key_tag

    positive, tag = register(fake_positive)
    assert str(positive._schema) == "results::positive(Tensor x, float? limit=None) -> (Tensor, Tensor?)"
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(positive, run, (X, None), (X, 1.5))
    assert register(fake_positive)[1] == tag
    wrong, other = register(lambda x, limit: x)
    assert other != tag
    with pytest.raises(TypeError, match=r"results::positive\(\), fake=: its schema declares 2 tensors, but .* Tensor"):
        wrong(X.to("meta"))
    assert wrong(X, 1.0)[1].item() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fake": 3}, "fake= must be a function, got int"),
        ({"fake": print, "out": {"y": "like x"}}, "leave one of fake= and out= out"),
        ({"fake": print, "schema": "(Tensor x, Tensor(a!) y) -> ()"}, "but its schema has none"),
    ],
)
def test_wrong_fake_functions_are_refused(options, message):
    with pytest.raises(jitload.errors.LaunchSpecError, match=message):
        jitload.torch_op("results::refused", print, **{"schema": "(Tensor x) -> (Tensor y)", **options})


# ---- arguments ---------------------------------------------------------------------------------------------------


def test_inputs_that_overlap_a_written_argument_are_copied():
    def shift_in(x, others, y, bias):
        y.copy_(x.sum() + y)
        for tensor in (*others, *([] if bias is None else [bias])):
            y.add_(tensor.sum())

    schema = "(Tensor x, Tensor[] others, Tensor(a!) y, Tensor? bias) -> ()"
    shift = jitload.torch_op("twenty::shift_in", shift_in, schema=schema)
    calls = {
        "one tensor": lambda x: shift(x, [], x, None),
        "overlapping views": lambda x: shift(x[1:], [], x[:-1], None),
        "a transposed view": lambda x: shift(x.T, [x[0]], x, x[1]),
        "disjoint views": lambda x: shift(x[:1], [x[1:2]], x[2:], None),
        "lists and None": lambda x: shift(torch.ones(1), [x[0], x[1]], x, x),
        "an empty view": lambda x: shift(x[:0], [], x, None),
    }
    for name, call in calls.items():
        x, traced = X.clone(), X.clone()
        call(x)
        compiled(call)(traced)
        torch.testing.assert_close(x, traced, msg=name)
    x = X.clone()
    calls["one tensor"](x)
    torch.testing.assert_close(x, X.sum() + X)


def test_rules_take_dtypes_and_extents_from_arguments():
    def run(x, size, dtype, y, z):
        y.fill_(2), z.fill_(3)

    schema = "(Tensor x, SymInt[] size, ScalarType dtype, Tensor(a!) y, Tensor(b!) z) -> ()"
    rules = {"y": "dtype[x.shape[-1], *size]", "z": "dtype like x"}
    fill = jitload.torch_op("twenty::fill", run, schema=schema, out=rules)

    def expected(x, size, dtype):
        return torch.full((4, *size), 2, dtype=dtype), torch.full_like(X, 3, dtype=dtype)

    check(fill, expected, (X, [], torch.float64), (X, [3, 2], torch.int32))
    schema = "(SymInt[] size, ScalarType dtype, Tensor(a!) y) -> ()"
    for rule, message in {"dtype[*dtype]": "is not a list of extents", "size[1]": "no dtype 'size'"}.items():
        with pytest.raises(jitload.errors.LaunchSpecError, match=message):
            jitload.torch_op("twenty::fill2", run, schema=schema, out={"y": rule})


def test_operators_have_overloads():
    def add(x, y):
        return x + y

    def register(name, kind):
        return jitload.torch_op(name, add, schema=f"(Tensor x, {kind} y) -> (Tensor z)", out={"z": "like x"})

    plain = register("overloads::add", "Tensor")
    assert torch.ops.overloads.add(X, X).equal(2 * X)  # from now on, torch keeps what it knows of the overloads
    scalar = register("overloads::add.scalar", "float")
    assert str(scalar._schema) == "overloads::add.scalar(Tensor x, float y) -> Tensor"
    for _ in range(2):
        for packet in (torch.ops.overloads.add, compiled(lambda x, y: torch.ops.overloads.add(x, y))):
            assert packet(X, X).equal(2 * X)
            assert packet(X, 2.0).equal(X + 2)
        assert set(torch.library.opcheck(scalar, (X, 2.0)).values()) == {"SUCCESS"}
        assert torch.ops.overloads.add.default is plain
        assert torch.ops.overloads.add.scalar is scalar
        scalar = register("overloads::add.scalar", "float?")  # another schema
    scalar.register_autograd(lambda ctx, grad: (3 * grad, None))
    x = X.clone().requires_grad_()
    torch.ops.overloads.add(x, 2.0).sum().backward()
    assert x.grad.unique().tolist() == [3]


def test_typed_functions_have_defaults():
    mod = jitload.load_inline(
        "torch_op_defaults",
        cuda_sources="""__global__ void scale(const float* x, float* y, float by, int add, bool negate, const float* z) {
            int i = threadIdx.x; float v = x[i] * by + add + (z ? z[i] : 0); y[i] = negate ? -v : v;
        }""",
        functions={"scale": jitload.Launch(grid=1, block="x.numel()", nullable="z")},
        arch="cpu",
    )
    defaults = {"by": 2, "add": 1, "negate": True, "z": None}
    options = {"out": {"y": "like x"}}
    scale = jitload.torch_op("defaults::scale", mod.scale, defaults=defaults, **options)
    expected = "scale(Tensor x, float by=2., SymInt add=1, bool negate=True, Tensor? z=None) -> Tensor"
    assert str(scale._schema) == f"defaults::{expected}"
    for call in (scale, compiled(lambda *args, **names: scale(*args, **names))):
        assert call(X).equal(-(2 * X + 1))
        assert call(X, 3.0, negate=False).equal(3 * X + 1)
    for wrong, message in (
        ({"bi": 2}, "there is no argument 'bi'"),
        ({**defaults, "add": 1.5}, "1.5 cannot be the default of 'SymInt add'"),
        ({**defaults, "z": 1}, "1 cannot be the default of 'Tensor. z': the default must be None"),
        ({"by": 2}, "torch refuses the operator defaults::f"),
        ({"x": None}, "None cannot be the default of 'Tensor x'"),
    ):
        with pytest.raises(jitload.errors.LaunchSpecError, match=message):
            jitload.torch_op("defaults::f", mod.scale, defaults=wrong, **options)
    with pytest.raises(jitload.errors.LaunchSpecError, match="write them into schema="):
        jitload.torch_op("defaults::f", print, schema="(Tensor(a!) x, int n) -> ()", defaults={"n": 1})


def test_keyword_only_arguments():
    """One has no default and the name of a function of rules."""

    def scaled(x, y, *, ceil_div, factor=2.0, size=1):
        y.fill_(ceil_div).narrow(0, 0, len(x)).copy_(x * factor + size)

    schema = "(Tensor x, Tensor(a!) y, *, SymInt ceil_div, float factor=2.0, SymInt size=1) -> ()"
    scale = jitload.torch_op("keywords::scale", scaled, schema=schema, out={"y": "x.dtype[x.shape[0] + size]"})
    assert str(scale._schema).endswith("(Tensor x, *, SymInt ceil_div, float factor=2., SymInt size=1) -> Tensor")
    x = torch.arange(3.0)
    for call in (scale, compiled(lambda x, **keywords: scale(x, **keywords))):
        assert call(x, ceil_div=7).tolist() == [1, 3, 5, 7]
        assert call(x, size=2, ceil_div=7, factor=10.0).tolist() == [2, 12, 22, 7, 7]
    with pytest.raises(RuntimeError, match="missing value for argument 'ceil_div'"):
        scale(x)
    assert set(torch.library.opcheck(scale, (x,), {"ceil_div": 7, "size": 2}).values()) == {"SUCCESS"}

    def save(ctx, inputs, keyword_only_inputs, output):
        ctx.factor = keyword_only_inputs["factor"]

    x.requires_grad_()
    scale.register_autograd(lambda ctx, grad: ctx.factor * grad[:3], setup_context=save)
    for call in (scale, compiled(lambda x, **keywords: scale(x, **keywords))):
        (grad,) = torch.autograd.grad(call(x, ceil_div=0, factor=4.0).sum(), x)
        assert grad.tolist() == [4, 4, 4]
    scale.register_vmap(lambda info, in_dims, x, *, ceil_div, **keywords: (x + ceil_div, 0))
    assert torch.vmap(lambda x: scale(x, ceil_div=5))(torch.zeros(2, 3)).tolist() == [[5] * 3] * 2


def test_keyword_only_arguments_of_kernels():
    source = "__global__ void add(const float* x, float* y, int n, float by) { *y = *x + by + n; }"
    functions = {"add": jitload.Launch(grid=1, block=1)}
    mod = jitload.load_inline("keywords", cuda_sources=source, functions=functions, arch="cpu")
    schema = "(Tensor x, Tensor(a!) y, *, SymInt n=1, float by) -> ()"
    add = jitload.torch_op("keywords::add", mod.add, schema=schema, out={"y": "like x"})
    assert add(torch.ones(1), by=2.5) == 4.5
    schema = "(Tensor(a!) y, *, int n=4) -> ()"
    filled = jitload.torch_op("keywords::filled", lambda y, *, n: y.fill_(n), schema=schema, out={"y": "int32[n]"})
    assert str(filled._schema).endswith("filled(*, int n=4, Device? device=None) -> Tensor")
    assert filled().tolist() == [4] * 4
    assert filled(n=2, device="cpu").tolist() == [2, 2]
    assert torch.func.functionalize(lambda: filled(n=1))().tolist() == [1]
