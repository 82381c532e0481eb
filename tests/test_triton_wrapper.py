"""Generated wrappers of Triton kernels, and the records that are refused."""

from typing import Any

import pytest
from support.record import Reader
from support.triton import function, parameter, specialize

from jitload.codegen.wrapper import describe_wrapper
from jitload.errors import LaunchSpecError
from jitload.model import Cubin, Specialization
from jitload.triton.wrapper import TritonFunction, TritonVariant, describe_triton_wrapper


def cubin(specialization: Specialization, arch: str = "sm_90a") -> Cubin:
    return Cubin(data=f"{specialization.kernel.symbol} {arch}".encode(), arch=arch, triton=specialization)


def test_cubins_launched_alike_share_a_kernel():
    spec = specialize("k", [parameter("x", "*fp32")])
    changed = spec._replace(kernel=spec.kernel._replace(registers=99))
    wrapper, _ = describe_triton_wrapper("m", [function("k", ("k", (cubin(spec, "sm_80"), cubin(changed))))])
    record, _ = describe_wrapper(wrapper)
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
        describe_wrapper(describe_triton_wrapper("m", functions)[0])
    return str(caught.value)


def bare(name: str, arguments: list[Any], grid: Any = 1, **facts: Any) -> TritonFunction:
    """Return a function over a cubin without code."""
    cubin = Cubin(data=b"", arch="sm_90", triton=specialize(name, arguments, **facts))
    variant = TritonVariant(name=name, cubins=(cubin,), grid=grid)
    return TritonFunction(name=name, doc="", variants=(variant,))


REFUSALS: list[tuple[dict[str, Any], str]] = [
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
