"""Helpers for the tests of Triton kernels: extraction in few words, and example arguments that need no torch."""

from typing import Any

import jitload

ARCH = "sm_90"
ADD = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
DESCRIPTORS = {
    "a_desc": "tensordesc<fp16[128, 64]>", "b_desc": "tensordesc<fp16[128, 64]>",
    "c_desc": "tensordesc<fp16[128, 128]>", "M": "i32", "N": "i32", "K": "i32",
}  # fmt: skip
PERSISTENT = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "PROGRAMS": 132}


class Tensor:
    """An example argument: an element type, and an address."""

    def __init__(self, dtype: Any = "float32", address: int = 0) -> None:
        self.dtype = dtype
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def extract(kernel: Any, *args: Any, **options: Any) -> Any:
    """Extract for one architecture, and return the record of the launch."""
    return jitload.extract_triton(kernel, *args, **{"arch": ARCH, **options}).triton


def load(kernel: Any, *args: Any, name: str = "m", **options: Any) -> Any:
    """Build a library for one architecture, and load it."""
    return jitload.load_triton(name, kernel, *args, **{"arch": ARCH, **options})


def refusal(error: type[Exception], kernel: Any, *args: Any, **options: Any) -> str:
    """Return the message of an extraction that fails."""
    import pytest

    with pytest.raises(error) as caught:
        extract(kernel, *args, **options)
    assert type(caught.value) is error
    return str(caught.value)


def assumptions(facts: Any) -> list[tuple[str, str, int]]:
    return [(a.parameter, a.kind, a.value) for a in facts.assumptions]


def slots(facts: Any) -> list[tuple[str, str, int]]:
    return [(p.name, p.type, p.size) for p in facts.kernel.parameters]


def compiled(**options: Any) -> Any:
    """Return a compiled kernel, as a launch would."""
    import triton
    import triton_kernels as kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(
        fn=kernels.vector_add, signature=signature, constexprs={(4,): 256}, attrs={(0,): [["tt.divisibility", 16]]}
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
