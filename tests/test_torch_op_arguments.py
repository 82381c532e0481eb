"""`jitload.torch_op`: arguments that overlap, and rules for results that depend on arguments."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch_op_kernels import X, compiled

import jitload


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


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


def test_disjoint_parts_of_one_tensor_are_passed_without_a_copy():
    addresses = []
    probe = jitload.torch_op(
        "twenty::probe",
        lambda x, y: addresses.append((x.data_ptr(), y.data_ptr())),
        schema="(Tensor x, Tensor(a!) y) -> ()",
    )
    x = X.clone()
    probe(x[0], x[1:])
    probe(x[:2], x[1:])
    assert addresses[0] == (x.data_ptr(), x[1:].data_ptr())
    assert addresses[1][0] != x.data_ptr()


def test_rules_take_dtypes_and_extents_from_arguments():
    fill = jitload.torch_op(
        "twenty::fill",
        lambda x, size, dtype, y, z: (y.fill_(2), z.fill_(3)),
        schema="(Tensor x, SymInt[] size, ScalarType dtype, Tensor(a!) y, Tensor(b!) z) -> ()",
        out={"y": "dtype[x.shape[-1], *size]", "z": "dtype like x"},
    )
    for size, dtype in (([], torch.float64), ([3, 2], torch.int32)):
        args = (X, size, dtype)
        expected = (torch.full((4, *size), 2, dtype=dtype), torch.full_like(X, 3, dtype=dtype))
        for call in (fill, compiled(lambda *args: fill(*args))):
            torch.testing.assert_close(call(*args), expected)
        assert set(torch.library.opcheck(fill, args).values()) == {"SUCCESS"}
    for rule, message in {"dtype[*dtype]": "is not a list of extents", "size[1]": "no dtype 'size'"}.items():
        with pytest.raises(jitload.errors.LaunchSpecError, match=message):
            jitload.torch_op(
                "twenty::fill2",
                fill.function,
                schema="(SymInt[] size, ScalarType dtype, Tensor(a!) y) -> ()",
                out={"y": rule},
            )


def test_operators_have_overloads():
    def add(x, y):
        return x + y

    def register(name, kind, **options):
        schema = f"(Tensor x, {kind} y) -> (Tensor z)"
        return jitload.torch_op(name, add, schema=schema, out={"z": "like x"}, **options)

    plain = register("overloads::add", "Tensor")
    assert torch.ops.overloads.add(X, X).equal(2 * X)  # from now on, torch keeps what it knows of the overloads
    scalar = register("overloads::add.scalar", "float", autocast="float32")
    assert str(scalar._schema) == "overloads::add.scalar(Tensor x, float y) -> Tensor"
    for _ in range(2):
        for packet in (torch.ops.overloads.add, compiled(lambda x, y: torch.ops.overloads.add(x, y))):
            assert packet(X, X).equal(2 * X)
            assert packet(X, 2.0).equal(X + 2)
        assert set(torch.library.opcheck(scalar, (X, 2.0)).values()) == {"SUCCESS"}
        assert torch.ops.overloads.add.default is plain
        assert torch.ops.overloads.add.scalar is scalar
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.ops.overloads.add(X.bfloat16(), 2.0).dtype == torch.float32
        scalar = register("overloads::add.scalar", "float?", autocast="float32")  # another schema
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
    assert str(scale._schema).endswith(
        "scale(Tensor x, float by=2., SymInt add=1, bool negate=True, Tensor? z=None) -> Tensor"
    )
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
    with torch.autocast("cpu", torch.bfloat16):
        half = jitload.torch_op("keywords::half", scaled, schema=schema, out={"y": "like x"}, autocast="bfloat16")
        assert half(x.detach(), ceil_div=0, size=0).dtype == torch.bfloat16


def test_keyword_only_arguments_of_compiled_functions_and_fakes():
    mod = jitload.load_inline(
        "keywords",
        cuda_sources="""__global__ void add(const float* x, float* y, int n, float by) { y[threadIdx.x] = x[threadIdx.x] + by + n; }""",
        functions={"add": jitload.Launch(grid=1, block="x.numel()")},
        arch="cpu",
    )
    schema = "(Tensor x, Tensor(a!) y, *, SymInt n=1, float by) -> ()"
    add = jitload.torch_op("keywords::add", mod.add, schema=schema, out={"y": "like x"})
    assert add(X, by=2.5).equal(X + 3.5)
    iota = jitload.torch_op(
        "keywords::iota",
        lambda *, n, device: torch.arange(n, device=device),
        schema="(*, SymInt n, Device? device=None) -> (Tensor y)",
        fake=lambda *, n, device: torch.empty(n, dtype=torch.int64, device=device),
    )
    assert iota(n=3).tolist() == compiled(lambda n: iota(n=n, device="cpu"))(3).tolist() == [0, 1, 2]
    filled = jitload.torch_op(
        "keywords::filled", lambda y, *, n: y.fill_(n), schema="(Tensor(a!) y, *, int n=4) -> ()", out={"y": "int32[n]"}
    )
    assert str(filled._schema).endswith("filled(*, int n=4, Device? device=None) -> Tensor")
    assert filled().tolist() == [4] * 4
    assert filled(n=2, device="cpu").tolist() == [2, 2]
    power = "(Tensor x, *, int lambda) -> (Tensor y)"  # torch can call it, but not compile the call
    raised = jitload.torch_op("keywords::power", lambda x, *, lambda_: x**lambda_, schema=power, out={"y": "like x"})
    assert raised(X, **{"lambda": 2}).equal(X * X)
    assert torch.func.functionalize(lambda: filled(n=1))().tolist() == [1]
