"""Triton kernels on a GPU: results against torch's, from libraries that know no Triton, and against Triton's own."""

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton_kernels as kernels
from support.gpu import run_program
from triton_kernels import tuned, tuned_add
from triton_libraries import LIBRARIES
from triton_support import ADD

import jitload

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def load(name: str, **options: Any) -> Any:
    kernel, given = LIBRARIES[name]
    return jitload.load_triton(name, kernel, **{**given, **options})


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_runs_where_there_is_no_triton(name, tmp_path):
    load(name, build_directory=tmp_path)
    code = "import sys, triton_checks; triton_checks.run(*sys.argv[1:])"
    assert run_program(code, name, str(tmp_path / f"{name}.so")) == "equal to torch's result\n"


def test_results_are_tritons_own_bit_for_bit():
    x, y = torch.randn(2, 5000, device="cuda")
    y = y.clone()
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    load("vector_add").vector_add(x, y, ours, 5000)
    kernels.vector_add[(5,)](x, y, theirs, 5000, BLOCK=1024)
    assert torch.equal(ours, theirs)

    rows = torch.randn(64, 1000, device="cuda")
    ours, theirs = torch.empty_like(rows), torch.empty_like(rows)
    load("softmax").softmax(rows, ours, 1000, 1000, 64, 1000)
    kernels.softmax[(64,)](rows, theirs, 1000, 1000, 64, 1000, BLOCK=1024)
    torch.testing.assert_close(ours, theirs)


def test_what_a_launch_of_tritons_returns():
    x = torch.arange(1000.0, device="cuda")
    out = torch.empty_like(x)
    compiled = kernels.square_kernel[(1,)](x, out, 1000)
    facts = jitload.extract_triton(compiled).triton
    assert facts.constexprs == (("BLOCK", 1024),)
    mod = jitload.load_triton("launched", compiled, grid="ceil_div(n, BLOCK)")
    ours = torch.empty_like(x)
    mod.square_kernel(x, ours, 1000)
    assert torch.equal(ours, x * x)


def test_tuning_chooses():
    measured = tuned(*tuned_add.configs)(kernels.vector_add)
    x, y = torch.ones(4096, device="cuda"), torch.ones(4096, device="cuda")
    out = torch.empty_like(x)
    measured[lambda META: (triton.cdiv(4096, META["BLOCK"]),)](x, y, out, 4096)
    mod = jitload.load_triton("tuned", measured, signature=ADD, grid="ceil_div(n, BLOCK)")
    out.zero_()
    mod.vector_add(x, y, out, 4096)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("i1", True), ("i8", -7), ("i16", -300), ("i32", -70000), ("i64", -(2**40)), ("u8", 200), ("u16", 60000),
        ("u32", 2**31), ("u64", 2**63), ("fp16", 0.333), ("bf16", 0.333), ("fp32", 0.1), ("fp64", 0.1),
    ],
)  # fmt: skip
def test_scalars_arrive_as_the_cubin_has_them(text, value):
    name = f"scalar_{text}"
    mod = jitload.load_triton(name, kernels.store_scalar, signature={"out_ptr": "*fp64", "x": text}, grid=1)
    out = torch.zeros((), dtype=torch.float64, device="cuda")
    mod.store_scalar(out, value)
    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    expected = torch.tensor(value, dtype=kinds[text]).double().item() if text in kinds else float(value)
    assert out.item() == expected


def test_clusters_pdl_and_cooperative_launches(hopper):
    x, out = torch.ones(4096, device="cuda"), torch.zeros(4096, device="cuda")
    for options in ({"num_ctas": 2}, {"launch_pdl": True}, {"launch_cooperative_grid": True}):
        mod = jitload.load_triton(
            "attributes", kernels.vector_add, signature=ADD, BLOCK=1024, grid="ceil_div(n, BLOCK)", **options
        )
        out.zero_()
        mod.vector_add(x, x, out, 4096)
        assert torch.equal(out, x + x)
