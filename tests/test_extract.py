"""Extraction of Triton kernels: types, hints and constexprs in, and what the record says. No GPU, no driver."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from triton_libraries import LIBRARIES
from triton_support import ADD, ARCH, DESCRIPTORS, PERSISTENT, Tensor, assumptions, extract, slots

import jitload
from jitload.elf.cubin import read_image
from jitload.triton.versions import find_triton

VERSION = find_triton()


# ---- from a signature ------------------------------------------------------------------------------------------


def test_a_signature_and_constexprs():
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, constexprs={"BLOCK": 1024}, arch=ARCH)
    facts = cubin.triton
    assert cubin.arch == "sm_90a"
    assert slots(facts) == [("x_ptr", "*fp32", 8), ("y_ptr", "*fp32", 8), ("out_ptr", "*fp32", 8), ("n", "i32", 4)]
    assert [(a.name, a.kind, a.dtype) for a in facts.arguments] == [
        ("x_ptr", "pointer", "float32"), ("y_ptr", "pointer", "float32"), ("out_ptr", "pointer", "float32"),
        ("n", "int", None),
    ]  # fmt: skip
    assert assumptions(facts) == [(name, "multiple_of", 16) for name in ("x_ptr", "y_ptr", "out_ptr")]
    assert facts.constexprs == (("BLOCK", 1024),)
    assert (facts.num_warps, facts.warp_size, facts.num_ctas, facts.cluster) == (4, 32, 1, (1, 1, 1))
    assert facts.hidden_pointers == VERSION.hidden_pointers
    assert facts.triton_version == triton.__version__
    assert cubin.kernels == (facts.kernel,)
    assert facts.kernel.max_threads == 128


def test_the_image_agrees_with_the_record():
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=512, arch="sm_80")
    kernel = read_image(cubin.data).kernels[0]
    assert cubin.arch == "sm_80"
    assert len(kernel.slots) == 4 + VERSION.hidden_pointers
    assert [p.offset for p in cubin.kernels[0].parameters] == [slot.offset for slot in kernel.slots[:4]]


def test_hints_decide_the_machine_code():
    plain = extract(kernels.vector_add, signature={**ADD, "x_ptr": "*fp32"}, BLOCK=1024)
    assert assumptions(plain) == [(name, "multiple_of", 16) for name in ("y_ptr", "out_ptr")]
    ones = extract(kernels.softmax, signature={
        "x_ptr": "*fp16", "out_ptr": "*fp16", "x_stride": "i64:16", "out_stride": "i32:1", "n_rows": "i32",
        "n_cols": "i32",
    }, BLOCK=128)  # fmt: skip
    assert assumptions(ones) == [("x_stride", "multiple_of", 16), ("out_stride", "equal_to", 1)]
    assert [a.name for a in ones.arguments] == ["x_ptr", "out_ptr", "x_stride", "out_stride", "n_rows", "n_cols"]
    assert [p.name for p in ones.kernel.parameters] == ["x_ptr", "out_ptr", "x_stride", "n_rows", "n_cols"]
    assert ones.kernel.parameters[2].size == 8


def test_a_text_of_types_in_order_as_tritons_own_tool_takes_it():
    facts = extract(kernels.vector_add, signature="*fp32:16, *fp32:16, *fp32:16, i32:16", BLOCK=1024)
    assert len(facts.assumptions) == 4


def test_a_pointer_that_is_never_there():
    signature = {"x_ptr": "*fp32", "bias_ptr": None, "out_ptr": "*fp32", "n": "i32", "stride": "i32"}
    facts = extract(kernels.optional_bias, signature=signature, BLOCK=64)
    assert assumptions(facts) == [("bias_ptr", "null", 0)]
    assert [a.name for a in facts.arguments] == ["x_ptr", "bias_ptr", "out_ptr", "n", "stride"]
    assert "bias_ptr" not in [p.name for p in facts.kernel.parameters]


def test_a_run_time_parameter_may_be_compiled_in():
    facts = extract(
        kernels.vector_add,
        signature={k: ADD[k] for k in ("x_ptr", "y_ptr", "out_ptr")},
        constexprs={"n": 4096},
        BLOCK=64,
    )
    assert facts.constexprs == (("n", 4096), ("BLOCK", 64))
    assert [a.name for a in facts.arguments] == ["x_ptr", "y_ptr", "out_ptr"]


def test_defaults_of_constexprs_are_known():
    facts = extract(kernels.square_kernel, signature={"X_ptr": "*fp32:16", "Y_ptr": "*fp32:16", "n": "i32"})
    assert facts.constexprs == (("BLOCK", 1024),)


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        ("i1", "bool"), ("i8", "int8"), ("i16", "int16"), ("i32", "int32"), ("i64", "int64"), ("u8", "uint8"),
        ("u16", "uint16"), ("u32", "uint32"), ("u64", "uint64"), ("fp16", "float16"), ("bf16", "bfloat16"),
        ("fp32", "float32"), ("fp64", "float64"), ("fp8e4nv", "float8_e4m3fn"), ("fp8e5", "float8_e5m2"),
        ("float32", "float32"), ("float8_e4m3fn", "float8_e4m3fn"), ("fp8e4b15", None),
    ],
)  # fmt: skip
def test_pointers_of_every_type(element: str, dtype: str | None):
    facts = extract(kernels.copy, signature={"x_ptr": f"*{element}", "out_ptr": f"*{element}"}, BLOCK=64)
    assert [a.dtype for a in facts.arguments] == [dtype, dtype]


@pytest.mark.parametrize(
    ("text", "kind", "size"),
    [
        ("i1", "bool", 1), ("i8", "int", 1), ("i16", "int", 2), ("i32", "int", 4), ("i64", "int", 8), ("u8", "uint", 1),
        ("u16", "uint", 2), ("u32", "uint", 4), ("u64", "uint", 8), ("fp16", "float", 2), ("bf16", "float", 2),
        ("fp32", "float", 4), ("fp64", "float", 8), ("bool", "bool", 1), ("float64", "float", 8),
    ],
)  # fmt: skip
def test_scalars_have_the_width_that_the_cubin_has(text: str, kind: str, size: int):
    facts = extract(kernels.store_scalar, signature={"out_ptr": "*fp64", "x": text})
    assert [(p.kind, p.size) for p in facts.kernel.parameters] == [("pointer", 8), (kind, size)]


def test_tuples_are_flattened():
    facts = extract(kernels.of_a_tuple, signature={"pair": ("*fp32:16", "*fp32", "i32:16"), "n": "i32"}, BLOCK=128)
    assert [a.name for a in facts.arguments] == ["pair_0", "pair_1", "pair_2", "n"]
    assert assumptions(facts) == [("pair_0", "multiple_of", 16), ("pair_2", "multiple_of", 16)]


@pytest.mark.skipif(VERSION.number < (3, 4), reason="host-side descriptors came with Triton 3.4")
def test_host_side_descriptors():
    facts = extract(kernels.persistent_matmul, signature=DESCRIPTORS, **PERSISTENT)
    assert [(d.parameter, d.dtype, d.is_expanded) for d in facts.descriptors] == [
        (name, "float16", False) for name in ("a_desc", "b_desc", "c_desc")
    ]
    assert [(d.block_shape, d.swizzle, d.elem_size) for d in facts.descriptors[:2]] == [((128, 64), 3, 2)] * 2
    assert [p.size for p in facts.kernel.parameters[:5]] == [128, 4, 4, 8, 8]
    assert len(facts.kernel.parameters) == 3 * 5 + 3
    assert [a.name for a in facts.arguments] == list(DESCRIPTORS)
    assert facts.arguments[0].type == "tensordesc<fp16[128, 64]>"
    assert facts.shared_bytes > 48 * 1024


@pytest.mark.skipif(VERSION.number < (3, 4), reason="host-side descriptors came with Triton 3.4")
def test_descriptors_before_hopper_are_plain_parameters():
    facts = extract(kernels.persistent_matmul, signature=DESCRIPTORS, arch="sm_80", **PERSISTENT)
    flags = VERSION.descriptor_flags
    assert [(d.is_expanded, d.flags) for d in facts.descriptors] == [(True, flags)] * 3
    assert [p.size for p in facts.kernel.parameters[: 9 + flags]] == [8, 8, 8, 8, 8, *[1] * flags, 4, 4, 8, 8]


@pytest.mark.skipif(VERSION.number < (3, 4), reason="host-side descriptors came with Triton 3.4")
def test_warps_are_counted_after_compilation():
    blocks = {name: PERSISTENT[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    facts = extract(kernels.specialised_matmul, signature=DESCRIPTORS, arch="sm_100", num_warps=4, **blocks)
    assert (facts.num_warps, facts.kernel.max_threads) == (8, 256)  # four more that load


@pytest.mark.skipif(VERSION.number < (3, 3), reason="descriptors made on the device came with Triton 3.3")
def test_global_scratch():
    signature = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "M": "i32", "N": "i32"}
    facts = extract(kernels.device_descriptor_copy, signature=signature, BLOCK_M=64, BLOCK_N=64)
    assert facts.global_scratch.size > 0
    assert facts.global_scratch.alignment >= 64


def test_the_symbol_is_tritons():
    facts = extract(kernels.with_repr, signature={"x_ptr": "*fp32", "n": "i32"}, BLOCK=64)
    assert facts.kernel.name == "with_repr"
    assert facts.kernel.symbol == "renamed_64"


def test_options_of_the_compiler():
    facts = extract(kernels.vector_add, signature=ADD, BLOCK=1024, num_warps=8, num_stages=2)
    assert (facts.num_warps, facts.kernel.max_threads) == (8, 256)
    cluster = extract(kernels.vector_add, signature=ADD, BLOCK=1024, num_ctas=2)
    assert cluster.num_ctas == 2
    if VERSION.number >= (3, 5):
        launch = extract(kernels.vector_add, signature=ADD, BLOCK=1024, launch_pdl=True, launch_cooperative_grid=True)
        assert (launch.is_pdl, launch.is_cooperative) == (True, True)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "matmul", "histogram", "attention"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_as_people_write_them(name: str, arch: str):
    kernel, options = LIBRARIES[name]
    signature = options["signature"]
    wishes = {key: value for key, value in options.items() if key != "grid"}
    facts = extract(kernel, arch=arch, **wishes)
    assert [a.name for a in facts.arguments] == list(signature)
    assert [p.name for p in facts.kernel.parameters] == [n for n, text in signature.items() if not text.endswith(":1")]
    assert facts.num_warps == options.get("num_warps", 4)
    assert facts.shared_bytes > 0  # reductions, products and the results of atomics pass through it


@pytest.mark.parametrize("given", [{"num_stages": 2}, {"constexprs": {"num_stages": 2}}])
def test_a_constexpr_of_an_options_name_is_both(given: dict[str, Any]):
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
    assert extract(kernels.staged, signature=signature, BLOCK=64, **given).constexprs == (
        ("BLOCK", 64),
        ("num_stages", 2),
    )
    assert extract(kernels.staged, Tensor(), Tensor(), 99, BLOCK=64, **given).constexprs[1] == ("num_stages", 2)
    with pytest.raises(jitload.errors.SignatureError, match="no value for num_stages"):
        extract(kernels.staged, signature=signature, BLOCK=64)
