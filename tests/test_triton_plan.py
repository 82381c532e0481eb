"""Specializations of Triton kernels: from `signature=`, from example arguments, and of compiled and tuned kernels."""

import copy
import json
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
import triton_kernels as kernels
from triton_support import ADD, DESCRIPTORS, PERSISTENT, Tensor, assumptions, compiled, extract, load, refusal
from triton_tuned import tuned, tuned_add

import jitload
from jitload.errors import SignatureError
from jitload.triton.kernel import CompileSpec, assign_keywords, read_kernel
from jitload.triton.plan import make_plan, signature_of
from jitload.triton.versions import find_triton

# ---- a signature -----------------------------------------------------------------------------------------------


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


def test_a_pointer_that_is_always_none():
    signature = {"x_ptr": "*fp32", "bias_ptr": None, "out_ptr": "*fp32", "n": "i32", "stride": "i32"}
    facts = extract(kernels.optional_bias, signature=signature, BLOCK=64)
    assert assumptions(facts) == [("bias_ptr", "null", 0)]
    assert [a.name for a in facts.arguments] == ["x_ptr", "bias_ptr", "out_ptr", "n", "stride"]
    assert "bias_ptr" not in [p.name for p in facts.kernel.parameters]


def test_a_run_time_parameter_may_be_compiled_in():
    signature = {name: ADD[name] for name in ("x_ptr", "y_ptr", "out_ptr")}
    facts = extract(kernels.vector_add, signature=signature, constexprs={"n": 4096}, BLOCK=64)
    assert facts.constexprs == (("n", 4096), ("BLOCK", 64))
    assert [a.name for a in facts.arguments] == ["x_ptr", "y_ptr", "out_ptr"]


def test_defaults_of_constexprs():
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
def test_pointers_of_every_type(element, dtype):
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
def test_scalars_have_the_width_that_the_cubin_has(text, kind, size):
    facts = extract(kernels.store_scalar, signature={"out_ptr": "*fp64", "x": text})
    assert [(p.kind, p.size) for p in facts.kernel.parameters] == [("pointer", 8), (kind, size)]


def test_tuples_are_flattened():
    facts = extract(kernels.of_a_tuple, signature={"pair": ("*fp32:16", "*fp32", "i32:16"), "n": "i32"}, BLOCK=128)
    assert [a.name for a in facts.arguments] == ["pair_0", "pair_1", "pair_2", "n"]
    assert assumptions(facts) == [("pair_0", "multiple_of", 16), ("pair_2", "multiple_of", 16)]


@pytest.mark.parametrize("keywords", [{"num_stages": 2}, {"constexprs": {"num_stages": 2}}])
def test_a_constexpr_with_the_name_of_an_option_is_both(keywords):
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
    expected = (("BLOCK", 64), ("num_stages", 2))
    assert extract(kernels.staged, signature=signature, BLOCK=64, **keywords).constexprs == expected
    assert extract(kernels.staged, Tensor(), Tensor(), 99, BLOCK=64, **keywords).constexprs == expected
    with pytest.raises(jitload.errors.SignatureError, match="no value for num_stages"):
        extract(kernels.staged, signature=signature, BLOCK=64)


# ---- example arguments -----------------------------------------------------------------------------------------


def test_example_arguments_are_specialized_as_triton_does():
    facts = extract(kernels.optional_bias, Tensor(), None, Tensor(address=4), 64, 1, BLOCK=128)
    assert assumptions(facts) == [
        ("x_ptr", "multiple_of", 16), ("bias_ptr", "null", 0), ("n", "multiple_of", 16), ("stride", "equal_to", 1),
    ]  # fmt: skip
    assert facts.constexprs == (("BLOCK", 128),)


def test_torch_tensors_and_dtypes():
    real = torch.zeros(64)
    meta = torch.empty(64, device="meta")
    for x in (real, meta, torch.float32):
        facts = extract(kernels.vector_add, x, meta, meta, 33, 64)
        assert [a.dtype for a in facts.arguments] == ["float32"] * 3 + [None]
        assert len(facts.assumptions) == 3


def test_arguments_by_name_and_by_position():
    by_name = extract(kernels.vector_add, out_ptr=Tensor(), x_ptr=Tensor(), y_ptr=Tensor(), n=33, BLOCK=64)
    by_position = extract(kernels.vector_add, Tensor(), Tensor(), Tensor(), 33, 64)
    assert by_name == by_position


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


def test_a_tuple_of_examples():
    facts = extract(kernels.of_a_tuple, (Tensor(), Tensor(address=8), 1), 65, BLOCK=128)
    assert [a.name for a in facts.arguments] == ["pair_0", "pair_1", "pair_2", "n"]
    assert assumptions(facts) == [("pair_0", "multiple_of", 16), ("pair_2", "equal_to", 1)]


def test_a_kernel_without_its_python_function():
    kernel = copy.copy(kernels.vector_add)
    kernel.fn = None
    assert "torch.compile has removed it" in refusal(SignatureError, kernel, signature=ADD, BLOCK=128)


@pytest.mark.parametrize("scale", [1, 16, 7, None, 1.5])
def test_a_plan_over_a_tuple_can_be_repeated_without_example_arguments(scale):
    kernel, triton_ = read_kernel(kernels.of_a_tuple), find_triton()
    spec = CompileSpec.of(((Tensor(), Tensor(address=8), scale), 65), BLOCK=128)
    plan = make_plan(kernel, assign_keywords(kernel, spec), triton_, 90)
    words = json.loads(json.dumps(signature_of(kernel, plan)))
    assert plan.is_same(make_plan(kernel, assign_keywords(kernel, CompileSpec.of((), **words)), triton_, 90))


def test_a_named_tuple_keeps_its_fields():
    pair = kernels.Pair(Tensor(), Tensor(address=8), 1.5)
    types = kernels.Pair("*fp32:16", "*fp32", "fp32")
    for facts in (
        extract(kernels.of_a_named_tuple, pair, 65, BLOCK=128),
        extract(kernels.of_a_named_tuple, pair._replace(source=torch.float32), 65, BLOCK=128),
        extract(kernels.of_a_named_tuple, signature={"pair": types, "n": "i32"}, BLOCK=128),
    ):
        assert [a.name for a in facts.arguments] == ["pair_source", "pair_target", "pair_scale", "n"]


def test_a_constexpr_in_a_tuple():
    size = tl.constexpr(64)
    for facts in (
        extract(kernels.of_a_sized_tuple, (Tensor(), Tensor(), size), 65),
        extract(kernels.of_a_sized_tuple, signature={"pair": ("*fp32:16", "*fp32:16", size), "n": "i32"}),
    ):
        assert ([a.name for a in facts.arguments], facts.constexprs) == (["pair_0", "pair_1", "n"], (("pair_2", 64),))
        assert facts.tuples == (("pair", ("pair_0", "pair_1", "pair_2")),)


def test_a_descriptor_as_an_example():
    from triton.tools.tensor_descriptor import TensorDescriptor

    half = torch.empty((256, 256), dtype=torch.float16, device="meta")
    a, c = TensorDescriptor.from_tensor(half, [128, 64]), TensorDescriptor.from_tensor(half, [128, 128])
    facts = extract(kernels.persistent_matmul, a, a, c, 256, 256, 256, **PERSISTENT)
    assert [x.type for x in facts.arguments[:3]] == [DESCRIPTORS[name] for name in ("a_desc", "b_desc", "c_desc")]


# ---- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"signature": {**ADD, "n": "i33"}}, "parameter 'n': unknown type 'i33'; did you mean 'i32'?"),
        ({"signature": {**ADD, "x_ptr": "*fp31"}}, "unknown type '*fp31'; did you mean"),
        ({"signature": {**ADD, "x_ptr": "Vec3"}}, "unknown type 'Vec3'; types are such as '*fp32', 'i32'"),
        ({"signature": {**ADD, "x_ptr": "**fp32:16"}}, "'**fp32:16': Triton has no pointers to pointers: pass '*u64'"),
        ({"signature": {**ADD, "x_ptr": 7}}, "a type is a text such as '*fp32:16' or 'i32', got 7"),
        ({"signature": {**ADD, "x_ptr": "*fp32:8"}}, "the hint ':8' in '*fp32:8' is not allowed. The hints are ':16'"),
        ({"signature": {**ADD, "x_ptr": "*fp32:1"}}, "the hint ':1' in '*fp32:1' is not allowed"),
        ({"signature": {**ADD, "n": "fp32:16"}}, "only a pointer or an integer can be a multiple of 16"),
        ({"signature": {**ADD, "z": "i32"}}, "has no parameter 'z'; its parameters are x_ptr, y_ptr"),
        ({"signature": {"x_ptr": "*fp32"}}, "kernel 'vector_add': signature= has no type for y_ptr, out_ptr, n"),
        ({"signature": {**ADD, "n": ("i32", "constexpr")}}, "a constexpr in a tuple needs a value"),
        ({"signature": "*fp32, *fp32, *fp32, i32, 64"}, "has 5 types, but the run-time parameters are x_ptr, y_ptr"),
        ({"signature": ["*fp32"]}, "signature= must map parameters to types, {'x_ptr': '*fp32:16'}, got list"),
        ({"signature": ADD, "constexprs": {"BLOK": 1}}, "parameter 'BLOK' for constexprs=; its constexprs are BLOCK"),
        ({"signature": ADD, "constexprs": [1]}, "constexprs= must be a mapping, such as {'BLOCK': 1024}, got list"),
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


@pytest.mark.parametrize(
    "args", [(Tensor(), Tensor()), (Tensor(), Tensor(), Tensor(), 2**64), (object(), Tensor(), Tensor(), 1)]
)
def test_examples_that_do_not_fit(args):
    assert "do not fit kernel vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK): " in refusal(
        SignatureError, kernels.vector_add, *args, BLOCK=64
    )


# ---- kernels that are compiled or tuned --------------------------------------------------------------------------


def test_a_compiled_kernel():
    kernel = compiled(num_warps=2)
    cubin = jitload.extract_triton(kernel)
    assert cubin.data == kernel.kernel
    assert assumptions(cubin.triton) == [("x_ptr", "multiple_of", 16)]
    assert (cubin.triton.num_warps, cubin.triton.constexprs) == (2, (("BLOCK", 256),))


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


def test_a_kernel_that_torch_wrapped():
    wrapped = torch.library.wrap_triton(kernels.vector_add)
    assert extract(wrapped, signature=ADD, BLOCK=64).kernel.name == "vector_add"


def test_a_kernel_of_the_interpreter():
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
