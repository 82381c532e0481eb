"""`jitload.torch_op`: rules for results whose presence, rank or dtype depends on the arguments."""

from __future__ import annotations

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


def test_results_may_be_none():
    def run(x, mask, y, kept):
        y.copy_(x if mask is None else x * mask)
        if mask is None:
            assert kept is None
        else:
            kept.fill_(mask.sum().item())

    masked = jitload.torch_op(
        "results::masked",
        run,
        schema="(Tensor x, Tensor? mask, Tensor(a!) y, Tensor(b!)? kept) -> ()",
        out={"y": "like x", "kept": "None if mask is None else mask.dtype[1]"},
    )
    assert str(masked._schema) == "results::masked(Tensor x, Tensor? mask) -> (Tensor, Tensor?)"

    def expected(x, mask):
        return (x, None) if mask is None else (x * mask, mask.sum().reshape(1))

    check(masked, expected, (X, None), (X, X + 1))


def test_results_of_functions_may_be_none():
    def run(x, add):
        return None if add is None else x + add

    maybe = jitload.torch_op(
        "results::maybe",
        run,
        schema="(Tensor x, float? add) -> (Tensor? y)",
        out={"y": "None if add is None else like x"},
    )
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


def test_kernels_get_null_for_results_that_are_none():
    mod = jitload.load_inline(
        "torch_op_null",
        cuda_sources="""__global__ void top(const float* x, float* best, int* index, bool with_index, int rows, int n) {
            int r = blockIdx.x, at = 0;
            for (int i = 1; i < n; ++i) if (x[r * n + i] > x[r * n + at]) at = i;
            best[r] = x[r * n + at];
            if (index) index[r] = at;
        }""",
        functions={
            "top": jitload.Launch(
                grid="rows", block=1, args={"rows": "x.numel() // n", "n": "x.shape[-1]"}, nullable="index"
            )
        },
        arch="cpu",
    )
    top = jitload.torch_op(
        "results::top",
        mod.top,
        out={"best": "[*x.shape[:-1]]", "index": "[*best.shape] if with_index else None"},
    )
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
    operator = jitload.torch_op(
        "results::wrong",
        print,
        schema="(Tensor x, Tensor? mask, Tensor(a!) y) -> ()",
        out={"y": "like mask if mask is None else like x"},
    )
    with pytest.raises(
        ValueError, match=r"results::wrong\(\): out\['y'\] = 'like mask if .*: the rule uses .* None; .*, mask is None$"
    ):
        operator(X.to(device), None)
    with pytest.raises(TypeError, match="argument 'x' must be a tensor, got None"):
        operator(None, X.to(device))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("like mask", "'mask' may be None, so the rule must test it: '… if mask is None else …'"),
        ("x.dtype[*size]", "'size' may be None, so the rule must test it"),
        ("dtype like x", "'dtype' may be None, so the rule must test it"),
        ("like x if n > 1 else like mask", "'mask' may be None, so the rule must test it"),
        ("None if n > 1 else like x", "'y' must not be None: declare it as 'Tensor. y'"),
        ("like x if x is None else float32[1]", "'x' is never None"),
        ("like x if n > 1", "this is not a rule for an output"),
        ("like x if n / 2 else like x", "/ is not part of launch expressions"),
        ("like x if n > 1 else as x", "this is not a rule for an output"),
        ("x.dtype[*x.stride]", "is not a list of extents: write .size"),
        ("x.dtype[*n]", "is not a list of extents: write .size"),
        ("x.dtype[*x.shape[:1.5]]", "1.5 is not an integer"),
    ],
)
def test_wrong_rules_are_refused(rule, message):
    schema = "(Tensor x, Tensor? mask, int[]? size, ScalarType? dtype, int n) -> (Tensor y)"
    with pytest.raises(jitload.errors.LaunchSpecError, match=message):
        jitload.torch_op("results::refused", print, schema=schema, out={"y": rule})


# ---- fake functions ----------------------------------------------------------------------------------------------


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
