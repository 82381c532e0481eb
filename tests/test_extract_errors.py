"""Bad input to the extraction of Triton kernels: each is one error of ours that says what to do."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from triton_support import ADD, ARCH, Tensor, extract, refusal
from triton_tuned import tuned_add

import jitload
from jitload.errors import CompileError, SignatureError, ToolchainError
from jitload.triton import record as triton_record
from jitload.triton.versions import Triton, find_triton, read_version

VERSION = find_triton()
DUMMY = Tensor()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"signature": {**ADD, "n": "i33"}}, "parameter 'n': unknown type 'i33'; did you mean 'i32'?"),
        ({"signature": {**ADD, "x_ptr": "*fp31"}}, "unknown type '*fp31'; did you mean"),
        ({"signature": {**ADD, "x_ptr": "Vec3"}}, "unknown type 'Vec3'; types are such as '*fp32', 'i32'"),
        ({"signature": {**ADD, "x_ptr": "**fp32:16"}}, "'**fp32:16': Triton has no pointers to pointers: give '*u64'"),
        ({"signature": {**ADD, "x_ptr": 7}}, "a type is a text such as '*fp32:16' or 'i32', got 7"),
        ({"signature": {**ADD, "x_ptr": "*fp32:8"}}, "'*fp32:8' has a hint that Triton does not know: ':16'"),
        ({"signature": {**ADD, "x_ptr": "*fp32:1"}}, "has a hint that Triton does not know"),
        ({"signature": {**ADD, "n": "fp32:16"}}, "only a pointer or an integer can be a multiple of 16"),
        ({"signature": {**ADD, "z": "i32"}}, "has no parameter 'z'; its parameters are x_ptr, y_ptr"),
        ({"signature": {"x_ptr": "*fp32"}}, "kernel 'vector_add': signature= has no type for y_ptr, out_ptr, n"),
        ({"signature": {**ADD, "n": ("i32", "constexpr")}}, "a constexpr in a tuple has no value here"),
        ({"signature": "*fp32, *fp32, *fp32, i32, 64"}, "has 5 types, and the run-time parameters are x_ptr, y_ptr"),
        ({"signature": ["*fp32"]}, "signature= must map parameters to types, {'x_ptr': '*fp32:16'}, got list"),
        ({"signature": ADD, "constexprs": {"BLOK": 1}}, "parameter 'BLOK' for constexprs=; its constexprs are BLOCK"),
        ({"signature": ADD, "constexprs": [1]}, "constexprs= must map names to values, got list"),
        ({"signature": ADD, "num_wraps": 4}, "'num_wraps' is neither a parameter (x_ptr, y_ptr, out_ptr, n, BLOCK)"),
        ({"signature": ADD, "n": 3}, "give either signature= or example arguments, not both"),
        ({}, "nothing says what x_ptr, y_ptr, out_ptr, n are: give signature={'x_ptr': '*fp32:16', …}, example"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_kernel(options: dict[str, Any], expected: str):
    assert expected in refusal(SignatureError, kernels.vector_add, **{"BLOCK": 64, **options})


@pytest.mark.parametrize(
    ("option", "values", "expected"),
    [
        ("num_warps", (0, 3, 64, -1, 2**40, "4", 4.0, True), "a power of 2 from 1 to 32: a block has at most 1024 thr"),
        ("num_ctas", (0, 3, 32, -2, "2"), "a power of 2 from 1 to 16, the most blocks that a cluster has"),
        ("num_stages", (-1, "3", 2.5, 2**31), "0 or more"),
        ("maxnreg", (0, -1, "many"), "1 or more"),
    ],
)
def test_numbers_that_no_gpu_takes(option: str, values: tuple[Any, ...], expected: str):
    for value in values:
        words = refusal(SignatureError, kernels.vector_add, signature=ADD, BLOCK=64, **{option: value})
        assert words.startswith(f"kernel 'vector_add': {option}={value!r} must be {expected}")
    words = refusal(SignatureError, tuned_add, signature=ADD, config={"BLOCK": 64, option: values[0]})
    assert f"{option}={values[0]!r} must be {expected}" in words


def test_clusters_before_hopper():
    words = refusal(SignatureError, kernels.vector_add, signature=ADD, BLOCK=64, num_ctas=2, arch="sm_80")
    assert words.endswith(
        "num_ctas=2 makes clusters, which GPUs have from sm_90 on, and this is for sm_80: leave it out there"
    )


def test_missing_constexprs_are_listed():
    signature = {"x_ptr": "*fp32", "n": "i32"}
    expected = "kernel 'two_blocks': no value for HALF, BLOCK: give constexprs={'HALF': …, 'BLOCK': …}"
    assert refusal(SignatureError, kernels.two_blocks, signature=signature) == expected
    assert refusal(SignatureError, kernels.two_blocks, DUMMY, 8) == expected


def test_examples_that_do_not_fit():
    assert "do not fit kernel vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK): " in refusal(
        SignatureError, kernels.vector_add, DUMMY, DUMMY, BLOCK=64
    )
    assert "do not fit kernel" in refusal(SignatureError, kernels.vector_add, DUMMY, DUMMY, DUMMY, 2**64, BLOCK=64)
    assert "do not fit kernel" in refusal(SignatureError, kernels.vector_add, object(), DUMMY, DUMMY, 1, BLOCK=64)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (None, "None is what a launch gives that compiled nothing"),
        (len, "got builtin_function_or_method"),
        (test_missing_constexprs_are_listed, "() is a plain function: decorate it with @triton.jit"),
        ([1, 2], "a list of 2 is several, as warmup() of an autotuned kernel gives them: pass one of them"),
        ("add", "got str"),
    ],
)
def test_what_is_no_kernel(kernel: Any, expected: str):
    words = refusal(SignatureError, kernel, signature=ADD)
    assert words.startswith("a Triton kernel is a @triton.jit function or what a launch or warmup() returns: ")
    assert expected in words


def test_a_kernel_of_the_interpreter(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numpy")
    from triton.runtime.interpreter import InterpretedFunction

    interpreted = InterpretedFunction(kernels.vector_add.fn)
    assert "Triton's interpreter mode, which compiles nothing: unset TRITON_INTERPRET" in refusal(
        SignatureError, interpreted, signature=ADD
    )


def test_an_autotuned_kernel_that_nobody_tuned():
    words = refusal(SignatureError, tuned_add, signature=ADD)
    assert words.startswith("kernel 'tuned_add' is autotuned, and no configuration has been chosen: launch it once")
    assert 'config=, or build all with load_triton(…, variants="all"). They are:' in words
    assert "\n    BLOCK=512, num_warps=4" in words
    assert "\n    BLOCK=1024, num_warps=8" in words
    assert "config= must be a triton.Config or a mapping, got int" in refusal(
        SignatureError, tuned_add, signature=ADD, config=512
    )


def test_a_configuration_and_a_constexpr_that_differ():
    words = refusal(SignatureError, tuned_add, signature=ADD, config={"BLOCK": 128}, BLOCK=32)
    assert words == "kernel 'tuned_add': 'BLOCK' is 128 in the configuration and 32 beside it: give it once"


def test_a_heuristic_over_run_time_arguments():
    decided = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(kernels.vector_add)
    expected = "its heuristic decides 'BLOCK' from the argument 'n', which is known at a call alone"
    assert expected in refusal(SignatureError, decided, signature=ADD)
    assert expected in refusal(SignatureError, decided, DUMMY, DUMMY, DUMMY, 100)
    assert extract(decided, signature=ADD, BLOCK=64).constexprs == (("BLOCK", 64),)
    asks = triton.heuristics({"BLOCK": lambda args: args.get("n", 64)})(kernels.vector_add)
    assert expected in refusal(SignatureError, asks, signature=ADD)


def test_triton_refuses_the_kernel():
    words = refusal(CompileError, kernels.broken, signature={"x_ptr": "*fp32"})
    assert words.startswith("Triton could not compile 'broken'\n")
    assert "power of 2" in words


def test_several_architectures_and_none():
    with pytest.raises(ToolchainError, match="so it takes one architecture, not sm_80, sm_90"):
        jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=64, arch="sm_80,sm_90")
    with pytest.raises(ToolchainError, match="is not an architecture"):
        jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=64, arch="gfx942")
    with pytest.raises(ToolchainError, match="a Triton kernel is compiled only for GPUs, not for 'cpu'"):
        jitload.load_triton("m", kernels.vector_add, signature=ADD, BLOCK=64, arch="cpu")


def test_a_compiled_kernel_cannot_be_changed():
    from triton_support import compiled

    if VERSION.number >= (3, 3):
        kernel = compiled()
        expected = "is compiled already, so that num_warps= cannot change it: leave it out"
        assert expected in refusal(SignatureError, kernel, num_warps=8)
        assert "so that example arguments cannot change it" in refusal(SignatureError, kernel, DUMMY)
        assert "is compiled for sm_90a, so that arch= cannot make it run on sm_80" in refusal(
            SignatureError, kernel, arch="sm_80"
        )


# ---- what a compiled kernel may not be -------------------------------------------------------------------------


def doctored(**changes: Any) -> Any:
    """Return a compiled kernel with other metadata."""
    from triton_support import compiled

    kernel = compiled()
    kernel.metadata = SimpleNamespace(**{**kernel.metadata._asdict(), **changes})
    return kernel


pytestmark_compiled = pytest.mark.skipif(VERSION.number < (3, 3), reason="the form of ASTSource changed with 3.3")


@pytestmark_compiled
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target": SimpleNamespace(backend="hip", arch="gfx942", warp_size=64)}, "is compiled for hip gfx942"),
        ({"profile_scratch_size": 64}, "with instrumentation for a profiler, which wants 64 bytes a program"),
        ({"num_warps": 64}, "has num_warps=64 once it is compiled, 2048 threads, and a block has at most 1024"),
        ({"tmem_size": 1024}, "wants 1024 columns of tensor memory, and the GPU has 512"),
        ({"name": "other"}, "Triton calls it 'other', and the cubin has: vector_add"),
        ({"num_warps": 8}, "says that it runs 256 threads, and the cubin wants 128"),
    ],
)  # fmt: skip
def test_what_no_library_can_launch(changes: dict[str, Any], expected: str):
    assert expected in refusal(SignatureError, doctored(**changes), arch="native")


@pytestmark_compiled
def test_the_table_in_the_cubin_is_the_judge(monkeypatch: pytest.MonkeyPatch):
    from triton_support import compiled

    kernel = compiled()
    other = read_version("3.9.0" if VERSION.hidden_pointers == 1 else "3.4.0")
    monkeypatch.setattr(triton_record, "read_version", lambda _: other)
    words = refusal(SignatureError, kernel, arch="native")
    said = "says that it takes x_ptr 8, y_ptr 8, out_ptr 8, n 4 and "
    assert f"{said}{other.hidden_pointers} hidden pointers ({28 + 8 * other.hidden_pointers} bytes), and the" in words
    assert f"the cubin has parameters of {', '.join(['8, 8, 8, 4', *['8'] * VERSION.hidden_pointers])} bytes" in words


@pytestmark_compiled
def test_a_specialisation_that_nobody_knows():
    from triton_support import compiled

    kernel = compiled()
    kernel.src.attrs = {(0,): [["tt.pointer_range", 32]]}
    expected = "parameter 'x_ptr': Triton specialised it by tt.pointer_range=32, which jitload does not know"
    assert expected in refusal(SignatureError, kernel, arch="native")


# ---- Triton itself ---------------------------------------------------------------------------------------------


def test_releases():
    assert read_version("3.6.0+git1234").number == (3, 6)
    assert [Triton(f"3.{minor}.0").hidden_pointers for minor in range(2, 11)] == [0, 1, 1, *[2] * 6]
    with pytest.raises(ToolchainError, match=r"Triton 3.1.0 is too old: 3.2 is the first that jitload knows"):
        read_version("3.1.0")
    with pytest.raises(ToolchainError, match="says that its version is 'dev', which is none"):
        read_version("dev")


def test_an_interface_that_changed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("triton.compiler.ASTSource", lambda **options: options["no such"])
    monkeypatch.setattr("triton.compiler.ASTSource", None)
    with pytest.raises(
        jitload.JitLoadError, match=rf"Triton {triton.__version__} has changed its interface: ASTSource"
    ):
        extract(kernels.vector_add, signature=ADD, BLOCK=64)


def test_no_triton(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ToolchainError, match=r"need Triton, and it cannot be imported.*pip install triton"):
        jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=64, arch=ARCH)
