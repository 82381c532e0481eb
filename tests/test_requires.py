"""`Launch(requires=…)`: what a call has to fulfil, in every place that knows a function's arguments."""

import re

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitload
from jitload import Launch
from jitload.errors import LaunchSpecError

SOURCE = r"""
// Copy n numbers.
template <class T> __global__ void copy(const T* x, T* y, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + k;
}
"""
TERMS = ("y.numel() >= n and x.shape == y.shape", "0 < k <= 64", "k % 16 == 0", "k == 16 or x.size(0) > 8")
COMMON = {"args": {"n": "x.numel()"}, "requires": TERMS}
ONE, BOTH = "copy<float>", "copy<{x.dtype}>"


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    functions = {
        "copy": Launch(kernel=ONE, grid="ceil_div(n, 256)", block=256, **COMMON),
        "configured": Launch(kernel=ONE, **COMMON),
        "several": Launch(kernel=BOTH, dtypes=("float32", "float64"), grid=1, block=256, **COMMON),
        "optional": Launch(kernel=ONE, grid=1, block=1, nullable="y", requires="y is None or y.numel() >= n"),
    }
    return jitload.load_inline("requires", cuda_sources=SOURCE, functions=functions, arch="cpu")


REFUSED = [
    ((10,), (5,), 16, "y.numel() >= n, got 5 and 10"),
    ((10,), (2, 5), 16, "x.shape == y.shape, got [10] and [2, 5]"),
    ((10,), (10,), 0, "0 < k, got 0 and 0"),
    ((10,), (10,), 80, "k <= 64, got 80 and 64"),
    ((10,), (10,), 17, "k % 16 == 0, got 1 and 0"),
]


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", ["copy", "configured", "several"])
def test_a_call_is_refused_with_the_term_and_both_values(mod, name, case):
    x, y, k, message = case
    function = mod[name][1, 256] if name == "configured" else mod[name]
    out = torch.zeros(y)
    with pytest.raises(ValueError, match=re.escape(f"{name}(): requires {message}") + "$"):
        function(torch.ones(x), out, k)
    assert not out.any()


def test_a_call_that_fulfils_all_terms_runs(mod):
    for function, dtype in (
        (mod.copy, torch.float32), (mod.configured[1, 256], torch.float32), (mod.several, torch.float64),
    ):  # fmt: skip
        x, y = torch.ones(3, 4, dtype=dtype), torch.zeros(3, 4, dtype=dtype)
        function(x, y, 16)
        assert y.eq(17).all()


def test_only_the_operands_that_are_needed_are_evaluated(mod):
    mod.optional(torch.ones(4), None, 0, 4)
    with pytest.raises(ValueError, match=r"requires y is None or y\.numel\(\) >= n, got 2 and 4$"):
        mod.optional(torch.ones(4), torch.ones(2), 4, 4)
    with pytest.raises(ValueError, match=r"requires k == 16 or x\.size\(0\) > 8, got 1 and 8$"):
        mod.copy(torch.ones(1), torch.ones(1), 32)


def test_help_and_stub_name_the_terms_over_what_the_caller_passes(mod, tmp_path):
    expected = "Requires y.numel() >= x.numel(), x.shape == y.shape, 0 < k, k <= 64, k % 16 == 0"
    assert expected in mod.copy.__doc__
    assert expected in mod.write_stub(tmp_path / "requires.pyi").read_text()


@pytest.mark.parametrize("name", ["copy", "several"])
def test_the_fake_of_a_torch_operator_refuses_what_a_call_refuses(mod, name):
    operator = jitload.torch_op(f"requires::{name}", mod[name])
    with FakeTensorMode():
        for x, y, k, message in REFUSED:
            with pytest.raises(ValueError, match=re.escape(f"{name}(): requires {message}") + "$"):
                operator(torch.empty(x), torch.empty(y), k)
        operator(torch.empty(3, 4), torch.empty(3, 4), 16)


def test_an_operator_is_traced_with_sizes_that_are_not_known(mod):
    operator = jitload.torch_op("requires::traced", mod.copy)

    def program(x, mask):
        chosen = x[mask]
        y = torch.empty_like(x)
        operator(chosen, y, 16)
        return y

    x, mask = torch.ones(9), torch.ones(9, dtype=torch.bool)
    traced = make_fx(program, tracing_mode="symbolic")(x, mask)
    assert traced(x, mask).eq(17).all()
    with pytest.raises(ValueError, match=r"x\.shape == y\.shape, got \[8\] and \[9\]"):
        traced(x, mask.index_fill(0, torch.tensor(0), False))


def test_host_functions_and_variants_require_too():
    source = "int total(const int* x, int n) { int sum = 0; for (int i = 0; i < n; ++i) sum += x[i]; return sum; }"
    launch = Launch(host="x", requires="x.numel() >= n")
    host = jitload.load_inline("requires_host", cpp_sources=source, functions={"total": launch})
    assert host.total(torch.ones(3, dtype=torch.int32), 3) == 3
    with pytest.raises(ValueError, match=r"^total\(\): requires x\.numel\(\) >= n, got 3 and 4$"):
        host.total(torch.ones(3, dtype=torch.int32), 4)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ("1 > 2", "is true for no call"),
        (("n > 0", 3), r"requires\[1\].*an expression"),
        ("x.shape < y.shape", "shapes can only be compared with == and !="),
        ("x.shape == 4", r"\.shape alone is not an integer"),
        (3, "an expression"),
    ],
)
def test_a_term_that_is_no_condition_is_refused(requires, message):
    with pytest.raises(LaunchSpecError, match=message):
        Launch(requires=requires)


def test_a_term_with_an_unknown_name_is_refused():
    with pytest.raises(LaunchSpecError, match="there is no parameter 'm'"):
        launch = Launch(kernel=ONE, requires="y.numel() >= m")
        jitload.load_inline("requires_unknown", cuda_sources=SOURCE, functions={"copy": launch}, arch="cpu")
