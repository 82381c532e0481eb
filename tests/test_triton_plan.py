"""Specializations of Triton kernels: from `signature=`, from example arguments, and of compiled and tuned kernels."""

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import triton
import triton_kernels as kernels
from triton_kernels import tuned, tuned_add
from triton_support import ADD, Tensor, assumptions, extract, load, refusal

import jitload
from jitload.errors import SignatureError


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


def test_a_run_time_parameter_may_be_compiled_in():
    signature = {name: ADD[name] for name in ("x_ptr", "y_ptr", "out_ptr")}
    facts = extract(kernels.vector_add, signature=signature, constexprs={"n": 4096}, BLOCK=64)
    assert facts.constexprs == (("n", 4096), ("BLOCK", 64))
    assert [a.name for a in facts.arguments] == ["x_ptr", "y_ptr", "out_ptr"]


# For each type, the dtype of a pointer to it, and the kind and the size of a scalar.
TYPES = [
    ("i1", "bool", ("bool", 1)), ("i8", "int8", ("int", 1)), ("i64", "int64", ("int", 8)),
    ("u16", "uint16", ("uint", 2)), ("bf16", "bfloat16", ("float", 2)), ("fp64", "float64", ("float", 8)),
    ("float64", "float64", ("float", 8)), ("bool", "bool", ("bool", 1)), ("fp8e4nv", "float8_e4m3fn", None),
    ("fp8e5", "float8_e5m2", None), ("float8_e4m3fn", "float8_e4m3fn", None), ("fp8e4b15", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "dtype", "scalar"), TYPES)
def test_pointers_have_dtypes_and_scalars_the_width_that_the_cubin_has(type_, dtype, scalar):
    facts = extract(kernels.copy, signature={"x_ptr": f"*{type_}", "out_ptr": f"*{type_}"}, BLOCK=64)
    assert [a.dtype for a in facts.arguments] == [dtype, dtype]
    if scalar:
        facts = extract(kernels.store_scalar, signature={"out_ptr": "*fp64", "x": type_})
        assert [(p.kind, p.size) for p in facts.kernel.parameters] == [("pointer", 8), scalar]


@pytest.mark.parametrize("keywords", [{"num_stages": 2}, {"constexprs": {"num_stages": 2}}])
def test_a_constexpr_with_the_name_of_an_option_is_both(keywords):
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
    expected = (("BLOCK", 64), ("num_stages", 2))
    assert extract(kernels.staged, signature=signature, BLOCK=64, **keywords).constexprs == expected
    assert extract(kernels.staged, Tensor(), Tensor(), 99, BLOCK=64, **keywords).constexprs == expected
    with pytest.raises(jitload.errors.SignatureError, match="no value for num_stages"):
        extract(kernels.staged, signature=signature, BLOCK=64)


def test_example_arguments_are_specialized_as_triton_does():
    facts = extract(kernels.optional_bias, Tensor(), None, Tensor(address=4), 64, 1, BLOCK=128)
    assert assumptions(facts) == [
        ("x_ptr", "multiple_of", 16), ("bias_ptr", "null", 0), ("n", "multiple_of", 16), ("stride", "equal_to", 1),
    ]  # fmt: skip
    assert facts.constexprs == (("BLOCK", 128),)


def test_integers_have_the_width_of_their_value():
    facts = extract(kernels.scalars, Tensor(), True, 3, 17, 2**40, 2**63, 1.5, BLOCK=128)
    assert [(a.kind, a.size) for a in facts.arguments[1:]] == [
        ("bool", 1), ("int", 4), ("int", 4), ("int", 8), ("uint", 8), ("float", 4),
    ]  # fmt: skip
    assert [a.parameter for a in facts.assumptions] == ["out_ptr", "big", "huge"]


def test_parameters_that_the_kernel_excludes_from_specialization():
    facts = extract(kernels.unspecialised, Tensor(), 1, 64, BLOCK=128)
    assert assumptions(facts) == [("x_ptr", "multiple_of", 16)]
    assert [p.name for p in facts.kernel.parameters] == ["x_ptr", "seed", "n"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"signature": {**ADD, "n": "i33"}}, "parameter 'n': unknown type 'i33'; did you mean 'i32'?"),
        ({"signature": {**ADD, "x_ptr": "Vec3"}}, "unknown type 'Vec3'; types are such as '*fp32', 'i32'"),
        ({"signature": {**ADD, "x_ptr": "**fp32:16"}}, "'**fp32:16': Triton has no pointers to pointers: pass '*u64'"),
        ({"signature": {**ADD, "x_ptr": "*fp32:8"}}, "the hint ':8' in '*fp32:8' is not allowed. The hints are ':16'"),
        ({"signature": {**ADD, "n": "fp32:16"}}, "only a pointer or an integer can be a multiple of 16"),
        ({"signature": {"x_ptr": "*fp32"}}, "kernel 'vector_add': signature= has no type for y_ptr, out_ptr, n"),
        ({"signature": "*fp32, *fp32, *fp32, i32, 64"}, "has 5 types, but the run-time parameters are x_ptr, y_ptr"),
        ({"signature": ADD, "constexprs": {"BLOK": 1}}, "parameter 'BLOK' for constexprs=; its constexprs are BLOCK"),
        ({"signature": ADD, "num_wraps": 4}, "'num_wraps' is neither a parameter (x_ptr, y_ptr, out_ptr, n, BLOCK)"),
        ({"signature": ADD, "n": 3}, "pass either signature= or example arguments, not both"),
        ({}, "the types of x_ptr, y_ptr, out_ptr, n are not known: pass signature={'x_ptr': '*fp32:16', …}, example"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_the_kernel(options, expected):
    assert expected in refusal(SignatureError, kernels.vector_add, **{"BLOCK": 64, **options})


def test_missing_constexprs_are_listed():
    signature = {"x_ptr": "*fp32", "n": "i32"}
    expected = "kernel 'two_blocks': no value for HALF, BLOCK: pass constexprs={'HALF': …, 'BLOCK': …}"
    assert refusal(SignatureError, kernels.two_blocks, signature=signature) == expected
    assert refusal(SignatureError, kernels.two_blocks, Tensor(), 8) == expected


def test_a_configuration_that_is_passed_or_the_only_one():
    facts = extract(tuned_add, signature=ADD, config=tuned_add.configs[1])
    assert (facts.constexprs, facts.num_warps) == ((("BLOCK", 1024),), 8)
    facts = extract(tuned_add, signature=ADD, config={"BLOCK": 64, "num_warps": 1})
    assert (facts.constexprs, facts.num_warps) == ((("BLOCK", 64),), 1)
    only = tuned(triton.Config({"BLOCK": 32}, num_warps=1))(kernels.vector_add)
    assert extract(only, signature=ADD).constexprs == (("BLOCK", 32),)


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
    message = refusal(SignatureError, tuned_add, signature=ADD, config=512)
    assert "config= must be a triton.Config or a mapping, got int" in message


def plain_function() -> None:
    """Do nothing, without a decorator."""


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (plain_function, "plain_function() is a plain function: decorate it with @triton.jit"),
        ([1, 2], "got a list of 2, as warmup() of an autotuned kernel returns: pass one of its items"),
        (SimpleNamespace(fn=kernels.vector_add), "got SimpleNamespace, which wraps one: pass its .fn"),
    ],
)
def test_what_is_not_a_kernel(kernel, expected):
    message = refusal(SignatureError, kernel, signature=ADD)
    assert message == f"a Triton kernel is a @triton.jit function or what a launch or warmup() returns: {expected}"


def test_decorators_that_libraries_derive_from_those_of_triton():
    class CachedTuner(triton.runtime.Autotuner):  # as in flash-linear-attention and FlagGems
        pass

    class Rules(triton.runtime.Heuristics):
        pass

    def load_tuned(**options):
        configs = [triton.Config({}, num_warps=1)]
        rules = Rules(kernels.vector_add, kernels.vector_add.arg_names, {"BLOCK": lambda _: 64})
        tuner = CachedTuner(rules, rules.arg_names, configs, ["n"], None, None, do_bench=lambda *_: 1.0)
        return extract(tuner, signature=ADD, **options)

    assert (load_tuned().num_warps, load_tuned().constexprs) == (1, (("BLOCK", 64),))


def test_a_kernel_of_the_interpreter():
    from triton.runtime.interpreter import InterpretedFunction

    interpreted = InterpretedFunction(kernels.vector_add.fn)
    message = refusal(SignatureError, interpreted, signature=ADD)
    assert "Triton's interpreter mode, which compiles nothing: unset TRITON_INTERPRET" in message


def test_a_hook_of_the_kernel_itself():
    kernel = triton.jit(kernels.copy.fn)
    kernel.add_pre_run_hook(lambda *_, **__: None)
    message = refusal(SignatureError, kernel, signature="*fp32, *fp32", BLOCK=64)
    assert message.startswith("kernel 'copy' has a pre_run_hook, Python code that Triton runs before each launch")
    with pytest.raises(jitload.JitLoadError, match="pass the kernel without it"):
        load(kernel, signature="*fp32, *fp32", BLOCK=64)
