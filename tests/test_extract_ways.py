"""Extraction of Triton kernels from example arguments, compiled and tuned kernels; what it leaves as it was."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton_kernels as kernels
from triton_libraries import HISTOGRAM
from triton_support import ADD, ARCH, DESCRIPTORS, PERSISTENT, Tensor, assumptions, compiled, extract
from triton_tuned import tuned, tuned_add

import jitload
from jitload.triton.versions import find_triton

VERSION = find_triton()


# ---- from example arguments ------------------------------------------------------------------------------------


def test_example_arguments_are_specialised_as_triton_does():
    facts = extract(kernels.optional_bias, Tensor(), None, Tensor(address=4), 64, 1, BLOCK=128)
    assert assumptions(facts) == [
        ("x_ptr", "multiple_of", 16), ("bias_ptr", "null", 0), ("n", "multiple_of", 16), ("stride", "equal_to", 1),
    ]  # fmt: skip
    assert facts.constexprs == (("BLOCK", 128),)


def test_tensors_of_torch_real_and_meta_and_dtypes():
    real = torch.zeros(64)
    meta = torch.empty(64, device="meta")
    for x in (real, meta, torch.float32):
        facts = extract(kernels.vector_add, x, meta, meta, 33, 64)
        assert [a.dtype for a in facts.arguments] == ["float32"] * 3 + [None]
        assert len(facts.assumptions) == 3


def test_arguments_by_name_and_position():
    by_name = extract(kernels.vector_add, out_ptr=Tensor(), x_ptr=Tensor(), y_ptr=Tensor(), n=33, BLOCK=64)
    by_position = extract(kernels.vector_add, Tensor(), Tensor(), Tensor(), 33, 64)
    assert by_name == by_position


def test_integers_have_the_width_of_their_value():
    facts = extract(kernels.scalars, Tensor(), True, 3, 17, 2**40, 2**63, 1.5, BLOCK=128)
    assert [(a.kind, a.size) for a in facts.arguments[1:]] == [
        ("bool", 1), ("int", 4), ("int", 4), ("int", 8), ("uint", 8), ("float", 4),
    ]  # fmt: skip
    assert [a.parameter for a in facts.assumptions] == ["out_ptr", "big", "huge"]


def test_what_a_kernel_does_not_want_specialised():
    facts = extract(kernels.unspecialised, Tensor(), 1, 64, BLOCK=128)
    assert assumptions(facts) == [("x_ptr", "multiple_of", 16)]
    assert [p.name for p in facts.kernel.parameters] == ["x_ptr", "seed", "n"]


@pytest.mark.skipif(VERSION.number < (3, 3), reason="tuples came with Triton 3.3")
def test_a_tuple_of_examples():
    facts = extract(kernels.of_a_tuple, (Tensor(), Tensor(address=8), 1), 65, BLOCK=128)
    assert [a.name for a in facts.arguments] == ["pair_0", "pair_1", "pair_2", "n"]
    assert assumptions(facts) == [("pair_0", "multiple_of", 16), ("pair_2", "equal_to", 1)]


@pytest.mark.skipif(VERSION.number < (3, 4), reason="host-side descriptors came with Triton 3.4")
def test_a_descriptor_as_example():
    from triton.tools.tensor_descriptor import TensorDescriptor

    half = torch.empty((256, 256), dtype=torch.float16, device="meta")
    a, c = TensorDescriptor.from_tensor(half, [128, 64]), TensorDescriptor.from_tensor(half, [128, 128])
    facts = extract(kernels.persistent_matmul, a, a, c, 256, 256, 256, **PERSISTENT)
    assert [x.type for x in facts.arguments[:3]] == [DESCRIPTORS[name] for name in ("a_desc", "b_desc", "c_desc")]


# ---- from what is compiled, tuned or decided by heuristics -----------------------------------------------------


@pytest.mark.skipif(VERSION.number < (3, 3), reason="the form of ASTSource changed with Triton 3.3")
def test_a_compiled_kernel():
    kernel = compiled(num_warps=2)
    cubin = jitload.extract_triton(kernel)
    assert cubin.data == kernel.kernel
    assert assumptions(cubin.triton) == [("x_ptr", "multiple_of", 16)]
    assert (cubin.triton.num_warps, cubin.triton.constexprs) == (2, (("BLOCK", 256),))


def test_an_autotuned_kernel_with_one_configuration_and_with_a_given_one():
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
    measured.best_config = measured.configs[0]  # as run() leaves it
    assert extract(measured, signature=ADD).constexprs == (("BLOCK", 512),)


def test_heuristics_over_constexprs():
    decided = triton.heuristics({"BLOCK": lambda args: 2 * args["HALF"]})(kernels.two_blocks)
    facts = extract(decided, signature={"x_ptr": "*fp32", "n": "i32"}, HALF=64)
    assert dict(facts.constexprs) == {"HALF": 64, "BLOCK": 128}


# ---- what extraction leaves as it was --------------------------------------------------------------------------


def test_the_environment_is_as_it_was():
    before = dict(os.environ)
    extract(kernels.vector_add, signature=ADD, BLOCK=2048)
    with pytest.raises(jitload.JitLoadError):
        extract(kernels.broken, signature={"x_ptr": "*fp32"})
    assert dict(os.environ) == before


def test_the_machine_code_does_not_know_where_the_source_is():
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=128, arch=ARCH)
    assert b"triton_kernels.py" not in cubin.data


def test_lines_of_source_stay_where_the_user_wants_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=128, arch=ARCH)
    assert b"triton_kernels.py" in cubin.data


def test_threads_extract_at_once():
    found: dict[int, Any] = {}

    def work(block: int) -> None:
        found[block] = extract(kernels.histogram, signature=HISTOGRAM, BLOCK=block)

    threads = [threading.Thread(target=work, args=(2**power,)) for power in range(5, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {block: dict(facts.constexprs)["BLOCK"] for block, facts in found.items()} == {
        b: b for b in (32, 64, 128, 256)
    }
    assert "TRITON_DISABLE_LINE_INFO" not in os.environ


def test_a_record_is_frozen():
    facts = extract(kernels.vector_add, signature=ADD, BLOCK=1024)
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.num_warps = 1
