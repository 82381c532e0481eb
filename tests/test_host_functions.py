"""Which functions a C++ text surely defines for the host."""

from __future__ import annotations

import pytest

from jitload.device.host_functions import defines_host_functions

TEXTS = [
    ("int f(int n) { return n; }", True),
    ("#include <a.h>\nstatic inline void f(tvm::ffi::TensorView x) noexcept {}", True),
    ("cudaError_t f() { return cudaSuccess; }", True),
    ("std::vector<int> f(int (*g)(int)) { return {}; }", True),
    ("int g() { return f(1); }", False),
    ("int f(int n);", False),
    ("KERNEL f(float* x) {}", False),
    ("KERNEL void f(float* x) {}", False),
    ("KERNEL(f)(float* x) {}", False),
    ("// int f() {}", False),
    ("#define F int f() {}\nF", False),
    ("int f(", False),
    ("", False),
]


@pytest.mark.parametrize(("text", "is_there"), TEXTS)
def test_a_function_with_a_plain_type_is_the_hosts(text, is_there):
    assert defines_host_functions((text,), ("f",)) is is_there


def test_each_name_must_be_there():
    texts = ("int f() { return 1; }", "int g() { return 2; }")
    assert defines_host_functions(texts, ("f", "g"))
    assert not defines_host_functions(texts, ("f", "h"))
    assert not defines_host_functions(texts, ())
