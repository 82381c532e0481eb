"""Compiling with Triton: options, errors, and what compiling leaves as it was."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from triton_libraries import HISTOGRAM
from triton_support import ADD, ARCH, VERSION, extract, refusal
from triton_tuned import tuned_add

import jitload
from jitload.errors import CompileError, SignatureError, ToolchainError


def test_options_of_the_compiler():
    facts = extract(kernels.vector_add, signature=ADD, BLOCK=1024, num_warps=8, num_stages=2)
    assert (facts.num_warps, facts.kernel.max_threads) == (8, 256)
    cluster = extract(kernels.vector_add, signature=ADD, BLOCK=1024, num_ctas=2)
    assert cluster.num_ctas == 2
    if VERSION.number >= (3, 5):
        launch = extract(kernels.vector_add, signature=ADD, BLOCK=1024, launch_pdl=True, launch_cooperative_grid=True)
        assert (launch.is_pdl, launch.is_cooperative) == (True, True)


@pytest.mark.parametrize(
    ("option", "values", "expected"),
    [
        ("num_warps", (0, 3, 64, -1, 2**40, "4", 4.0, True), "a power of 2 from 1 to 32: a block has at most 1024 thr"),
        ("num_ctas", (0, 3, 32, -2, "2"), "a power of 2 from 1 to 16, the most blocks that a cluster has"),
        ("num_stages", (-1, "3", 2.5, 2**31), "0 or more"),
        ("maxnreg", (0, -1, "many"), "1 or more"),
    ],
)
def test_numbers_that_no_gpu_supports(option: str, values: tuple[Any, ...], expected: str):
    for value in values:
        message = refusal(SignatureError, kernels.vector_add, signature=ADD, BLOCK=64, **{option: value})
        assert message.startswith(f"kernel 'vector_add': {option}={value!r} must be {expected}")
    message = refusal(SignatureError, tuned_add, signature=ADD, config={"BLOCK": 64, option: values[0]})
    assert f"{option}={values[0]!r} must be {expected}" in message


def test_an_option_or_constexpr_has_one_value():
    for constexprs, keywords in (({"num_warps": 8}, {"num_warps": 4, "BLOCK": 64}), ({"BLOCK": 64}, {"BLOCK": 128})):
        message = refusal(SignatureError, kernels.vector_add, signature=ADD, constexprs=constexprs, **keywords)
        assert "as a keyword: pass it once" in message
    assert extract(kernels.vector_add, signature=ADD, constexprs={"BLOCK": 64}, BLOCK=64).num_warps == 4


def test_clusters_before_hopper():
    message = refusal(SignatureError, kernels.vector_add, signature=ADD, BLOCK=64, num_ctas=2, arch="sm_80")
    assert message.endswith(
        "num_ctas=2 needs clusters, which only sm_90 and newer have, not sm_80: leave it out for sm_80"
    )


def test_a_kernel_that_triton_rejects():
    message = refusal(CompileError, kernels.broken, signature={"x_ptr": "*fp32"})
    assert message.startswith("Triton could not compile 'broken'\n")
    assert "power of 2" in message


def test_several_architectures_and_none():
    with pytest.raises(ToolchainError, match="so it takes one architecture, not sm_80, sm_90"):
        jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=64, arch="sm_80,sm_90")
    with pytest.raises(ToolchainError, match="is not an architecture"):
        jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=64, arch="gfx942")
    with pytest.raises(ToolchainError, match="a Triton kernel is compiled only for GPUs, not for 'cpu'"):
        jitload.load_triton("m", kernels.vector_add, signature=ADD, BLOCK=64, arch="cpu")


def test_a_changed_interface_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("triton.compiler.ASTSource", None)
    with pytest.raises(
        jitload.JitLoadError, match=rf"Triton {triton.__version__} has changed its interface: ASTSource"
    ):
        extract(kernels.vector_add, signature=ADD, BLOCK=64)


# ---- what compiling leaves as it was ---------------------------------------------------------------------------


def test_the_environment_is_as_it_was():
    before = dict(os.environ)
    extract(kernels.vector_add, signature=ADD, BLOCK=2048)
    with pytest.raises(jitload.JitLoadError):
        extract(kernels.broken, signature={"x_ptr": "*fp32"})
    assert dict(os.environ) == before


@pytest.mark.parametrize("setting", [None, "0"])
def test_the_machine_code_has_source_lines_only_if_the_user_wants_them(
    setting: str | None, monkeypatch: pytest.MonkeyPatch
):
    if setting is not None:
        monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", setting)
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=128, arch=ARCH)
    assert (b"triton_kernels.py" in cubin.data) == (setting == "0")


def test_threads_extract_at_the_same_time():
    results: dict[int, Any] = {}

    def work(block: int) -> None:
        results[block] = extract(kernels.histogram, signature=HISTOGRAM, BLOCK=block)

    blocks = (32, 64, 128, 256)
    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {block: dict(facts.constexprs)["BLOCK"] for block, facts in results.items()} == {b: b for b in blocks}
    assert "TRITON_DISABLE_LINE_INFO" not in os.environ
