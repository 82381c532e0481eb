"""Records of compiled Triton kernels: what a launch needs, and the checks against the cubin."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from triton_libraries import LIBRARIES
from triton_support import (
    ADD,
    ARCH,
    DESCRIPTORS,
    PERSISTENT,
    VERSION,
    assumptions,
    compiled,
    extract,
    refusal,
    since,
    slots,
)

import jitload
from jitload.elf.cubin import read_image
from jitload.errors import SignatureError
from jitload.triton import metadata as triton_metadata
from jitload.triton.versions import read_version


def test_the_record_of_a_kernel():
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
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts.num_warps = 1


def test_the_record_agrees_with_the_cubin():
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=512, arch="sm_80")
    kernel = read_image(cubin.data).kernels[0]
    assert cubin.arch == "sm_80"
    assert len(kernel.slots) == 4 + VERSION.hidden_pointers
    assert [p.offset for p in cubin.kernels[0].parameters] == [slot.offset for slot in kernel.slots[:4]]


@since(3, 4)
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


@since(3, 4)
def test_descriptors_before_hopper_are_plain_parameters():
    facts = extract(kernels.persistent_matmul, signature=DESCRIPTORS, arch="sm_80", **PERSISTENT)
    flags = VERSION.descriptor_flags
    assert [(d.is_expanded, d.flags) for d in facts.descriptors] == [(True, flags)] * 3
    assert [p.size for p in facts.kernel.parameters[: 9 + flags]] == [8, 8, 8, 8, 8, *[1] * flags, 4, 4, 8, 8]


@since(3, 4)
def test_warps_are_counted_after_compilation():
    blocks = {name: PERSISTENT[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    facts = extract(kernels.specialised_matmul, signature=DESCRIPTORS, arch="sm_100", num_warps=4, **blocks)
    assert (facts.num_warps, facts.kernel.max_threads) == (8, 256)  # four more that load


@since(3, 3)
def test_global_scratch():
    signature = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "M": "i32", "N": "i32"}
    facts = extract(kernels.device_descriptor_copy, signature=signature, BLOCK_M=64, BLOCK_N=64)
    assert facts.global_scratch.size > 0
    assert facts.global_scratch.alignment >= 64


def test_the_symbol_is_tritons():
    facts = extract(kernels.with_repr, signature={"x_ptr": "*fp32", "n": "i32"}, BLOCK=64)
    assert facts.kernel.name == "with_repr"
    assert facts.kernel.symbol == "renamed_64"


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "matmul", "histogram", "attention"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_as_people_write_them(name: str, arch: str):
    kernel, options = LIBRARIES[name]
    signature = options["signature"]
    facts = extract(kernel, arch=arch, **{key: value for key, value in options.items() if key != "grid"})
    assert [a.name for a in facts.arguments] == list(signature)
    assert [p.name for p in facts.kernel.parameters] == [n for n, text in signature.items() if not text.endswith(":1")]
    assert facts.num_warps == options.get("num_warps", 4)
    assert facts.shared_bytes > 0  # reductions, products and the results of atomics pass through it


# ---- checks ----------------------------------------------------------------------------------------------------


def doctored(**changes: Any) -> Any:
    """Return a compiled kernel with other metadata."""
    kernel = compiled()
    kernel.metadata = SimpleNamespace(**{**kernel.metadata._asdict(), **changes})
    return kernel


@since(3, 3)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target": SimpleNamespace(backend="hip", arch="gfx942", warp_size=64)}, "is compiled for hip gfx942"),
        ({"profile_scratch_size": 64}, "with instrumentation for a profiler, which needs 64 bytes per program"),
        ({"num_warps": 64}, "has num_warps=64 after compilation, which is 2048 threads, but a block has at most 1024"),
        ({"tmem_size": 1024}, "needs 1024 columns of tensor memory, but the GPU has 512"),
        ({"name": "other"}, "Triton names it 'other', but the cubin contains only: vector_add"),
        ({"num_warps": 8}, "says that it has 256 threads per block, but the cubin is for 128"),
    ],
)  # fmt: skip
def test_kernels_that_no_library_can_launch(changes: dict[str, Any], expected: str):
    assert expected in refusal(SignatureError, doctored(**changes), arch="native")


@since(3, 3)
def test_parameters_that_the_cubin_does_not_have(monkeypatch: pytest.MonkeyPatch):
    kernel = compiled()
    other = read_version("3.9.0" if VERSION.hidden_pointers == 1 else "3.4.0")
    monkeypatch.setattr(triton_metadata, "read_version", lambda _: other)
    message = refusal(SignatureError, kernel, arch="native")
    claim = "says that it takes x_ptr 8, y_ptr 8, out_ptr 8, n 4 and "
    assert f"{claim}{other.hidden_pointers} hidden pointers ({28 + 8 * other.hidden_pointers} bytes), but" in message
    assert f"the cubin has parameters of {', '.join(['8, 8, 8, 4', *['8'] * VERSION.hidden_pointers])} bytes" in message


@since(3, 3)
def test_an_unknown_kind_of_specialization():
    kernel = compiled()
    kernel.src.attrs = {(0,): [["tt.pointer_range", 32]]}
    expected = "parameter 'x_ptr': Triton specialized it by tt.pointer_range=32, which jitload cannot check at a call"
    assert expected in refusal(SignatureError, kernel, arch="native")
