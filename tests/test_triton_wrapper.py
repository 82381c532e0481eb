"""Generated wrappers of Triton kernels, and the records that are refused."""

from typing import Any

import pytest
from support.record import Reader
from support.triton import descriptor_parameters, function, multiple, null, one, parameter, specialize
from support.wrappers import compile_strictly

from jitload.errors import LaunchSpecError
from jitload.model import Cubin, Descriptor, Scratch, Specialization
from jitload.triton.wrapper import TritonFunction, TritonVariant, describe_triton_wrapper


def cubin(specialization: Specialization, arch: str = "sm_90a") -> Cubin:
    return Cubin(data=f"{specialization.kernel.symbol} {arch}".encode(), arch=arch, triton=specialization)


def _softmax() -> TritonFunction:
    """Return one variant: an argument that is not taken, constexprs, attributes."""
    arguments = [parameter("out", "*bf16"), parameter("x", "*bf16"), parameter("mask", "None"), parameter("n", "i32")]
    spec = specialize(
        "softmax_kernel",
        arguments,
        taken=["out", "x", "n"],
        assumptions=(multiple("out"), multiple("x"), null("mask")),
        constexprs=(("BLOCK", 1024), ("CAUSAL", False), ("SCALE", 0.5), ("MODE", "mean")),
        num_warps=8,
        shared_bytes=65536,
        is_pdl=True,
    )
    return function("softmax", ("softmax", cubin(spec)), grid=("ceil_div(n, BLOCK)", "x.shape[0]"))


def _matmul() -> TritonFunction:
    """Return two variants, one of them for two architectures that are launched in different ways."""
    arguments = [
        parameter("a", "tensordesc<fp16[128, 64]>", "float16"),
        parameter("c", "*fp32"),
        parameter("alpha", "fp16"),
        parameter("k", "i32"),
    ]
    described = Descriptor(parameter="a", dtype="float16", block_shape=(128, 32), swizzle=2, elem_size=2, elem_type=6)
    expanded = described._replace(block_shape=(128, 64), is_expanded=True, flags=1)
    hopper = specialize(
        "matmul_kernel",
        arguments,
        parameters=[*descriptor_parameters("a", 2), *arguments[1:]],
        descriptors=(described,),
        assumptions=(multiple("c"), multiple("k")),
        num_ctas=2,
        cluster=(2, 1, 1),
        num_warps=12,
        global_scratch=Scratch(size=384, alignment=128),
    )
    ampere = specialize(
        "matmul_kernel",
        arguments,
        parameters=[*descriptor_parameters("a", 2, flags=1), *arguments[1:]],
        descriptors=(expanded,),
        assumptions=(multiple("c"), multiple("k")),
    )
    single = hopper._replace(assumptions=(one("k"),), kernel=hopper.kernel._replace(parameters=tuple(
        p for p in hopper.kernel.parameters if p.name != "k"
    )))  # fmt: skip
    return function(
        "matmul",
        ("matmul__fast", (cubin(ampere, "sm_80"), cubin(hopper))),
        ("matmul__one", cubin(single)),
        grid=None,
    )


FUNCTIONS = {"triton": _softmax(), "triton_variants": _matmul()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrappers_compile_without_a_warning(name, tmp_path):
    compile_strictly(*describe_triton_wrapper("ops", [FUNCTIONS[name]]), [], tmp_path)


def test_cubins_launched_alike_share_a_kernel():
    spec = specialize("k", [parameter("x", "*fp32")])
    changed = spec._replace(kernel=spec.kernel._replace(registers=99))
    record, _ = describe_triton_wrapper("m", [function("k", ("k", (cubin(spec, "sm_80"), cubin(changed))))])
    reader = Reader(record)
    assert '"sm_90a":{"registers":99' in reader.text(reader.module["description"])  # `f.kernels`
    (kernel,) = reader.kernels()
    assert reader.structure("module", kernel["module"])["image_count"] == 2
    assert record.addresses == ("__tvm_ffi__cubin_kernel0_sm_80", "__tvm_ffi__cubin_kernel0_sm_90a")


# ---- errors ------------------------------------------------------------------------------------------------------

N_PARAMETERS = [parameter("x", "*fp32"), parameter("n", "i32")]
BIAS = [parameter("x", "*fp32"), parameter("bias", "*fp32"), parameter("n", "i32")]


def refusal(*functions: TritonFunction) -> str:
    with pytest.raises(LaunchSpecError) as caught:
        describe_triton_wrapper("m", functions)
    return str(caught.value)


def bare(name: str, arguments: list[Any], grid: Any = 1, **facts: Any) -> TritonFunction:
    """Return a function over a cubin without code."""
    cubin = Cubin(data=b"", arch="sm_90", triton=specialize(name, arguments, **facts))
    variant = TritonVariant(name=name, cubins=(cubin,), grid=grid)
    return TritonFunction(name=name, doc="", variants=(variant,))


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"global_scratch": Scratch(size=8, alignment=3)}, "aligned to 3 bytes, which is not a power of 2"),
    ({"num_ctas": 2}, "a cluster of (1, 1, 1) is not 2 blocks"),
    ({"assumptions": (multiple("n", 12),)}, "'n' is assumed to be a multiple of 12, not a power of 2"),
    ({"grid": "m"}, "there is no parameter 'm'"),
    ({"grid": "F", "constexprs": (("F", 0.5),)}, "'F' is a 'constexpr' parameter, not an integer"),
    ({"grid": "n // BLOCK", "constexprs": (("BLOCK", 2**63),)}, "'BLOCK' is a 'constexpr' parameter"),
]


@pytest.mark.parametrize(("facts", "text"), REFUSALS)
def test_a_record_that_cannot_be_launched_is_refused(facts, text):
    message = refusal(bare("k", N_PARAMETERS, **facts))
    assert text in message
    assert message.startswith("kernel 'k'")


def test_variants_must_go_together():
    first, second = bare("a", N_PARAMETERS), bare("b", BIAS)
    both = TritonFunction(name="f", doc="", variants=(*first.variants, *second.variants))
    assert "the variants take different arguments: (x, n) and (x, bias, n)" in refusal(both)
    assert "two functions are named 'a'" in refusal(first, first)
    twice = TritonFunction(name="f", doc="", variants=(*first.variants, *first.variants))
    assert "two functions are named 'a'" in refusal(twice)


def test_a_reserved_name_is_refused():
    assert "'_jitload_x' cannot be exported" in refusal(bare("_jitload_x", N_PARAMETERS))
