"""Reading Triton kernels: jit functions, autotuned and compiled kernels, and what is not a kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from triton_support import ADD, Tensor, assumptions, compiled, extract, load, refusal, since
from triton_tuned import tuned, tuned_add

import jitload
from jitload.errors import SignatureError


@since(3, 3)
def test_a_compiled_kernel():
    kernel = compiled(num_warps=2)
    cubin = jitload.extract_triton(kernel)
    assert cubin.data == kernel.kernel
    assert assumptions(cubin.triton) == [("x_ptr", "multiple_of", 16)]
    assert (cubin.triton.num_warps, cubin.triton.constexprs) == (2, (("BLOCK", 256),))


@since(3, 3)
def test_a_compiled_kernel_cannot_be_changed():
    kernel = compiled()
    expected = "is compiled already, so num_warps= cannot change it: leave it out"
    assert expected in refusal(SignatureError, kernel, num_warps=8)
    assert "so example arguments cannot change it" in refusal(SignatureError, kernel, Tensor())
    assert "is compiled for sm_90a, so arch= cannot make it run on sm_80" in refusal(
        SignatureError, kernel, arch="sm_80"
    )


# ---- configurations --------------------------------------------------------------------------------------------


def test_a_configuration_that_is_passed_or_the_only_one():
    facts = extract(tuned_add, signature=ADD, config=tuned_add.configs[1])
    assert (facts.constexprs, facts.num_warps) == ((("BLOCK", 1024),), 8)
    facts = extract(tuned_add, signature=ADD, config={"BLOCK": 64, "num_warps": 1})
    assert (facts.constexprs, facts.num_warps) == ((("BLOCK", 64),), 1)
    only = tuned(triton.Config({"BLOCK": 32}, num_warps=1))(kernels.vector_add)
    assert extract(only, signature=ADD).constexprs == (("BLOCK", 32),)


def test_constexprs_that_leave_nothing_to_tune():
    facts = extract(tuned_add, signature=ADD, BLOCK=256, num_warps=2)
    assert (facts.constexprs, facts.num_warps) == ((("BLOCK", 256),), 2)


def test_a_configuration_that_tuning_chose():
    measured = tuned(*tuned_add.configs)(kernels.vector_add)
    measured.best_config = measured.configs[0]  # as run() sets it
    assert extract(measured, signature=ADD).constexprs == (("BLOCK", 512),)


def test_an_autotuned_kernel_without_a_chosen_configuration():
    message = refusal(SignatureError, tuned_add, signature=ADD)
    assert message.startswith("kernel 'tuned_add' is autotuned, and no configuration has been chosen: launch it once")
    assert 'config=, or build all of them with load_triton(…, variants="all"). They are:' in message
    assert "\n    BLOCK=512, num_warps=4" in message
    assert "\n    BLOCK=1024, num_warps=8" in message
    assert "config= must be a triton.Config or a mapping, got int" in refusal(
        SignatureError, tuned_add, signature=ADD, config=512
    )


def test_a_configuration_and_a_constexpr_that_differ():
    message = refusal(SignatureError, tuned_add, signature=ADD, config={"BLOCK": 128}, BLOCK=32)
    assert (
        message
        == "kernel 'tuned_add': 'BLOCK' is 128 in the configuration and 32 in constexprs= or as a keyword: pass it once"
    )


# ---- what is not a kernel --------------------------------------------------------------------------------------


def plain_function() -> None:
    """Do nothing, without a decorator."""


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (None, "got None, which a launch returns if a hook of Triton's stopped the compilation"),
        (len, "got builtin_function_or_method"),
        (plain_function, "plain_function() is a plain function: decorate it with @triton.jit"),
        ([1, 2], "got a list of 2, as warmup() of an autotuned kernel returns: pass one of its items"),
        ("add", "got str"),
        (SimpleNamespace(fn=kernels.vector_add), "got SimpleNamespace, which wraps one: pass its .fn"),
        (SimpleNamespace(fn=3), "got SimpleNamespace"),
    ],
)
def test_what_is_not_a_kernel(kernel: Any, expected: str):
    message = refusal(SignatureError, kernel, signature=ADD)
    assert message == f"a Triton kernel is a @triton.jit function or what a launch or warmup() returns: {expected}"


def test_a_kernel_that_torch_wrapped():
    torch = pytest.importorskip("torch")
    wrapped = torch.library.wrap_triton(kernels.vector_add)
    assert extract(wrapped, signature=ADD, BLOCK=64).kernel.name == "vector_add"


def test_a_kernel_of_the_interpreter():
    pytest.importorskip("numpy")
    from triton.runtime.interpreter import InterpretedFunction

    interpreted = InterpretedFunction(kernels.vector_add.fn)
    assert "Triton's interpreter mode, which compiles nothing: unset TRITON_INTERPRET" in refusal(
        SignatureError, interpreted, signature=ADD
    )


def test_a_hook_of_the_kernel_itself():
    kernel = triton.jit(kernels.copy.fn)
    kernel.add_pre_run_hook(lambda *_, **__: None)
    message = refusal(SignatureError, kernel, signature="*fp32, *fp32", BLOCK=64)
    assert message.startswith("kernel 'copy' has a pre_run_hook, Python code that Triton runs before each launch")
    with pytest.raises(jitload.JitLoadError, match="pass the kernel without it"):
        load(kernel, signature="*fp32, *fp32", BLOCK=64)
