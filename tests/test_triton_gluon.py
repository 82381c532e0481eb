"""Kernels written in Gluon: compiled by Triton, and handed over as what that returns."""

from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton_gluon as kernels
from support.triton import aligned_array
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton_support import refusal, slots

import jitload
from jitload.errors import SignatureError

TILE = f"tensordesc<fp16[64, 64],{gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)!r}>"


def compiled(kernel: Any, signature: dict[str, str], **constexprs: int) -> Any:
    """Return what a launch returns, without one."""
    types = {**signature, **dict.fromkeys(constexprs, "constexpr")}
    values = {(list(types).index(name),): value for name, value in constexprs.items()}
    source = GluonASTSource(kernel, types, values)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def test_a_kernel():
    kernel = compiled(kernels.copy, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}, BLOCK=128)
    arguments = [("x_ptr", "*fp32", 8), ("y_ptr", "*fp32", 8), ("n", "i32", 4)]
    assert slots(jitload.extract_triton(kernel).triton) == arguments
    assert list(jitload.load_triton("gluon", kernel, grid="ceil_div(n, BLOCK)")) == ["copy"]


def test_a_descriptor_with_its_layout(stub_driver):
    kernel = compiled(kernels.copy_tile, {"tile": TILE, "y_ptr": "*fp16"}, BLOCK=64)
    facts = jitload.extract_triton(kernel).triton
    assert [(a.name, a.type) for a in facts.arguments] == [("tile", "tensordesc<fp16[64, 64]>"), ("y_ptr", "*fp16")]
    assert [(d.block_shape, d.swizzle, d.elem_size) for d in facts.descriptors] == [((64, 64), 3, 2)]
    mod = jitload.load_triton("gluon", kernel, grid=1)
    tile = aligned_array(dtype="float16", shape=(256, 64))
    stub_driver.clear()
    mod.copy_tile(tile, aligned_array(dtype="float16"))
    (launch,) = stub_driver.launches()
    assert [len(argument) for argument in launch.arguments[:6]] == [128, 4, 4, 8, 8, 8]


def test_the_function_itself_has_to_be_compiled():
    words = refusal(SignatureError, kernels.copy, signature="*fp32, *fp32, i32", BLOCK=64)
    assert words.startswith("kernel 'copy' is written in Gluon: compile it with its warmup() or by launching it, and")
