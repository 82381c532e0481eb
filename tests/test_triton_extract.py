"""Extraction of Triton kernels: options, the record of a launch, its checks against the cubin, Gluon, and releases."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
import triton_gluon as gluon
import triton_helpers as helpers
import triton_kernels as kernels
import triton_zoo as zoo
from support.triton import aligned_array
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver
from triton_kernels import tuned_add
from triton_libraries import HISTOGRAM
from triton_support import ADD, ARCH, DESCRIPTORS, PERSISTENT, assumptions, compiled, extract, refusal, slots

import jitload
from jitload.errors import CompileError, SignatureError, ToolchainError
from jitload.triton import metadata as triton_metadata
from jitload.triton.versions import read_version


@pytest.mark.parametrize(
    ("option", "values", "expected"),
    [
        ("num_warps", (0, 3, 64, "4", True), "a power of 2 from 1 to 32: a block has at most 1024 thr"),
        ("num_ctas", (0, 32), "a power of 2 from 1 to 16, the most blocks that a cluster has"),
        ("num_stages", (-1, 2**31), "0 or more"),
        ("maxnreg", (0, "many"), "1 or more"),
    ],
)
def test_numbers_that_no_gpu_supports(option, values, expected):
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
    assert message.endswith("only sm_90 and newer have, not sm_80: leave it out for sm_80")


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


def test_the_environment_is_as_it_was():
    before = dict(os.environ)
    extract(kernels.vector_add, signature=ADD, BLOCK=2048)
    with pytest.raises(jitload.JitLoadError):
        extract(kernels.broken, signature={"x_ptr": "*fp32"})
    assert dict(os.environ) == before


@pytest.mark.parametrize("setting", [None, "0"])
def test_the_machine_code_has_source_lines_only_if_the_user_wants_them(setting, monkeypatch):
    if setting is not None:
        monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", setting)
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=128, arch=ARCH)
    assert (b"triton_kernels.py" in cubin.data) == (setting == "0")


def test_threads_extract_at_the_same_time():
    blocks = [32, 64, 128, 256]
    with ThreadPoolExecutor(len(blocks)) as pool:
        results = pool.map(lambda block: extract(kernels.histogram, signature=HISTOGRAM, BLOCK=block), blocks)
        assert [dict(facts.constexprs)["BLOCK"] for facts in results] == blocks
    assert "TRITON_DISABLE_LINE_INFO" not in os.environ


def test_the_record_of_a_kernel():
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, constexprs={"BLOCK": 1024}, arch=ARCH)
    facts = cubin.triton
    assert cubin.arch == "sm_90a"
    assert slots(facts) == [("x_ptr", "*fp32", 8), ("y_ptr", "*fp32", 8), ("out_ptr", "*fp32", 8), ("n", "i32", 4)]
    assert [a.kind for a in facts.arguments] == ["pointer"] * 3 + ["int"]
    assert [a.dtype for a in facts.arguments] == ["float32"] * 3 + [None]
    assert assumptions(facts) == [(name, "multiple_of", 16) for name in ("x_ptr", "y_ptr", "out_ptr")]
    assert facts.constexprs == (("BLOCK", 1024),)
    assert (facts.num_warps, facts.warp_size, facts.num_ctas, facts.cluster) == (4, 32, 1, (1, 1, 1))
    assert facts.hidden_pointers == 2
    assert facts.triton_version == triton.__version__
    assert cubin.kernels == (facts.kernel,)
    assert facts.kernel.max_threads == 128
    with pytest.raises(AttributeError):
        facts.num_warps = 1  # type: ignore[misc]


def test_warps_are_counted_after_compilation():
    blocks = {name: PERSISTENT[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    facts = extract(kernels.specialised_matmul, signature=DESCRIPTORS, arch="sm_100", num_warps=4, **blocks)
    assert (facts.num_warps, facts.kernel.max_threads) == (8, 256)  # four more that load


def doctored(**changes: Any) -> Any:
    """Return a compiled kernel with other metadata."""
    kernel = compiled()
    kernel.metadata = SimpleNamespace(**{**kernel.metadata._asdict(), **changes})
    return kernel


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target": SimpleNamespace(backend="hip", arch="gfx942", warp_size=64)}, "is compiled for hip gfx942"),
        ({"num_warps": 64}, "has num_warps=64 after compilation, which is 2048 threads, but a block has at most 1024"),
        ({"num_warps": 8}, "says that it has 256 threads per block, but the cubin is for 128"),
    ],
)  # fmt: skip
def test_kernels_that_no_library_can_launch(changes, expected):
    assert expected in refusal(SignatureError, doctored(**changes), arch="native")


def test_parameters_that_the_cubin_does_not_have(monkeypatch):
    kernel = compiled()
    monkeypatch.setattr(triton_metadata, "_HIDDEN_POINTERS", 1)
    message = refusal(SignatureError, kernel, arch="native")
    claim = "says that it takes x_ptr 8, y_ptr 8, out_ptr 8, n 4 and "
    assert f"{claim}1 hidden pointers (36 bytes), but the cubin has parameters of 8, 8, 8, 4, 8, 8 bytes" in message


def test_an_unknown_kind_of_specialization():
    kernel = compiled()
    kernel.src.attrs = {(0,): [["tt.pointer_range", 32]]}
    expected = "parameter 'x_ptr': Triton specialized it by tt.pointer_range=32, which jitload cannot check at a call"
    assert expected in refusal(SignatureError, kernel, arch="native")


def test_releases():
    assert read_version("3.6.0+git1234") == (3, 6)
    with pytest.raises(ToolchainError, match=r"Triton 3.5.1 is too old: jitload needs 3.6 or newer"):
        read_version("3.5.1")
    with pytest.raises(ToolchainError, match="reports the version 'dev', which is not a version number"):
        read_version("dev")


def test_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ToolchainError, match=r"need Triton, and it cannot be imported.*pip install triton"):
        jitload.extract_triton(None)


TILE = f"tensordesc<fp16[64, 64],{gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)!r}>"


def compiled_gluon(kernel: Any, signature: dict[str, str], **constexprs: int) -> Any:
    """Return what a launch returns, without one."""
    types = {**signature, **dict.fromkeys(constexprs, "constexpr")}
    values = {(list(types).index(name),): value for name, value in constexprs.items()}
    source = GluonASTSource(kernel, types, values)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def test_a_kernel_in_gluon():
    kernel = compiled_gluon(gluon.copy, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}, BLOCK=128)
    arguments = [("x_ptr", "*fp32", 8), ("y_ptr", "*fp32", 8), ("n", "i32", 4)]
    assert slots(jitload.extract_triton(kernel).triton) == arguments
    assert list(jitload.load_triton("gluon", kernel, grid="ceil_div(n, BLOCK)")) == ["copy"]


def test_a_descriptor_of_gluon_has_its_layout(stub_driver):
    kernel = compiled_gluon(gluon.copy_tile, {"tile": TILE, "y_ptr": "*fp16"}, BLOCK=64)
    facts = jitload.extract_triton(kernel).triton
    assert [(a.name, a.type) for a in facts.arguments] == [("tile", "tensordesc<fp16[64, 64]>"), ("y_ptr", "*fp16")]
    assert [(d.block_shape, d.swizzle, d.elem_size) for d in facts.descriptors] == [((64, 64), 3, 2)]
    mod = jitload.load_triton("gluon", kernel, grid=1)
    tile = aligned_array(dtype="float16", shape=(256, 64))
    stub_driver.clear()
    mod.copy_tile(tile, aligned_array(dtype="float16"))
    (launch,) = stub_driver.launches()
    assert [len(argument) for argument in launch.arguments[:6]] == [128, 4, 4, 8, 8, 8]


def test_a_function_of_gluon_has_to_be_compiled():
    words = refusal(SignatureError, gluon.copy, signature="*fp32, *fp32, i32", BLOCK=64)
    assert words.startswith("kernel 'copy' is written in Gluon: compile it with its warmup() or by launching it, and")


def some(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(64, 64, dtype=dtype, device="meta")


BF16, F32, F8, I64 = map(some, (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int64))
BITS, ADDRESSES = some(torch.bool), some(torch.uint64)
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "a sum of two": (zoo.add_bias, (BF16, BF16, 4096, 4096, 0.0), {"HAS_MORE": True, "BLOCK": 4096, "num_warps": 8}),
    "one alone": (zoo.add_bias, (BF16, None, 1, 99, 1.0), {"HAS_MORE": False, "BLOCK": 128, "DTYPE": tl.float16}),
    "bits": (zoo.fill, (F32, BITS, -1.5, True, 100), {"BLOCK": 128}),
    "defaults": (zoo.gather, (F32, I64, F32, 5, 64), {}),
    "other than defaults": (zoo.gather, (F32, I64, F32, 5, 64), {"scale": 2.5, "offset": 7}),
    "a text": (zoo.gate, (BF16, BF16, 100), {"KIND": "silu", "FUNCTION": None, "BLOCK": 128}),
    "a function": (zoo.gate, (BF16, BF16, 100), {"KIND": "", "FUNCTION": helpers.halve, "BLOCK": 128}),
    "tuples": (zoo.join, ((F32, F32, BF16), (3, 16, 1), F32), {"BLOCK": 64}),
    "an enum": (zoo.modes, (F32,), {"MODE": zoo.Mode.FILL, "SHAPE": (64, 3), "DTYPE": tl.float32, "FLAG": True}),
    "assorted": (zoo.assorted, (F32, F32), {"BLOCK": 128}),
    "what is constant": (zoo.constant, (F8, F8), {"BLOCK": 64}),
    "addresses": (zoo.constant, (ADDRESSES, ADDRESSES), {"BLOCK": 64}),
    "nothing": (zoo.nothing, (), {"BLOCK": 1}),
}  # fmt: skip


@pytest.fixture
def triton_without_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Triton believe in a GPU, as far as `warmup()` asks for one."""
    properties = {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}
    stand_in = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        utils=SimpleNamespace(get_device_properties=lambda _: properties),
        map_python_to_cpp_type=str,
    )
    before = dict(vars(driver))
    driver.set_active(stand_in)
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    yield
    vars(driver).clear()
    vars(driver).update(before)


@pytest.mark.parametrize("name", CASES)
def test_the_machine_code_is_that_of_a_launch(name, triton_without_gpu):
    kernel, args, options = CASES[name]
    launched = kernel.warmup(*args, grid=(1,), **options)
    launched = launched.result() if hasattr(launched, "result") else launched
    cubin = jitload.extract_triton(kernel, *args, arch=ARCH, **options)
    assert cubin.data == launched.asm["cubin"]
    assert cubin.triton == jitload.extract_triton(launched).triton
    facts = (launched.metadata.num_warps, launched.metadata.shared)
    assert (cubin.triton.num_warps, cubin.triton.shared_bytes) == facts
