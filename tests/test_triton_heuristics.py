"""Heuristics, hooks and grids of Triton kernels: what they compute from compiled-in values, and which are refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl
import triton_kernels as kernels
from support.arrays import CudaArray
from support.triton import aligned_array
from triton_kernels import tuned
from triton_support import ADD, DESCRIPTORS, Tensor, extract, load, refusal

from jitload.errors import LaunchSpecError, SignatureError
from jitload.triton.grid import GridScope, read_grid

BLOCKS = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "PROGRAMS": 132}
DUMMY = {**DESCRIPTORS, **dict.fromkeys(("a_desc", "b_desc", "c_desc"), "tensordesc<fp16[1, 1]>")}


def constexprs(kernel: Any, *args: Any, **options: Any) -> dict[str, Any]:
    return dict(extract(kernel, *args, **options).constexprs)


def decided(**functions: Callable[[Any], Any]) -> Any:
    return triton.heuristics(functions)(kernels.decided)


SIGNED = {"x_ptr": "*fp32:16", "bias_ptr": "*fp32", "n": "i32"}


@pytest.mark.parametrize(
    "ask", [lambda args: args["bias_ptr"] is not None, lambda args: args.get("bias_ptr") is not None]
)
def test_whether_an_argument_is_none_is_known(ask):
    kernel = decided(HAS_BIAS=ask, BLOCK=lambda args: 64 if args["HAS_BIAS"] else 32)
    assert constexprs(kernel, signature=SIGNED) == {"HAS_BIAS": True, "BLOCK": 64}
    assert constexprs(kernel, signature={**SIGNED, "bias_ptr": None}) == {"HAS_BIAS": False, "BLOCK": 32}
    assert constexprs(kernel, Tensor(), Tensor(), 8) == {"HAS_BIAS": True, "BLOCK": 64}
    assert constexprs(kernel, Tensor(), n=8, bias_ptr=None) == {"HAS_BIAS": False, "BLOCK": 32}
    assert constexprs(kernel, signature=SIGNED, HAS_BIAS=False, BLOCK=16) == {"HAS_BIAS": False, "BLOCK": 16}


def test_a_constexpr_may_be_passed_by_position():
    kernel = triton.heuristics({"BLOCK": lambda args: 2 * args["HALF"]})(kernels.two_blocks)
    assert constexprs(kernel, Tensor(), 8, 64) == {"HALF": 64, "BLOCK": 128}
    assert "multiple values for argument 'HALF'" in refusal(SignatureError, kernel, Tensor(), 8, 64, HALF=64)


def test_outer_heuristics_run_first_and_inner_ones_replace_their_values():
    inner = decided(HAS_BIAS=lambda args: args["BLOCK"] == 32)
    for outer in ({"BLOCK": lambda _: 32}, {"BLOCK": lambda _: 32, "HAS_BIAS": lambda _: False}):
        kernel = triton.heuristics(outer)(inner)
        assert constexprs(kernel, signature=SIGNED) == {"HAS_BIAS": True, "BLOCK": 32}


def test_a_heuristic_may_ask_for_the_class_of_an_example_argument():
    kernel = decided(HAS_BIAS=lambda args: isinstance(args["bias_ptr"], Tensor))
    assert constexprs(kernel, Tensor(), Tensor(), 8, BLOCK=32)["HAS_BIAS"] is True
    assert constexprs(kernel, Tensor(), 7, 8, BLOCK=32)["HAS_BIAS"] is False
    assert "from the argument 'bias_ptr'" in refusal(SignatureError, kernel, signature=SIGNED, BLOCK=32)


def test_heuristics_may_set_options():
    kernel = decided(HAS_BIAS=lambda _: False, num_warps=lambda args: args["BLOCK"] // 64)
    assert extract(kernel, signature=SIGNED, BLOCK=512).num_warps == 8
    assert extract(kernel, signature=SIGNED, BLOCK=512, num_warps=2).num_warps == 2
    chosen = tuned(triton.Config({"BLOCK": 128}))(kernel)  # its four warps are a default
    assert extract(chosen, signature=SIGNED).num_warps == 2
    sees = decided(HAS_BIAS=lambda args: args["num_warps"] == 8)
    assert constexprs(sees, signature=SIGNED, BLOCK=32, num_warps=8)["HAS_BIAS"] is True


@pytest.mark.parametrize(
    "ask",
    [
        lambda args: args["n"] % 16 == 0,
        lambda args: bool(args["bias_ptr"]),
        lambda args: math.log2(args["n"]) > 3,
        lambda args: args["bias_ptr"],
    ],
)
def test_values_of_arguments_are_not_known(ask):
    name = "n" if "n" in ask.__code__.co_consts else "bias_ptr"
    expected = (
        f"kernel 'decided': its heuristic computes 'HAS_BIAS' from the argument {name!r}, whose value is known only at "
        "a call: pass constexprs={'HAS_BIAS': …}, or build variants"
    )
    assert refusal(SignatureError, decided(HAS_BIAS=ask), signature=SIGNED, BLOCK=32) == expected
    assert refusal(SignatureError, decided(HAS_BIAS=ask), Tensor(), Tensor(), 4, BLOCK=32) == expected


def test_all_unknown_values_of_heuristics_are_named_in_one_message():
    unknown = {
        "EVEN": lambda args: args["n"] % 2 == 0,
        "TWICE": lambda args: args["EVEN"],
        "THRICE": lambda args: args["TWICE"],
        "WHOLE": lambda args: args["EVEN"] >= args["n"],
        "BLOCK": lambda args: 64,
    }
    kernel = triton.heuristics({**unknown, "HAS_BIAS": lambda args: args["bias_ptr"] > 3})(decided(BLOCK=lambda _: 1))
    message = refusal(SignatureError, kernel, signature=SIGNED)
    sources = "'EVEN' from the argument 'n', 'WHOLE' from the argument 'n', 'HAS_BIAS' from the argument 'bias_ptr'"
    assert f"heuristics compute {sources}" in message
    assert "pass constexprs={'EVEN': …, 'WHOLE': …, 'HAS_BIAS': …}" in message


def test_a_default_does_not_hide_an_unknown_argument():
    kernel = triton.heuristics({"BLOCK": lambda args: args.get("n", 64)})(kernels.vector_add)
    expected = "its heuristic computes 'BLOCK' from the argument 'n', whose value is known only at a call"
    assert expected in refusal(SignatureError, kernel, signature=ADD)
    assert extract(kernel, signature=ADD, BLOCK=64).constexprs == (("BLOCK", 64),)


def halve(nargs: Any) -> None:
    """Set the block shapes as the matmul of Triton's tutorial does."""
    columns = nargs["BLOCK_N"] // 2 if nargs.get("HALF_OUTPUT", False) else nargs["BLOCK_N"]
    nargs["a_desc"].block_shape = [nargs["BLOCK_M"], nargs["BLOCK_K"]]
    nargs["b_desc"].block_shape = [nargs["BLOCK_N"], nargs["BLOCK_K"]]
    nargs["c_desc"].block_shape = [nargs["BLOCK_M"], triton.cdiv(columns, 1)]


def configured(hook: Any, **values: int) -> Any:
    config = triton.Config({**BLOCKS, **values}, num_warps=8, pre_hook=hook)
    return tuned(config)(kernels.persistent_matmul)


def test_a_hook_that_sets_block_shapes():
    facts = extract(configured(halve), signature=DUMMY)
    assert facts == extract(kernels.persistent_matmul, signature=DESCRIPTORS, num_warps=8, num_stages=3, **BLOCKS)
    assert extract(configured(halve, BLOCK_M=64), signature=DUMMY).descriptors[0].block_shape == (64, 64)
    assert extract(configured(halve), signature=", ".join(DUMMY.values())) == facts


def test_a_hook_over_example_arguments_leaves_them_as_they_are():
    torch = pytest.importorskip("torch")
    from triton.tools.tensor_descriptor import TensorDescriptor

    half = torch.empty((256, 256), dtype=torch.float16, device="meta")
    descriptors = [TensorDescriptor.from_tensor(half, [1, 1]) for _ in range(3)]
    facts = extract(configured(halve), *descriptors[:2], c_desc=descriptors[2], M=33, N=33, K=33)
    assert [d.block_shape for d in facts.descriptors[:2]] == [(128, 64)] * 2
    assert [descriptor.block_shape for descriptor in descriptors] == [[1, 1]] * 3


def test_all_configurations_with_their_hooks(stub_driver):
    configs = [triton.Config({**BLOCKS, "BLOCK_M": rows}, num_warps=4, pre_hook=halve) for rows in (64, 128)]
    kernel = tuned(*configs)(kernels.persistent_matmul)
    mod = load(kernel, signature=DUMMY, variants="all", grid=lambda META: (META["BLOCK_M"],))
    name = next(name for name in mod if "BLOCK_M_128" in name)
    a, b, c = (matrix(256, 64), matrix(128, 64), matrix(256, 128))
    stub_driver.clear()
    mod.persistent_matmul(a, b, c, 256, 128, 64)
    mod[name](a, b, c, 256, 128, 64)
    assert [launch.grid[0] for launch in stub_driver.launches()] == [64, 128]


def matrix(rows: int, columns: int) -> CudaArray:
    return aligned_array(dtype="float16", shape=(rows, columns))


COUNT = [0]


def counts(_: Any) -> None:
    COUNT[0] += 1


def by_global(nargs: Any) -> None:
    global COUNT  # noqa: PLW0603  what the test is about
    COUNT = nargs["BLOCK"]


def by_closure() -> Callable[[Any], None]:
    count = 0

    def hook(_: Any) -> None:
        nonlocal count
        count += 1

    return hook


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (lambda nargs: nargs["out_ptr"].zero_(), "it uses 'out_ptr', which is unknown at the build (its zero_)."),
        (lambda nargs: nargs["nothing"], "it uses 'nothing', which is unknown at the build ('nothing')."),
        (counts, "this hook is different: it uses 'COUNT', which is a list."),
        (by_global, "this hook is different: it contains the instruction STORE_GLOBAL 'COUNT'."),
        (by_closure(), "this hook is different: it contains the instruction STORE_DEREF 'count'."),
        (lambda _: input(), "this hook is different: it uses 'input', which is a builtin_function_or_method."),
        (print, "this hook is different: it is a builtin_function_or_method, which cannot be inspected."),
    ],
)
def test_hooks_that_no_library_can_run(hook, expected):
    kernel = tuned(triton.Config({"BLOCK": 64}, num_warps=2, pre_hook=hook))(kernels.vector_add)
    message = refusal(SignatureError, kernel, signature=ADD)
    assert message.startswith("kernel 'vector_add': the configuration (BLOCK=64, num_warps=2, num_stages=")
    assert "has a pre_hook, Python code that Triton runs before each launch. jitload supports only hooks" in message
    assert expected in message
    assert "config={'BLOCK': 64, …} or variants=[…], and do the hook's work before the call" in message
    with pytest.raises(SignatureError, match="has a pre_hook"):
        load(kernel, signature=ADD, variants="all")
    assert extract(kernel, signature=ADD, config={"BLOCK": 64}).constexprs == (("BLOCK", 64),)  # and no hook
    assert COUNT == [0]


SCOPE = GridScope(kernel="k", arguments=("x", "n", "M", "N"), constexprs=("BLOCK", "BLOCK_M", "BLOCK_N"), examples={})
MODE = "split"
PROGRAMS = 132
WIDE = tl.constexpr(7)
n, M, N = 1000, 5, 6
x = object()
rows, data = None, [1, 2]


class Array:
    """A tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def data_ptr(self) -> int:
        return id(self)

    def numel(self) -> int:
        return self.shape[0]


source, target = Array(8), Array(9)


def named(meta: Any) -> Any:
    """Return the grid."""
    return (triton.cdiv(n, meta["BLOCK"]),)


def with_local_variables(meta: Any) -> Any:
    """Return the grid."""
    count, block = meta["n"], meta["BLOCK"]
    blocks: int = triton.cdiv(count, block)
    count = min(blocks, 8)
    extents = (count, blocks)
    return extents  # noqa: RET504


GRIDS = [
    (("a", 2), ("a", 2)),
    (lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),), ("ceil_div(n, BLOCK)",)),
    (lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]), 1),
     ("ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)", "1")),
    (lambda META: (min(PROGRAMS, triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"])),),
     ("min(132, ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N))",)),
    (lambda _: (x.numel() // 4, x.shape[0], x.size(1) + x.ndim),
     ("x.numel() // 4", "x.shape[0]", "x.size(1) + x.ndim")),
    (lambda m: [(n + m["BLOCK"] - 1) // m["BLOCK"], -(-n // 4)], ("(n + BLOCK - 1) // BLOCK", "-(-n // 4)")),
    (lambda m: (m["x"].numel() // m["BLOCK"], m["x"].shape[-1], m["x"].stride(0) + m["x"].ndim),
     ("x.numel() // BLOCK", "x.shape[-1]", "x.stride(0) + x.ndim")),
    (lambda m: (math.ceil(n / m["BLOCK"]),), ("ceil_div(n, BLOCK)",)),
    (lambda m: (triton.next_power_of_2(n), int(max(n, 1)), WIDE), ("next_power_of_2(n)", "max(n, 1)", "7")),
    (named, ("ceil_div(n, BLOCK)",)),
    (with_local_variables, ("min(ceil_div(n, BLOCK), 8)", "ceil_div(n, BLOCK)")),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "expected"), GRIDS)
def test_a_grid_becomes_launch_expressions(grid, expected):
    assert read_grid(grid, SCOPE) == expected


def handles(meta: Any) -> Any:
    try:
        return (len(meta["x"]),)
    except:  # noqa: E722
        return (1,)


def stores(meta: Any) -> Any:
    meta["n"] = 3
    return (meta["n"],)


def grows(meta: Any) -> Any:
    n = meta["n"]
    n = n + n + n + n + n + n + n + n
    n = n + n + n + n + n + n + n + n
    n = n + n + n + n + n + n + n + n
    return (n + n,)


REFUSED = [
    (lambda m: (n if n > 4 else 1,), "the function has a condition or a loop"),
    (lambda m: (1 + (m["x"] is None),), "the function has a condition or a loop"),
    (lambda m: (1 + (MODE in ("split", "all")),), "the function has a condition or a loop"),
    (handles, "the function has a condition or a loop"),
    (lambda m: ({"split": 2}.get(MODE, 1),), "unhashable"),
    (lambda m: (1 + ("split",).count(MODE),), "its result would depend on a value that is not known"),
    (lambda m: ({"by split": 2}.get(f"by {MODE}", 1),), "its result would depend on a value that is not known"),
    (lambda m: ((lambda n: n * PROGRAMS)(m["n"]),), "the function has a function inside"),  # noqa: PLC3002
    (stores, "does not support item assignment"),
    (grows, "an expression is too long"),
    (lambda m: (rows,), "rows is neither a run-time parameter nor an integer"),
    (lambda m: (m["BLOK"],), "there is no parameter 'BLOK'; the parameters are x, n, M, N, BLOCK"),
    (lambda m: (len(data),), "launch expressions have no len()"),
    (lambda m: (math.ceil(n),), "launch expressions have math.ceil() only of a division"),
    (lambda m: (triton.cdiv(n, div=4),), "unexpected keyword argument 'div'"),
    (lambda m: (no_such_name,), "name 'no_such_name' is not defined"),  # noqa: F821
    (lambda m: [*x.shape], "object is not iterable"),
]


@pytest.mark.parametrize(("grid", "expected"), REFUSED)
def test_functions_that_cannot_be_translated(grid, expected):
    assert expected in grid_refusal(grid)


def grid_refusal(grid: Any, **examples: Any) -> str:
    with pytest.raises(LaunchSpecError) as caught:
        read_grid(grid, SCOPE._replace(examples=examples))
    assert 'grid="ceil_div(n, BLOCK)"' in str(caught.value)
    return str(caught.value).replace("\n", " ")


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ({"x": target, "y": source}, "y.numel()"),
        ({"y": source, "source": target}, "y.numel()"),  # not the parameter of the same name
        ({"x": source, "source": source}, "source.numel()"),
        ({}, "source.numel()"),
    ],
)
def test_a_tensor_of_another_name_is_the_parameter_for_which_it_was_passed(examples, expected):
    assert read_grid(lambda _: (source.numel(),), scope_of(examples)) == (expected,)


def scope_of(examples: dict[str, Any]) -> GridScope:
    return SCOPE._replace(arguments=("x", "y", "source"), examples=examples)


def test_a_tensor_that_is_no_parameter():
    expected = "the tensor 'source' is not the argument of exactly one parameter; write m['…'] with"
    assert expected in grid_refusal(lambda m: (triton.cdiv(source.numel(), m["BLOCK"]),))
    assert expected in grid_refusal(lambda m: (source.shape[0],))
    with pytest.raises(LaunchSpecError, match="the tensor 'source' is not the argument of exactly one"):
        read_grid(lambda _: (source.numel(),), scope_of({"source": Array(7)}))


def test_local_integers_of_the_caller_are_constants_with_a_warning(caplog: pytest.LogCaptureFixture):
    tokens = 77
    grid = read_grid(lambda m: (triton.cdiv(tokens, m["BLOCK"]) * PROGRAMS, 1), SCOPE)
    assert grid == ("ceil_div(77, BLOCK) * 132", "1")
    (message,) = caplog.messages
    expected = "kernel 'k': the grid is (ceil_div(77, BLOCK) * 132, 1) for all calls, with the constants tokens=77. If"
    assert message.startswith(expected)
    caplog.clear()
    assert read_grid(lambda m: (triton.cdiv(n, m["BLOCK"]),), SCOPE) == ("ceil_div(n, BLOCK)",)
    assert not caplog.messages


def test_a_name_that_means_two_things():
    assert read_grid(lambda m: (n,), SCOPE._replace(examples={"n": 1000})) == ("n",)
    expected = "'n' is both a variable with the value 1000 and a parameter of the kernel (here 65); write m['n']"
    assert expected in grid_refusal(lambda m: (n,), n=65)
