"""The `Launch` record: what it takes, keeps and refuses, and `requires=` in every place that knows the arguments."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitload
from jitload import Launch
from jitload.errors import LaunchSpecError
from jitload.expressions.parse import python_name
from jitload.request.launch import LAUNCH_ATTRIBUTES


def refusal(**fields: Any) -> str:
    with pytest.raises(LaunchSpecError) as caught:
        Launch(**fields)
    return caught.value.message()


def test_fields_with_their_defaults_are_not_shown_and_do_not_change_keys():
    assert repr(Launch()) == "Launch()"
    assert repr(Launch(grid="n", block=64, args={"n": 1})) == "Launch(grid='n', block=64, args={'n': 1})"


def test_documentation_names_every_field():
    """The manual's table of fields and the docstring, in which a new row would be missing."""
    names = [field.name for field in fields(Launch)]
    manual = (Path(__file__).parent.parent / "docs" / "launching.md").read_text(encoding="utf-8")
    section = manual.partition("## The Launch record")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.MULTILINE)
    in_manual = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(in_manual) == sorted(names), "docs/launching.md has a table of the fields of Launch"
    documented = re.findall(r"^ {8}(\w+): ", Launch.__doc__ or "", re.MULTILINE)
    assert sorted(documented) == sorted(names), "the docstring of Launch describes its fields"


def test_the_manual_says_what_each_attribute_does_on_the_cpu():
    page = (Path(__file__).parent.parent / "docs" / "cpu.md").read_text(encoding="utf-8")
    missing = [name for name in LAUNCH_ATTRIBUTES if not re.search(rf"\b{name}\b", page)]
    assert missing == [], f"say in docs/cpu.md whether {missing} are refused or ignored (runtime/cpu/launch.cc)"


def test_equal_launches_are_equal_keys():
    arguments = {"n": 1, "m": 2}
    first = Launch(grid=["n"], block=256, args=arguments, strided="x")
    arguments["n"] = 0
    second = Launch(grid=("n",), block=256, args={"m": 2, "n": 1}, strided=("x",))
    assert (first, hash(first)) == (second, hash(second))
    for changed in (replace(first, pdl=True), replace(first, args={"n": 1}), replace(first, grid="n")):
        assert changed != first
        assert hash(changed) != hash(first)


def test_members_of_enums_are_numbers():
    class Blocks(IntEnum):
        MANY = 512

    launch = Launch(grid=Blocks.MANY, block=(Blocks.MANY, 1), shared_bytes=Blocks.MANY)  # at once, and not after 2**63
    assert launch == Launch(grid=512, block=(512, 1), shared_bytes=512)


def test_names_like_keywords_get_an_underscore():
    launch = Launch(params=("in", "is_", "n"), nullable="in", args={"lambda": "in_.numel()"})
    assert (launch.params, launch.nullable, launch.args) == (("in_", "is_", "n"), ("in_",), {"lambda_": "in_.numel()"})
    assert [python_name(name) for name in ("in", "in_", "match", "None")] == ["in_", "in_", "match", "None_"]


def test_args_are_in_an_order_in_which_they_can_be_computed():
    launch = Launch(args={"c": "a + b", "b": "a * 2", "a": "x.numel()", "d": 1})
    order = list(launch.args)
    assert order.index("a") < order.index("b") < order.index("c")
    assert set(order) == {"a", "b", "c", "d"}


def test_a_launch_cannot_be_changed_and_can_be_copied():
    launch = Launch(grid="n", args={"n": "x.numel()"})
    with pytest.raises(FrozenInstanceError):
        launch.grid = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(launch)) == copy.deepcopy(launch) == launch


EXTENT = "an int, an expression (str) or a tuple of up to three of them"
EXPRESSION = "an int or an expression (str)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"grid": True}, f"grid: must be {EXTENT}, got bool"),
        ({"grid": (1, False)}, f"grid[1]: must be {EXPRESSION}, got bool"),
        ({"grid": ()}, "grid: must have one to three dimensions, got 0"),
        ({"grid": -1}, "grid: must be from 0 to 2147483647, got -1"),
        ({"grid": (1, 65536)}, "grid[1]: must be from 0 to 65535, got 65536"),
        ({"block": (32, 1, 65)}, "block[2]: must be from 1 to 64, got 65"),
        ({"block": (64, "n", 32)}, "block: has 2048 threads; CUDA's limit is 1024"),
        ({"cluster": (5, "n", 4)}, "cluster: has 20 blocks; CUDA's limit is 16"),
        ({"shared_bytes": -1}, "shared_bytes: must be from 0 to 232448, got -1"),
        ({"cooperative": 1}, "cooperative: must be True or False, got int"),
        ({"cluster_policy": "tight"}, "cluster_policy: must be 'spread' or 'load_balancing', got 'tight'"),
        ({"bounds": True}, "bounds: must be 'check', got True"),
        ({"priority": 2**40}, "priority: does not fit 32 bits"),
        ({"kernel": " "}, "kernel: must not be empty"),
        ({"doc": "a\0b"}, "doc: must not contain a null character"),
        ({"params": ("x", "n", "x")}, "params: has 'x' twice"),
        ({"nullable": "x, y"}, "nullable: 'x, y' is not an identifier, so it cannot be the name of a parameter"),
        ({"args": [("n", 1)]}, "args: must be a mapping from names to expressions, got list"),
        ({"args": {"n": 0.5}}, f"args['n']: must be {EXPRESSION}, got float"),
        ({"args": {"n": 10**5000}}, f"args['n']: must be from {-(2**63)} to {2**63 - 1}, got another integer"),
        ({"args": {"n": "n + 1"}}, "args: parameters are computed from each other: n -> n"),
        ({"args": {"x": "b + n", "b": "c", "c": "b"}}, "args: parameters are computed from each other: b -> c -> b"),
    ],
)
def test_a_field_of_another_form_is_refused(fields, message):
    assert refusal(**fields) == message


def test_malformed_expression_is_refused_at_once():
    assert refusal(grid=("n", "m +")).startswith("grid[1]: this is not an expression: ")
    lines = refusal(shared_bytes="n / 2").split("\n")
    assert lines[:3] == ["shared_bytes: 'n / 2' is not part of launch expressions", "    n / 2", "    ^"]
    assert lines[3].endswith("Use // to round down, or ceil_div(a, b) to round up.")


# ---- `requires=`: what a call has to fulfil -------------------------------------------------------------------------

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
        ("x.shape == (4, 6)", r"\.shape alone is not an integer[^!]*\.dim\(\) and x\.shape == y\.shape"),
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
