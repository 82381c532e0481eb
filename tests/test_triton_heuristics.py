"""Heuristics of Triton kernels: what they compute from compiled-in values, and which ones are refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from triton_support import ADD, Tensor, extract, load, refusal
from triton_tuned import tuned

from jitload.errors import SignatureError


def constexprs(kernel: Any, *args: Any, **options: Any) -> dict[str, Any]:
    return dict(extract(kernel, *args, **options).constexprs)


# ---- heuristics ------------------------------------------------------------------------------------------------


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
        lambda args: isinstance(args["bias_ptr"], Tensor),
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


# ---- hooks -----------------------------------------------------------------------------------------------------


def test_a_configuration_with_a_hook_is_refused():
    def no_hook(_: Any) -> None:
        raise AssertionError

    kernel = tuned(triton.Config({"BLOCK": 64}, num_warps=2, pre_hook=no_hook))(kernels.vector_add)
    message = refusal(SignatureError, kernel, signature=ADD)
    assert message.startswith("kernel 'vector_add': the configuration (BLOCK=64, num_warps=2, num_stages=")
    assert "has a pre_hook, Python code that Triton runs before each launch" in message
    assert "config={'BLOCK': 64, …} or variants=[…], and do the hook's work before the call" in message
    with pytest.raises(SignatureError, match="has a pre_hook"):
        load(kernel, signature=ADD, variants="all")
    assert extract(kernel, signature=ADD, config={"BLOCK": 64}).constexprs == (("BLOCK", 64),)  # and no hook
