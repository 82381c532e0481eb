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
